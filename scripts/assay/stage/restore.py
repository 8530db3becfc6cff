"""Finished stages of a group job whose outputs Snakemake deleted, taken back from the evidence.

On a cluster a leg is one group job; when one member fails, Snakemake removes the outputs of all. Until the
leg is closed (its session has a manifest), a stage with the very spec that is asked again is not measured
again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from assay.digest import canonical_json, sha256_of_bytes
from assay.errors import Incomplete
from assay.records.files import read_json
from assay.stage.attempt import write_receipt
from assay.vocab import StageState

RESTORE_VARIABLE = "ASSAY_RESTORE_STAGES"
MANIFEST = "MANIFEST.sha256"


def restore(spec: dict[str, Any], results: Path, evidence: str, receipt: Path) -> dict[str, Any] | None:
    """The receipt of a completed attempt at ``spec``, written again; None when there is none to restore."""
    if not os.environ.get(RESTORE_VARIABLE):
        return None
    wanted = sha256_of_bytes(canonical_json(spec).encode())
    for record_file in sorted((results / evidence).rglob("stage.json"), reverse=True):
        session_folder = results / evidence / record_file.relative_to(results / evidence).parts[0]
        if (session_folder / MANIFEST).exists():
            continue
        try:
            record: dict[str, Any] = read_json(record_file)
        except Incomplete:
            continue  # being written, or torn by what ended the job: it is measured again
        if record["spec_sha256"] == wanted and record["state"] == StageState.COMPLETED:
            write_receipt(receipt, record, record_file, results)
            return record
    return None
