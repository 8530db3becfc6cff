"""What stands behind rows: their point of the report, their session, their prompts, and what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.audit.outcome import AuditReport
from assay.audit.recompute import read_rows_csv, same
from assay.digest import sha256_of_file, sha256_of_value
from assay.errors import Incomplete
from assay.extract.rows import Row
from assay.records.campaign import Campaign
from assay.vocab import AuditResult


def origin(session_id: str, rows: Sequence[Row], plan: Mapping[str, Any]) -> dict[str, Any]:
    """What served the ``rows`` of one session: engine, image, model, commit, prompts."""
    first = rows[0]
    arm = plan["arms"][first["arm"]]
    return {
        "session_id": session_id,
        "run_id": first["run_id"],
        "engine": arm.get("engine"),
        "image": f"{arm.get('image')}@{str(arm.get('image_digest'))[:12]}",
        "model": f"{arm.get('model')}@{str(arm.get('model_sha256'))[:12]}",
        "commit": first["commit"],
        "prompts": sorted({row["prompts_sha256"] for row in rows if row["prompts_sha256"]}),
        "readback": first["readback_path"],
    }


def add_row_point(report: AuditReport, folder: Path, row: Row, doubted: bool) -> None:
    """A row's rate as a point of the report: stored and recomputed, with population and reasons."""
    stored: Any = None
    try:
        held = read_rows_csv(folder / "extracts" / "rows.csv")
        stored = next((one["output_tok_s"] for one in held if one["row_id"] == row["row_id"]), None)
    except (Incomplete, KeyError):
        pass  # that rows.csv is not there or broken is told by its own check
    fresh = None if doubted else row["output_tok_s"]
    if not doubted and not same(stored, fresh):
        path = f"{folder.name}/extracts/rows.csv"
        detail = f"{row['row_id']}: output_tok_s is {stored!r}, recomputed {fresh!r}"
        report.say("rows", AuditResult.MISMATCH, detail, path)
    report.points.append(
        {
            "arm": row["arm"],
            "point_id": row["point_id"],
            "x": row["concurrency"],
            "metric": "output_tok_s",
            "shown": stored,
            "recomputed": fresh,
            "agrees": None if doubted else same(stored, fresh),
            "statistic": row["kind"],
            "n": row["n_ok"],
            "population": row["population"],
            "rows": [row["row_id"]],
            "excluded": {row["row_id"]: row["reasons"]} if row["invalid"] else {},
            "flagged": {row["row_id"]: row["reasons"]} if row["reasons"] and not row["invalid"] else {},
        }
    )


def check_prompts(report: AuditReport, campaign: Campaign, rows: Sequence[Row]) -> None:
    """The prompts of a point, where their file is kept, are the ones its receipts name."""
    for point_id in dict.fromkeys(row["point_id"] for row in rows):
        path = campaign.folder / "prompts" / f"{point_id}.jsonl"
        named = {
            row["prompts_sha256"] for row in rows if row["point_id"] == point_id and row["prompts_sha256"]
        }
        if path.is_file() and named and named != {sha256_of_file(path)}:
            detail = f"{point_id}: a receipt names other prompts than are kept"
            report.say("prompts", AuditResult.MISMATCH, detail, f"{campaign.folder.name}/prompts/{path.name}")


def check_asked(report: AuditReport, campaign: Campaign, rows: Sequence[Row]) -> None:
    """Each receipt was asked the point and the server that the plan has, and the plan is one with itself."""
    plan, path = campaign.plan, f"{campaign.folder.name}/plan.json"
    loads = {row["receipt_path"]: row.load for row in rows if row.load is not None}
    for receipt_path, load in sorted(loads.items()):
        if load.otherwise:
            keys = ", ".join(load.otherwise)
            report.say(
                "plan", AuditResult.MISMATCH, f"was asked another {keys} than the plan has", receipt_path
            )
    publication = plan.get("publication") or {}
    if "object" in publication and sha256_of_value(publication["object"]) != publication.get("sha256"):
        report.say("plan", AuditResult.MISMATCH, "publication.sha256 is not that of its object", path)
    for name, arm in plan["arms"].items():
        image = (plan.get("images") or {}).get(arm.get("image")) or {}
        if image.get("digest") != arm.get("image_digest"):
            report.say("plan", AuditResult.MISMATCH, f"images and arms.{name} name other digests", path)
