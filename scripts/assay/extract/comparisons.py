"""comparisons.json and comparison.csv: the arms that the campaign sets side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.digest import canonical_json
from assay.extract.rows import Row, build_rows
from assay.records.campaign import Campaign, open_campaign
from assay.records.files import write_json, write_text
from assay.verdict.compare import (
    METRICS,
    classify,
    compare_point,
    compute_differences,
    read_settings,
    resolved_settings,
    run_order,
)

CONDITIONS = (
    "workload",
    "workload_kind",
    "concurrency",
    "requests_planned",
    "issue_s",
    "max_tokens",
    "ignore_eos",
    "planned_prompt_tokens",
    "stand_in_prompts",
)
CSV_COLUMNS = (
    "comparison",
    "kind",
    "declared_factor",
    "differences",
    "run_order",
    "point_id",
    *CONDITIONS,
    "metric",
    "numerator_arm",
    "numerator",
    "numerator_n",
    "numerator_min",
    "numerator_max",
    "numerator_statistic",
    "denominator_arm",
    "denominator",
    "denominator_n",
    "denominator_min",
    "denominator_max",
    "denominator_statistic",
    "ratio",
    "ratio_low",
    "ratio_high",
    "separation",
    "publishable",
)


def _read_back(rows: Sequence[Row]) -> dict[str, Any]:
    """What the servers behind an arm's rows said: merged settings, mismatches, keys on which its sessions
    differ."""
    merged: dict[str, Any] | None = None
    unstable: set[str] = set()
    mismatches: dict[str, Any] = {}
    sessions: dict[str, bool] = {}
    for row in rows:
        if row.load is None or row["session_id"] is None or row["session_id"] in sessions:
            continue
        readback = row.load.record.readback
        read = read_settings(readback)
        sessions[row["session_id"]] = read is not None
        if read is None or readback is None:
            continue
        for entry in readback.get("mismatches") or ():
            mismatches[str(entry.get("key"))] = entry
        if merged is None:
            merged = dict(read)
            continue
        unstable |= {key for key in merged.keys() & read.keys() if merged[key] != read[key]}
        merged = read | merged
    return {
        "settings": merged,
        "complete": bool(sessions) and all(sessions.values()) and bool(merged),
        "sessions": sorted(sessions),
        "unstable": sorted(unstable),
        "mismatches": [mismatches[key] for key in sorted(mismatches)],
    }


def _of(rows: Sequence[Row], arm: str, point_id: str, *kinds: str) -> list[dict[str, Any]]:
    """Values of an arm's rows at a point, in the order the sessions ran."""
    found = [
        row.values
        for row in rows
        if (row["arm"], row["point_id"]) == (arm, point_id) and row["kind"] in kinds
    ]
    return sorted(found, key=lambda r: (r["t_start_utc"] or "", r["leg_rank"] or 0, r["repeat"] or 0))


def _prompts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({row["prompts_sha256"] for row in rows if row["prompts_sha256"]})


def _points(rows: Sequence[Row], plan: Mapping[str, Any], top: str, base: str) -> tuple[list[Any], list[Any]]:
    """(one record per point that both arms have, differences of the prompts)."""
    points, differences = [], []
    for point_id, point in plan["points"].items():
        sustained = point["kind"] == "sustained"
        kinds = ("pooled",) if sustained else ("repeat",)
        tops, bases = _of(rows, top, point_id, *kinds), _of(rows, base, point_id, *kinds)
        if not tops and not bases:
            continue
        windows = (
            (_of(rows, top, point_id, "window"), _of(rows, base, point_id, "window")) if sustained else None
        )
        sent = (_prompts(tops), _prompts(bases))
        if tops and bases and sent[0] != sent[1]:
            differences.append(
                {
                    "key": f"prompts.{point_id}",
                    "seen_in": ["receipts"],
                    "numerator": {"asked": sent[0], "read": None},
                    "denominator": {"asked": sent[1], "read": None},
                }
            )
        first = (tops or bases)[0]
        points.append(
            {
                "point_id": point_id,
                "kind": point["kind"],
                "conditions": {name: first[name] for name in CONDITIONS},
                "metrics": [compare_point(tops, bases, metric, windows) for metric in METRICS],
            }
        )
    return points, differences


