"""summary.json (correctness and measurements together) and findings.json (what failed, beside what was
measured)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.extract.attempts import collect_attempts
from assay.extract.rows import Row, build_rows
from assay.extract.verdicts import make_verdicts
from assay.records.campaign import Campaign, open_campaign
from assay.records.files import write_json
from assay.verdict.spread import drift, summarise_repeats
from assay.vocab import AttemptState, Screen, ScreenResult

METRICS = (
    "output_tok_s",
    "output_tok_s_per_gpu",
    "window_tok_s",
    "ttft_ms_p50",
    "ttft_ms_p90",
    "ttft_ms_p99",
    "tpot_ms_p50",
    "icl_ms_p50",
    "e2e_ms_p50",
    "e2e_ms_p90",
    "e2e_ms_p99",
    "served_rate_tok_s_p50",
    "tokens_per_chunk",
    "acceptance_rate",
)


def summarise_point(rows: Sequence[Row], pooled: Sequence[Row]) -> dict[str, Any]:
    """One arm at one point: each metric over its repeats or windows that can be trusted, flags counted."""
    used = [row for row in rows if not row["invalid"]]
    first = rows[0]
    counts = {
        name: sum(row[name] or 0 for row in rows) for name in ("n_issued", "n_ok", "n_failed", "n_incomplete")
    }
    metrics = {}
    for name in METRICS:
        values = [row[name] for row in used if row[name] is not None]
        if values:
            metrics[name] = summarise_repeats(values) | {"drift": drift(values)["ratio"]}
    return {
        "arm": first["arm"],
        "point_id": first["point_id"],
        "kind": first["kind"],
        "workload": first["workload"],
        "concurrency": first["concurrency"],
        "population": f"{first['kind']}s that are not invalid",
        "rows": len(rows),
        "publishable": sum(1 for row in rows if row["publishable"]),
        "invalid": sum(1 for row in rows if row["invalid"]),
        "requests": counts,
        "metrics": metrics,
        "pooled": [
            {
                "row_id": row["row_id"],
                **{name: row[name] for name in METRICS if row[name] is not None},
                "elapsed_s": row["elapsed_s"],
                "output_tokens": row["output_tokens"],
            }
            for row in pooled
        ],
    }


def _by_point(campaign: Campaign, rows: Sequence[Row]) -> list[dict[str, Any]]:
    found = []
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    for arm in arms:
        for point_id in campaign.plan["points"]:
            mine = [row for row in rows if (row["arm"], row["point_id"]) == (arm, point_id)]
            parts = [row for row in mine if row["kind"] != "pooled"]
            if parts:
                found.append(summarise_point(parts, [row for row in mine if row["kind"] == "pooled"]))
    return found


def make_summary(campaign: Campaign, rows: Sequence[Row], verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Correctness and measurements side by side: gates of each run, then each arm at each point."""
    plan = campaign.plan
    return {
        "schema": "assay/summary/1",
        "campaign": campaign.name,
        "title": plan.get("title"),
        "question": plan.get("question"),
        "verdict": verdicts["verdict"],
        "rehearsal": bool(plan.get("rehearsal")),
        "counts": verdicts["counts"],
        "correctness": [
            {key: run[key] for key in ("run_id", "leg", "arm", "verdict", "gates", "bracket_open")}
            for run in verdicts["runs"]
        ],
        "points": _by_point(campaign, rows),
    }


def make_findings(campaign: Campaign, rows: Sequence[Row], verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Load summaries, gate outcomes, stage states and failed attempts in one place."""
    attempts = collect_attempts(campaign)
    bad = [one for one in attempts if one["state"] in (AttemptState.FAILED, AttemptState.INVALID)]
    screens = {
        str(screen): {
            str(result): sum(1 for row in rows if row["kind"] != "pooled" and row[str(screen)] == result)
            for result in ScreenResult
        }
        for screen in Screen
    }
    return {
        "schema": "assay/findings/1",
        "campaign": campaign.name,
        "verdict": verdicts["verdict"],
        "runs": [
            {
                key: run[key]
                for key in (
                    "run_id",
                    "session_id",
                    "leg",
                    "arm",
                    "verdict",
                    "load",
                    "gates",
                    "findings",
                    "faults",
                )
            }
            for run in verdicts["runs"]
        ],
        "legs": verdicts["legs"],
        "screens": screens,
        "failing_rows": {
            row["row_id"]: {
                "reasons": row["reasons"],
                "findings": [f.as_record() for f in row.findings if f.verdict == ScreenResult.FAIL],
            }
            for row in rows
            if not row["publishable"] and row["kind"] != "pooled"
        },
        "attempts": {
            str(state): sum(1 for one in attempts if one["state"] == state) for state in AttemptState
        },
        "failed_attempts": bad,
    }


def write_summary(
    campaign: Campaign,
    rows: Sequence[Row],
    verdicts: Mapping[str, Any],
    summary_json: Path,
    findings_json: Path,
) -> None:
    write_json(summary_json, make_summary(campaign, rows, verdicts))
    write_json(findings_json, make_findings(campaign, rows, verdicts))


def write(campaign_dir: Path, summary_json: Path, findings_json: Path) -> None:
    """Write summary.json and findings.json."""
    campaign = open_campaign(campaign_dir)
    rows = build_rows(campaign)
    write_summary(campaign, rows, make_verdicts(campaign, rows), summary_json, findings_json)
