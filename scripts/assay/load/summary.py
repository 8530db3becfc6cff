"""From the records of a load to its aggregates, and from journals to records after a crash."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from assay.errors import Incomplete
from assay.load.journal import JournalReader
from assay.load.phase import OPENING, REQUESTS
from assay.load.table import RequestTableWriter, RowContext
from assay.metrics.aggregate import summarise_phase
from assay.metrics.phase import read_phase
from assay.records.files import read_json
from assay.records.requests import read_batches, read_phase_facts


def summarise(out_dir: Path, n_gpus: int | None = None) -> dict[str, Any]:
    """All aggregates of ``out_dir/requests.parquet``. Pure. Raises Incomplete when the file is not usable."""
    requests, opening = out_dir / REQUESTS, out_dir / OPENING
    facts = read_phase_facts(requests)
    start_ns, end_ns = facts.get("t_start_ns"), facts.get("t_issue_end_ns")
    window = None
    if facts.get("window") and start_ns is not None and end_ns is not None:
        window = int(start_ns), int(end_ns)
    before = partial(read_batches, opening) if window and opening.is_file() else None
    phase = read_phase(requests, window)
    return summarise_phase(phase, n_gpus=n_gpus, opening=before)


def recover(out_dir: Path) -> dict[str, Any]:
    """Make ``requests.parquet`` of the journals that a broken-off load left. Counts of rows and torn bytes.

    Raises Incomplete when there is nothing to recover from or the load still runs, and then leaves no table.
    The journals stay.
    """
    context = RowContext(read_json(out_dir / "journal-plan.json"))
    paths = sorted(path for path in out_dir.glob("journal-*.bin") if path.name != "journal-held.bin")
    if not paths:
        raise Incomplete(f"{out_dir}: no journal")
    if not any(path.stat().st_size for path in paths):
        raise Incomplete(f"{out_dir}: no request had ended")
    writer = RequestTableWriter(out_dir / REQUESTS, context)
    n_torn = 0
    try:
        for path in paths:
            reader = JournalReader(path, alone=True)
            for row in reader.rows():
                if row.measured:
                    writer.add(row, time.monotonic())
            n_torn += reader.torn_bytes
            reader.close()
        writer.finish({"recovered": True, "window": False})
    except BaseException:
        writer.discard()
        raise
    return {"rows": writer.n_rows, "torn_bytes": n_torn}
