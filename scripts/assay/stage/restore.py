"""Finished stages whose receipts Snakemake deletes, taken back from the evidence.

Two things make it delete one. On a cluster a leg is one group job; when one member fails, the outputs of all
go: until the leg is closed (its session has a manifest), a stage with the very spec that is asked again is not
measured again. And when Snakemake ends between a stage's receipt and its own note of it, it takes the receipt
for a torn file and runs the stage again: such a receipt is whole, since it is written last and at once.
"""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.digest import sha256_of_value
from assay.errors import Incomplete
from assay.records.files import read_json
from assay.stage.attempt import write_receipt
from assay.vocab import StageState

RESTORE_VARIABLE = "ASSAY_RESTORE_STAGES"
UNNOTED_VARIABLE = "ASSAY_UNNOTED_RECEIPTS"
MANIFEST = "MANIFEST.sha256"


def unnoted_receipts(root: Path) -> dict[str, str]:
    """Receipt -> its record (from the results folder), of receipts that are there and that Snakemake, ended in
    that moment, has not noted as finished. Its mark is a file whose name is the output's in base64, long ones
    split over folders named `@...`; it is set when a job starts, after the old output was deleted."""
    marks = root / ".snakemake" / "incomplete"
    found: dict[str, str] = {}
    for mark in marks.rglob("*"):
        if not mark.is_file():
            continue
        name = "".join(part.removeprefix("@") for part in mark.relative_to(marks).parts)
        try:
            output = urlsafe_b64decode(name).decode()
            if "receipts" not in Path(output).parts:
                continue  # prompts, tables, charts: large, and made again from files
            receipt = read_json(root / output)
        except (ValueError, Incomplete):
            continue  # no receipt was written
        record = receipt.get("stage_record") if isinstance(receipt, dict) else None
        if record is not None:
            found[output] = record["path"]
    return found


def restore(spec: dict[str, Any], results: Path, evidence: str, receipt: Path) -> dict[str, Any] | None:
    """The receipt of a completed attempt at ``spec``, written again; None when there is none to restore."""
    wanted = sha256_of_value(spec)
    for record_file in _candidates(results, evidence, receipt):
        try:
            record: dict[str, Any] = read_json(record_file)
        except Incomplete:
            continue  # being written, or torn by what ended the job: it is measured again
        if record["spec_sha256"] == wanted and record["state"] == StageState.COMPLETED:
            write_receipt(receipt, record, record_file, results)
            return record
    return None


def _candidates(results: Path, evidence: str, receipt: Path) -> Iterator[Path]:
    """Records that the receipt may be written from again."""
    unnoted = json.loads(os.environ.get(UNNOTED_VARIABLE) or "{}")
    if receipt.as_posix() in unnoted:
        yield results / unnoted[receipt.as_posix()]
    if os.environ.get(RESTORE_VARIABLE):
        for record_file in sorted((results / evidence).rglob("stage.json"), reverse=True):
            session_folder = results / evidence / record_file.relative_to(results / evidence).parts[0]
            if not (session_folder / MANIFEST).exists():
                yield record_file
