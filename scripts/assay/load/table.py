"""From journal rows to ``requests.parquet``, in row groups, so that memory stays flat."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.load.journal import Row
from assay.load.prompts import Prompt
from assay.load.retokenise import TokenCounter
from assay.load.spec import LoadSpec, body_of, requested_tokens
from assay.records.columns import array_of, list_array_of
from assay.records.files import fsync_folder
from assay.records.requests import PHASE_KEY, REQUEST_SCHEMA

ROWS_PER_PIECE = 200
EVENTS_PER_PIECE = 26_000
"""Rows become columns in pieces of a few milliseconds: the client processes may share the core."""
PIECES_PER_GROUP = 20
"""A row group is written in about 20 ms; the writer's index keeps some 30 KiB of each in memory, for good."""
GROUP_AGE_S = 60.0


class RowContext:
    """What every row of a load shares: identity, plan, prompts. ``record`` is kept beside the journal."""

    def __init__(self, record: dict[str, Any], counter: TokenCounter | None = None) -> None:
        self.record = record
        self.counter = counter

    @classmethod
    def of(cls, spec: LoadSpec, prompts: Sequence[Prompt], opening: Sequence[Prompt] | None) -> RowContext:
        record: dict[str, Any] = {
            "point_id": spec.point_id,
            "session_id": spec.session_id,
            "n_planned_prompt": spec.planned_prompt_tokens,
        }
        for name, several in (("measured", prompts), ("opening", opening or ())):
            bodies = [body_of(spec, prompt) for prompt in several]
            record[name] = {
                "ids": [prompt.id for prompt in several],
                "requested": [requested_tokens(body) for body in bodies],
                "ignore_eos": [bool(body.get("ignore_eos")) for body in bodies],
            }
        return cls(record)

    def of_prompt(self, row: Row, what: str) -> Any:
        return self.record["measured" if row.measured else "opening"][what][row.prompt]


def table_of(rows: Sequence[Row], context: RowContext) -> pa.Table:
    """Shapes: len(rows) rows in the columns of REQUEST_SCHEMA."""
    shared = context.record
    counts = [len(row.output_times) // 8 for row in rows]
    bounds = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    times = np.frombuffer(b"".join(row.output_times for row in rows), dtype=np.int64)
    sends = np.array([row.t_send_ns or 0 for row in rows], dtype=np.int64)
    offsets = times - np.repeat(sends, counts)
    # Coalesced: an event that was in the same read as the one before it has the same stamp to the ns.
    same = np.zeros(len(times) + 1, dtype=np.int64)
    if len(times) > 1:
        same[2:] = np.cumsum(times[1:] == times[:-1])
    n_coalesced = []
    for row, start, end in zip(rows, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if end == start:
            n_coalesced.append(None if row.t_headers_ns is None else 0)
        else:
            n_coalesced.append(int(same[end] - same[start + 1]))
    tokens = [_token_count(row, context.counter) for row in rows]
    edges = list(pairwise(bounds.tolist()))
    first = [int(times[start]) if end > start else None for start, end in edges]
    last = [int(times[end - 1]) if end > start else None for start, end in edges]
    columns: dict[str, Any] = {
        "request_id": [f"{'r' if row.measured else 'o'}{row.index:06d}" for row in rows],
        "prompt_id": [context.of_prompt(row, "ids") for row in rows],
        "point_id": [shared["point_id"]] * len(rows),
        "session_id": [shared["session_id"]] * len(rows),
        "n_coalesced": n_coalesced,
        "t_first_token_ns": first,
        "t_last_token_ns": last,
        "chunk_offsets_ns": list_array_of(offsets, bounds),
        "n_output": [
            row.n_output if row.n_output is not None else n for row, n in zip(rows, tokens, strict=True)
        ],
        "n_output_source": [
            "usage" if row.n_output is not None else ("tokenizer" if n is not None else None)
            for row, n in zip(rows, tokens, strict=True)
        ],
        "n_output_tokenizer": tokens,
        "n_requested": [context.of_prompt(row, "requested") for row in rows],
        "n_planned_prompt": [shared["n_planned_prompt"]] * len(rows),
        "ignore_eos": [context.of_prompt(row, "ignore_eos") for row in rows],
    }
    for field in REQUEST_SCHEMA:
        if field.name not in columns:
            columns[field.name] = [getattr(row, field.name) for row in rows]
    arrays = [
        column if isinstance(column, pa.Array) else array_of(column, field.type)
        for field, column in ((field, columns[field.name]) for field in REQUEST_SCHEMA)
    ]
    return pa.Table.from_arrays(arrays, schema=REQUEST_SCHEMA)


def _token_count(row: Row, counter: TokenCounter | None) -> int | None:
    return None if counter is None or row.texts is None else counter.count(row.texts)


class RequestTableWriter:
    """Writes row groups into a temporary file, which ``finish`` makes ``path``."""

    def __init__(self, path: Path, context: RowContext) -> None:
        self.path, self._context = path, context
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._writer = pq.ParquetWriter(
            self._temporary,
            REQUEST_SCHEMA,
            compression="zstd",
            write_statistics=False,  # they would stay in memory for each column of each group
            use_dictionary=[
                "prompt_id",
                "point_id",
                "session_id",
                "status",
                "finish_reason",
                "timestamp_source",
            ],
            column_encoding={"chunk_offsets_ns.list.element": "DELTA_BINARY_PACKED"},
        )
        self._rows: list[Row] = []
        self._n_events = 0
        self._pieces: list[pa.Table] = []
        self._t_first_s: float | None = None
        self.n_rows = 0

    def add(self, row: Row, now_s: float) -> None:
        """Take a row; ``now_s`` is monotonic, for the age of the open row group."""
        if self._t_first_s is None:
            self._t_first_s = now_s
        self._rows.append(row)
        self.n_rows += 1
        self._n_events += len(row.output_times) // 8
        if len(self._rows) >= ROWS_PER_PIECE or self._n_events >= EVENTS_PER_PIECE:
            self._end_piece()
        if len(self._pieces) >= PIECES_PER_GROUP or now_s - self._t_first_s >= GROUP_AGE_S:
            self.flush()

    def _end_piece(self) -> None:
        if self._rows:
            self._pieces.append(table_of(self._rows, self._context))
            self._rows, self._n_events = [], 0

    def flush(self) -> None:
        """Write the open row group."""
        self._end_piece()
        if self._pieces:
            self._writer.write_table(pa.concat_tables(self._pieces))
            self._pieces, self._t_first_s = [], None

    def finish(self, phase: dict[str, Any]) -> None:
        """Write what is left and the phase's facts (under PHASE_KEY), then put the file in its place."""
        self.flush()
        self._writer.add_key_value_metadata({PHASE_KEY: json.dumps(phase, sort_keys=True)})
        self._writer.close()
        handle = os.open(self._temporary, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(self._temporary, self.path)
        fsync_folder(self.path.parent)

    def discard(self) -> None:
        """The load was broken off: the journal is what stays."""
        try:
            self._writer.close()
        finally:  # on a full disk it cannot be closed
            self._temporary.unlink(missing_ok=True)
