"""From the records of a load to its aggregates, and from journals to records after a crash."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from assay.errors import Incomplete
from assay.load.journal import JournalReader
from assay.load.table import RequestTableWriter, RowContext
from assay.metrics.aggregate import summarise_requests
from assay.records.files import read_json
from assay.records.requests import phase_of, read_requests


def summarise(out_dir: Path, n_gpus: int | None = None) -> dict[str, Any]:
    """All aggregates of ``out_dir/requests.parquet``. Pure. Raises Incomplete when the file is not usable."""
    table = read_requests(out_dir / "requests.parquet")
    phase = phase_of(table)
    windowed = bool(phase.get("window"))
    opening = out_dir / "opening.parquet"
    return summarise_requests(
        table,
        window_start_ns=phase.get("t_start_ns") if windowed else None,
        window_end_ns=phase.get("t_issue_end_ns") if windowed else None,
        n_gpus=n_gpus,
        opening=read_requests(opening) if windowed and opening.is_file() else None,
    )


def recover(out_dir: Path) -> dict[str, Any]:
    """Make ``requests.parquet`` of the journals that a broken-off load left. Counts of rows and torn bytes.

    Raises Incomplete when there is nothing to recover from. The journals stay.
    """
    context = RowContext(read_json(out_dir / "journal-plan.json"))
    paths = sorted(path for path in out_dir.glob("journal-*.bin") if path.name != "journal-held.bin")
    if not paths:
        raise Incomplete(f"{out_dir}: no journal")
    writer = RequestTableWriter(out_dir / "requests.parquet", context)
    n_torn = 0
    for path in paths:
        reader = JournalReader(path)
        for row in reader.rows():
            if row.measured:
                writer.add(row, time.monotonic())
        n_torn += reader.torn_bytes
        reader.close()
    writer.finish({"recovered": True, "window": False})
    return {"rows": writer.n_rows, "torn_bytes": n_torn}
