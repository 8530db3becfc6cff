"""The table of requests: one row per request of a load. docs/metrics.md defines each column."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import Incomplete

PHASE_KEY = "assay.phase"
"""Key of the file's metadata: JSON with the wall-clock anchor and the bounds of the measured phase."""

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
        pa.field("n_resent", _I32),  # times sent again since no server program had read it
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


def read_requests(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a ``requests.parquet``, with all columns or those asked for.

    Raises Incomplete when it is missing, broken or lacks a column.
    """
    try:
        with pq.ParquetFile(path) as file:  # pq.read_table would import pandas
            table = file.read(columns=columns)
    except FileNotFoundError as error:
        raise Incomplete(f"{path}: not there") from error
    except (OSError, pa.ArrowException) as error:
        raise Incomplete(f"{path}: cannot be read: {error}") from error
    missing = [name for name in columns or REQUEST_SCHEMA.names if name not in table.column_names]
    if missing:
        raise Incomplete(f"{path}: has no column {', '.join(missing)}")
    return table


def phase_of(table: pa.Table) -> dict[str, Any]:
    """The phase's facts out of the file's metadata; empty when there are none."""
    raw = (table.schema.metadata or {}).get(PHASE_KEY.encode())
    value = json.loads(raw) if raw else {}
    return value if isinstance(value, dict) else {}
