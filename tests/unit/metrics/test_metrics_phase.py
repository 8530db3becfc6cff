"""Tables of requests that are larger than memory should be: read in parts, reduced part by part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.errors import Incomplete
from assay.metrics.aggregate import gap_percentiles
from assay.metrics.phase import read_phase
from assay.records.columns import list_array_of
from assay.records.requests import BATCH_EVENTS, BATCH_ROWS, REQUEST_SCHEMA, read_batches

GROUPS, ROWS, EVENTS = 24, 60, 2_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A file of 24 row groups with 120,000 events each, and all gaps between the events of its ok requests (ns)."""
    path = tmp_path_factory.mktemp("large") / "requests.parquet"
    random = np.random.default_rng(7)
    kept = []
    with pq.ParquetWriter(path, REQUEST_SCHEMA) as writer:
        for group in range(GROUPS):
            gaps = random.integers(1, 10**9, (ROWS, EVENTS))
            offsets = np.cumsum(gaps, axis=1)
            sends = np.arange(ROWS) + group * ROWS
            columns = {field.name: pa.nulls(ROWS, field.type) for field in REQUEST_SCHEMA}
            columns |= {name: pa.array(["x"] * ROWS) for name in ("request_id", "prompt_id", "point_id")}
            columns["status"] = pa.array(["failed"] + ["ok"] * (ROWS - 1))
            columns["worker"], columns["terminal_seen"] = (
                pa.array([0] * ROWS, pa.int32()),
                pa.array([True] * ROWS),
            )
            columns["t_send_ns"], columns["t_end_ns"] = pa.array(sends), pa.array(sends + offsets[:, -1])
            columns["chunk_offsets_ns"] = list_array_of(offsets.ravel(), np.arange(ROWS + 1) * EVENTS)
            writer.write_table(pa.table(columns, schema=REQUEST_SCHEMA))
            kept.append(np.diff(offsets[1:], axis=1).ravel())
    return path, np.concatenate(kept)


def test_reading_in_parts_keeps_no_more_than_a_part(large: tuple[Path, np.ndarray]) -> None:
    """However long the file is, what is read of it and gone through is given back, and parts have a size."""
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    for table in read_batches(large[0], ["status", "chunk_offsets_ns"]):
        assert table.num_rows * EVENTS <= BATCH_EVENTS
        rows += table.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == GROUPS * ROWS
    assert most < large[0].stat().st_size / 4
    (narrow,) = read_batches(large[0], ["status"])
    assert narrow.num_rows == GROUPS * ROWS <= BATCH_ROWS


def test_percentiles_of_gaps_that_are_never_all_in_memory_are_exact(large: tuple[Path, np.ndarray]) -> None:
    """They are numpy's over all gaps of ok requests, and those of two windows together are so too."""
    path, gaps = large
    for phases, values in (([read_phase(path)], gaps), ([read_phase(path)] * 2, np.tile(gaps, 2))):
        found = gap_percentiles(phases)
        assert (found["n"], found["min"], found["max"]) == (len(values), gaps.min() / 1e6, gaps.max() / 1e6)
        assert found["mean"] == pytest.approx(values.mean() / 1e6)
        expected = np.percentile(values / 1e6, [50, 90, 99])
        assert [found["p50"], found["p90"], found["p99"]] == pytest.approx(expected.tolist(), rel=1e-12)


def test_a_table_that_is_none_is_named(tmp_path: Path) -> None:
    """A missing file, a broken one and one without a column are told by their path, and with what is missing."""
    path = tmp_path / "requests.parquet"
    with pytest.raises(Incomplete, match=r"requests\.parquet: not there"):
        read_phase(path)
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(Incomplete, match=r"requests\.parquet: cannot be read"):
        read_phase(path)
    pq.write_table(pa.table({"status": ["ok"]}), path)
    with pytest.raises(Incomplete, match=r"requests\.parquet: has no column error_class, "):
        read_phase(path)
