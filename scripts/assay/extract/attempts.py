"""attempts.csv: every attempt at every stage, from the evidence itself, whatever became of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.digest import canonical_json, sha256_of_file
from assay.records.campaign import Campaign, list_attempts, open_campaign
from assay.records.files import write_text
from assay.vocab import AttemptState, Reason, StageState

COLUMNS = {
    "attempt_id": "`<session_id>/<folder of the stage>`; empty when no session could be had",
    "stage": "which stage",
    "leg": "planned session of an arm",
    "arm": "configuration",
    "point_id": "planned point (load stages)",
    "repeat": "number of the repeat",
    "session_id": "the one life of one server",
    "run_id": "identity of the run",
    "state": "`current`: completed and named by a receipt; `superseded`: completed, and a later attempt took"
    " its place; `failed`: failed, killed or not run; `invalid`: ran, but cannot be trusted",
    "named_by_receipt": "whether a receipt of the campaign stands on this attempt",
    "stage_state": "how the attempt itself ended; `started`: killed before it could say more",
    "reasons": "JSON list of the vocabulary's reasons; a client's and a server's failure are both kept",
    "detail": "one sentence for a person",
    "counts": "JSON: requests issued, ok, failed, incomplete (load stages)",
    "t_start_utc": "when it began",
    "t_end_utc": "when it ended; empty when it was killed",
    "package_sha256": "digest of the sources that ran it",
    "commit": "git commit that ran it",
    "record_path": "its stage.json, or the receipt where there is no stage.json; relative to results/",
    "record_sha256": "digest of that file",
}
_DETAIL_LIMIT = 500


def classify_attempt(stage_state: str, named: bool) -> AttemptState:
    """What an attempt counts for."""
    if stage_state == StageState.INVALID:
        return AttemptState.INVALID
    if stage_state == StageState.COMPLETED:
        return AttemptState.CURRENT if named else AttemptState.SUPERSEDED
    return AttemptState.FAILED


def _describe(body: Mapping[str, Any], path: str, sha256: str, named: bool) -> dict[str, Any]:
    state = str(body.get("state"))
    reasons = [str(word) for word in body.get("reasons") or ()]
    if state == StageState.STARTED and not reasons:
        reasons = [str(Reason.INTERRUPTED)]
    measured = body.get("measured") or {}
    counts = measured.get("counts")
    same = (
        "attempt_id",
        "stage",
        "leg",
        "arm",
        "point_id",
        "repeat",
        "session_id",
        "run_id",
        "t_start_utc",
        "t_end_utc",
        "package_sha256",
        "commit",
    )
    detail = body.get("detail")
    return {name: body.get(name) for name in same} | {
        "state": str(classify_attempt(state, named)),
        "named_by_receipt": named,
        "stage_state": state,
        "reasons": canonical_json(reasons),
        "detail": str(detail)[:_DETAIL_LIMIT] if detail else None,
        "counts": canonical_json(counts) if isinstance(counts, Mapping) else None,
        "record_path": path,
        "record_sha256": sha256,
    }


def collect_attempts(campaign: Campaign) -> list[dict[str, Any]]:
    """One dict per attempt, in order of time: those in the evidence, and receipts that have no stage
    record."""
    named = {
        record["path"]: record.get("sha256")
        for receipt in campaign.receipts
        if isinstance(record := receipt.body.get("stage_record"), Mapping)
    }
    found = []
    for path, body in list_attempts(campaign):
        if body is None:
            broken = {"state": "unreadable", "reasons": [], "detail": "the record cannot be read"}
            if path not in named:
                continue  # whose it was cannot be told, and nothing names it
            body = broken
        sha256 = sha256_of_file(campaign.results / path)
        found.append(_describe(body, path, sha256, named.get(path) == sha256))
    for receipt in campaign.receipts:
        leg_stage = receipt.leg is not None and receipt.body.get("state") is not None
        if leg_stage and not isinstance(receipt.body.get("stage_record"), Mapping):
            found.append(_describe(receipt.body, receipt.path, receipt.sha256, True))
    return sorted(found, key=lambda one: (one["t_start_utc"] or "", one["record_path"]))


def extract_attempts(campaign_dir: Path) -> list[dict[str, Any]]:
    """attempts of a campaign's folder."""
    return collect_attempts(open_campaign(campaign_dir))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def format_csv(attempts: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(one[name]) for name in COLUMNS] for one in attempts)
    return out.getvalue()


def write(campaign_dir: Path, attempts_csv: Path) -> None:
    """Write attempts.csv."""
    write_text(attempts_csv, format_csv(extract_attempts(campaign_dir)))