def compare_arms(campaign: Campaign, rows: Sequence[Row], entry: Mapping[str, Any]) -> dict[str, Any]:
    """One planned comparison: differences, what it may be called, and the ratio of each metric at each
    point."""
    plan, top, base = campaign.plan, entry["numerator"], entry["denominator"]
    by_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in (top, base)}
    read = {arm: _read_back(by_arm[arm]) for arm in (top, base)}
    differences = compute_differences(
        resolved_settings(plan["arms"][top]),
        resolved_settings(plan["arms"][base]),
        read[top]["settings"],
        read[base]["settings"],
    )
    points, prompt_differences = _points(rows, plan, top, base)
    differences += prompt_differences
    wrong = [f"{arm}: {m['key']}" for arm in (top, base) for m in read[arm]["mismatches"]]
    wrong += [
        f"{arm}: {key} changed between sessions" for arm in (top, base) for key in read[arm]["unstable"]
    ]
    kind, why = classify(
        differences,
        entry.get("declared_factor"),
        read_back=read[top]["complete"] and read[base]["complete"],
        mismatches=wrong,
    )
    ran = sorted(
        {(row["t_start_utc"] or "", row["leg"]) for arm in (top, base) for row in by_arm[arm] if row.load}
    )
    legs = list(dict.fromkeys(leg for _, leg in ran))
    return {
        "name": entry["name"],
        "numerator": top,
        "denominator": base,
        "declared_factor": entry.get("declared_factor"),
        "kind": str(kind),
        "why_not_matched": why,
        "differences": differences,
        "read_back": {
            arm: {key: read[arm][key] for key in read[arm] if key != "settings"} for arm in (top, base)
        },
        "run_order": {
            "planned": str(run_order((plan["legs"][leg]["arm"] for leg in plan["order"]), top, base)),
            "legs": legs,
        },
        "points": points,
    }


def make_comparisons(campaign: Campaign, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "schema": "assay/comparisons/1",
        "campaign": campaign.name,
        "comparisons": [
            compare_arms(campaign, rows, entry) for entry in campaign.plan.get("comparisons") or ()
        ],
    }


def extract_comparisons(campaign_dir: Path) -> dict[str, Any]:
    """comparisons of a campaign's folder."""
    campaign = open_campaign(campaign_dir)
    return make_comparisons(campaign, build_rows(campaign))


def _csv_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    lines = []
    for comparison in record["comparisons"]:
        for point in comparison["points"]:
            for metric in point["metrics"]:
                line: dict[str, Any] = {
                    "comparison": comparison["name"],
                    "kind": comparison["kind"],
                    "declared_factor": canonical_json(comparison["declared_factor"]),
                    "differences": canonical_json([d["key"] for d in comparison["differences"]]),
                    "run_order": comparison["run_order"]["planned"],
                    "point_id": point["point_id"],
                    **point["conditions"],
                    "metric": metric["metric"],
                    "ratio": metric["ratio"],
                    "ratio_low": metric["interval"]["low"],
                    "ratio_high": metric["interval"]["high"],
                    "separation": metric["separation"],
                    "publishable": metric["publishable"],
                }
                for side in ("numerator", "denominator"):
                    operand = metric[side]
                    line |= {
                        f"{side}_arm": comparison[side],
                        side: operand["median"],
                        **{f"{side}_{key}": operand[key] for key in ("n", "min", "max", "statistic")},
                    }
                lines.append(line)
    return lines


def format_csv(record: Mapping[str, Any]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for line in _csv_rows(record):
        cells = (line[name] for name in CSV_COLUMNS)
        writer.writerow(
            ""
            if c is None
            else (str(c).lower() if isinstance(c, bool) else repr(c) if isinstance(c, float) else c)
            for c in cells
        )
    return out.getvalue()


def write_comparisons(record: Mapping[str, Any], comparisons_json: Path, comparison_csv: Path) -> None:
    write_json(comparisons_json, record)
    write_text(comparison_csv, format_csv(record))


def write(campaign_dir: Path, comparisons_json: Path, comparison_csv: Path) -> None:
    """Write comparisons.json and its flat form comparison.csv."""
    write_comparisons(extract_comparisons(campaign_dir), comparisons_json, comparison_csv)
