"""The table of requests: one row per request of a load. docs/metrics.md defines each column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import Incomplete

PHASE_KEY = "assay.phase"
"""Key of the file's metadata: JSON with the wall-clock anchor and the bounds of the measured phase."""
BATCH_ROWS = 16_384
BATCH_EVENTS = 1 << 17
_EVENTS = "chunk_offsets_ns"

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


@contextmanager
def _faults_named(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise Incomplete(f"{path}: not there") from error
    except (OSError, pa.ArrowException) as error:
        raise Incomplete(f"{path}: cannot be read: {error}") from error


def _require(path: Path, wanted: Sequence[str], there: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in there]
    if missing:
        raise Incomplete(f"{path}: has no column {', '.join(missing)}")


def read_requests(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a ``requests.parquet``, with all columns or those asked for.

    Raises Incomplete when it is missing, broken or lacks a column.
    """
    with _faults_named(path), pq.ParquetFile(path) as file:  # pq.read_table would import pandas
        table = file.read(columns=columns)
    _require(path, columns or REQUEST_SCHEMA.names, table.column_names)
    return table


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The same, some of the rows at a time, so that memory stays flat.

    A part has at most BATCH_ROWS rows and, where the output events are asked for, about BATCH_EVENTS of them.
    """
    # Pre-buffered, all of the file that was read would stay in memory until its end.
    with _faults_named(path), pq.ParquetFile(path, pre_buffer=False) as file:
        _require(path, columns, file.schema_arrow.names)
        for batch in file.iter_batches(_batch_rows(file.metadata, columns), columns=list(columns)):
            yield pa.Table.from_batches([batch])


def _batch_rows(metadata: pq.FileMetaData, columns: Sequence[str]) -> int:
    if _EVENTS not in columns:
        return BATCH_ROWS
    n_events = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        parts = (group.column(place) for place in range(group.num_columns))
        n_events += sum(part.num_values for part in parts if part.path_in_schema.startswith(_EVENTS))
    return max(1, min(BATCH_ROWS, BATCH_EVENTS * int(metadata.num_rows) // max(n_events, 1)))


def read_phase_facts(path: Path) -> dict[str, Any]:
    """The phase's facts out of the file's metadata; empty when there are none.

    Raises Incomplete when the file is missing or broken.
    """
    with _faults_named(path), pq.ParquetFile(path) as file:
        raw = (file.metadata.metadata or {}).get(PHASE_KEY.encode())
    value = json.loads(raw) if raw else {}
    return value if isinstance(value, dict) else {}
