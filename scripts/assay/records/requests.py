"""The table of requests: one row per request of a load. docs/metrics.md defines each column."""

from __future__ import annotations

import pyarrow as pa

_I64, _I32, _STR, _BOOL = pa.int64(), pa.int32(), pa.string(), pa.bool_()

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("request_id", _STR, nullable=False),
        pa.field("prompt_id", _STR, nullable=False),
        pa.field("point_id", _STR, nullable=False),
        pa.field("session_id", _STR),
        pa.field("worker", _I32, nullable=False),
        pa.field("status", _STR, nullable=False),
        pa.field("error_class", _STR),
        pa.field("error_text", _STR),
        pa.field("body", _STR),  # what was received of a request that is not ok, bounded
        pa.field("http_status", _I32),
        pa.field("finish_reason", _STR),
        pa.field("terminal_seen", _BOOL, nullable=False),
        pa.field("timestamp_source", _STR),
        pa.field("n_coalesced", _I32),
        pa.field("t_scheduled_ns", _I64),
        pa.field("t_send_ns", _I64),
        pa.field("t_headers_ns", _I64),
        pa.field("t_first_event_ns", _I64),
        pa.field("t_first_token_ns", _I64),
        pa.field("t_first_answer_ns", _I64),
        pa.field("t_last_token_ns", _I64),
        pa.field("t_end_ns", _I64),
        pa.field("chunk_offsets_ns", pa.list_(_I64)),
        pa.field("n_prompt", _I32),
        pa.field("n_cached", _I32),
        pa.field("n_output", _I32),
        pa.field("n_output_source", _STR),
        pa.field("n_output_tokenizer", _I32),
        pa.field("n_reasoning", _I32),
        pa.field("n_first_chunk", _I32),
        pa.field("n_requested", _I32),
        pa.field("n_planned_prompt", _I32),
        pa.field("ignore_eos", _BOOL),
        pa.field("reasoning_seen", _BOOL),
        pa.field("think_tag_seen", _BOOL),
    ],
    metadata={b"assay.schema": b"assay/requests/1"},
)
