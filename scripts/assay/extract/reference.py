"""Published figures beside measured ones. The published ones are facts with their source, never our
measurement."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.config.campaign import REHEARSAL_SUFFIX
from assay.errors import BadInput
from assay.records.campaign import Campaign
from assay.verdict.spread import summarise_repeats

COLUMNS = (
    "campaign",
    "arm",
    "workload",
    "concurrency",
    "metric",
    "unit",
    "value",
    "statistic",
    "source",
    "note",
)
ROW_METRICS = {
    ("output_throughput", "tokens/s", ""): ("output_tok_s", 1.0),
    ("ttft", "ms", "p50"): ("ttft_ms_p50", 1.0),
    ("ttft", "ms", "p99"): ("ttft_ms_p99", 1.0),
    ("ttft", "s", "p50"): ("ttft_ms_p50", 1e-3),
    ("ttft", "s", "p99"): ("ttft_ms_p99", 1e-3),
    ("tpot", "ms", "p50"): ("tpot_ms_p50", 1.0),
    ("e2e", "s", "p99"): ("e2e_ms_p99", 1e-3),
    ("served_rate", "tokens/s", ""): ("served_rate_tok_s_p50", 1.0),
}
"""(published metric, unit, percentile) -> (column of rows.csv, factor into the published unit)."""


def read_reference(path: Path) -> list[dict[str, str]]:
    """The rows of a reference file. Raises BadInput naming a missing column or a row without a source."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise BadInput(
                    f"has no column {', '.join(missing)}", where=path, hint=f"columns: {', '.join(COLUMNS)}"
                )
            rows = [dict(row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput("cannot be read as a reference", where=path) from error
    for number, row in enumerate(rows, start=2):
        if not row["source"]:
            raise BadInput("a fact without its source", where=f"{path}:{number}", key="source")
    return rows


def _percentile(statistic: str) -> str:
    word = statistic.split(" ")[0]
    return word if word in ("p50", "p90", "p99") else ""


def published_value(row: Mapping[str, str]) -> float | None:
    """The figure as a number; None for ranges and scores, which stay text."""
    try:
        return float(row["value"])
    except ValueError:
        return None


def _measured(
    rows: Sequence[Mapping[str, Any]],
    reference: Mapping[str, str],
    points: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
) -> tuple[float | None, str | None, str | None, list[str]]:
    """(value in the published unit, statistic, why there is none, rows behind it)."""
    key = (reference["metric"], reference["unit"], _percentile(reference["statistic"]))
    if key not in ROW_METRICS:
        return None, None, "no counterpart among the rows' columns", []
    column, factor = ROW_METRICS[key]
    names = {name: names.get(name, name) for name in {row["workload"] for row in rows}}
    sustained = reference["workload"].startswith(("sustained_", "soak_"))
    workload = reference["workload"].removeprefix("sustained_").removeprefix("soak_")
    behind = [
        row
        for row in rows
        if row["arm"] == reference["arm"]
        and workload in (names[row["workload"]], row["point_id"])
        and str(row["concurrency"]) == reference["concurrency"]
        and (points[row["point_id"]]["kind"] == "sustained") == sustained
        and row["kind"] == ("pooled" if sustained else "repeat")
    ]
    used = [row for row in behind if row[column] is not None and not row["invalid"]]
    if not used:
        return None, None, "not measured" if not behind else "no valid row with a value", []
    spread = summarise_repeats([row[column] * factor for row in used])
    said = "pooled over windows" if sustained else f"median of {spread['n']}"
    flag = "" if all(row["publishable"] for row in used) else ", not publishable"
    return spread["median"], said + flag, None, [row["row_id"] for row in used]


def side_by_side(
    reference: Sequence[Mapping[str, str]], campaign: Campaign, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Each published row of this campaign with what was measured for it."""
    lines = []
    published_as = campaign.plan.get("published") or {}
    name = published_as.get("campaign") or campaign.name.removesuffix(REHEARSAL_SUFFIX)
    for row in reference:
        if row["campaign"] != name:
            continue
        measured, statistic, why, behind = _measured(
            rows, row, campaign.plan["points"], published_as.get("workloads") or {}
        )
        published = published_value(row)
        lines.append(
            {
                **{
                    name: row[name]
                    for name in ("arm", "workload", "concurrency", "metric", "unit", "source", "note")
                },
                "published": published if published is not None else row["value"],
                "published_statistic": row["statistic"],
                "measured": measured,
                "measured_statistic": statistic,
                "measured_over_published": measured / published
                if measured is not None and published
                else None,
                "why_null": why,
                "rows": behind,
            }
        )
    return {"schema": "assay/reference_comparison/1", "campaign": campaign.name, "lines": lines}
