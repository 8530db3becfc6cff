"""The table of requests as it is written while a load runs, and what is read back from it."""

from __future__ import annotations

from array import array
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from assay.load.journal import Row
from assay.load.proof import spans
from assay.load.table import (
    GROUP_AGE_S,
    PIECES_PER_GROUP,
    ROWS_PER_PIECE,
    RequestTableWriter,
    RowContext,
)
from assay.records.requests import read_phase_facts, read_requests

PROMPTS = ["a", "b", "c"]
T0_NS = 10**15
ROWS_PER_GROUP = PIECES_PER_GROUP * ROWS_PER_PIECE


def row(index: int, t_send_ns: int | None = T0_NS, times_ns: tuple[int, ...] = ()) -> Row:
    """A request that was sent, or was due and never sent."""
    return Row(
        index=index,
        prompt=index % len(PROMPTS),
        worker=0,
        measured=True,
        status="ok" if times_ns else "incomplete",
        error_class=None,
        error_text=None,
        body=None,
        http_status=None,
        finish_reason=None,
        terminal_seen=bool(times_ns),
        timestamp_source="kernel" if times_ns else None,
        t_scheduled_ns=T0_NS,
        t_send_ns=t_send_ns,
        t_headers_ns=times_ns[0] if times_ns else None,
        t_first_event_ns=None,
        t_first_answer_ns=None,
        t_end_ns=T0_NS + 9_000 + index,
        output_times=array("q", times_ns).tobytes(),
        n_prompt=None,
        n_cached=None,
        n_output=len(times_ns) or None,
        n_reasoning=None,
        n_first_chunk=None,
        reasoning_seen=False,
        think_tag_seen=False,
        n_resent=0,
        texts=None,
    )


def writer(path: Path) -> RequestTableWriter:
    plan = {"ids": PROMPTS, "requested": [5, 6, 7], "ignore_eos": [False] * 3}
    record = {"point_id": "p", "session_id": None, "n_planned_prompt": None, "measured": plan}
    return RequestTableWriter(path, RowContext(record))


@pytest.mark.parametrize("n", [0, 1, ROWS_PER_PIECE, ROWS_PER_GROUP + ROWS_PER_PIECE + 1])
def test_every_row_once_and_few_groups(tmp_path: Path, n: int) -> None:
    """Rows come back in their order with their own values, whatever piece and row group they fell into."""
    table = writer(tmp_path / "requests.parquet")
    for index in range(n):
        events = tuple(T0_NS + 100 + index + 7 * k for k in range(index % 4))
        table.add(row(index, times_ns=events), now_s=0.0)
    table.finish({"window": False})
    read = read_requests(tmp_path / "requests.parquet").to_pylist()
    assert [one["request_id"] for one in read] == [f"r{index:06d}" for index in range(n)]
    assert [one["prompt_id"] for one in read] == [PROMPTS[index % 3] for index in range(n)]
    assert [one["n_requested"] for one in read] == [5 + index % 3 for index in range(n)]
    assert [one["chunk_offsets_ns"] for one in read] == [
        [100 + index + 7 * k for k in range(index % 4)] for index in range(n)
    ]
    with pq.ParquetFile(tmp_path / "requests.parquet") as file:
        sizes = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
    assert sizes == [size for size in (min(n, ROWS_PER_GROUP), n - ROWS_PER_GROUP) if size > 0]
    assert read_phase_facts(tmp_path / "requests.parquet") == {"window": False}


def test_a_slow_load_ends_its_row_groups_by_age(tmp_path: Path) -> None:
    """A row group is written a minute after its first row, so a crash loses no more than that."""
    table = writer(tmp_path / "requests.parquet")
    for index, now_s in enumerate((0.0, GROUP_AGE_S - 1, GROUP_AGE_S, GROUP_AGE_S + 1)):
        table.add(row(index), now_s)
    table.finish({})
    with pq.ParquetFile(tmp_path / "requests.parquet") as file:
        assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [3, 1]


def test_spans_are_those_of_requests_that_were_sent(tmp_path: Path) -> None:
    """Sends and ends of all tables, to the nanosecond; a request that was never sent was never in flight."""
    for name, first in (("requests", 0), ("opening", 10)):
        table = writer(tmp_path / f"{name}.parquet")
        for index in (first, first + 1, first + 2):
            table.add(row(index, t_send_ns=None if index == 1 else T0_NS + index), 0.0)
        table.finish({})
    sends, ends = spans([tmp_path / "requests.parquet", tmp_path / "opening.parquet"])
    assert sends.tolist() == [T0_NS + n for n in (0, 2, 10, 11, 12)]
    assert ends.tolist() == [T0_NS + 9_000 + n for n in (0, 2, 10, 11, 12)]
    assert [len(part) for part in spans([])] == [0, 0]
