"""chart_data.json: what each chart shows, with the rows behind every point. A chart is made from its entry
alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.extract.comparisons import CONDITIONS, make_comparisons
from assay.extract.rows import Row, build_rows
from assay.records.campaign import Campaign, open_campaign
from assay.records.files import write_json
from assay.verdict.spread import summarise_repeats

CHART_IDS = ("throughput", "ttft", "arms", "sustained")
CURVES = {
    "throughput": ("output_tok_s", "Output throughput", "tokens/s, drain included"),
    "ttft": ("ttft_ms_p50", "Time to first token, p50", "ms"),
}
CARD_METRICS = (
    ("output_tok_s", "Output throughput", "tokens/s · higher is better"),
    ("ttft_ms_p50", "First-token latency", "p50 ms · lower is better"),
    ("tpot_ms_p50", "Time per output token", "p50 ms · lower is better"),
)
CARD_POINTS = 6
WINDOW_METRICS = (
    ("output_tok_s", "Output throughput", "tokens/s, drain included"),
    ("ttft_ms_p50", "First-token latency", "p50 ms"),
    ("e2e_ms_p50", "Request latency", "p50 ms"),
)


def chart_ids(plan: Mapping[str, Any]) -> list[str]:
    """The charts of a campaign: those that have something to show."""
    kinds = {point["kind"] for point in plan["points"].values()}
    finite = ["throughput", "ttft", "arms"] if "finite" in kinds else []
    return finite + (["sustained"] if "sustained" in kinds else [])


def _arms(plan: Mapping[str, Any]) -> list[str]:
    """Arms in the order of their first session."""
    return list(dict.fromkeys(plan["legs"][leg]["arm"] for leg in plan["order"]))


def _label(plan: Mapping[str, Any], arm: str) -> str:
    title = plan["arms"][arm].get("title")
    return f"{arm}: {title}" if title and title != arm else arm


def _dot(row: Row, metric: str) -> dict[str, Any]:
    return {
        "row_id": row["row_id"],
        "run_id": row["run_id"],
        "value": row[metric],
        "n": row["n_ok"],
        "publishable": row["publishable"],
        "invalid": row["invalid"],
        "reasons": row["reasons"],
    }


def make_point(rows: Sequence[Row], metric: str) -> dict[str, Any]:
    """One plotted value: the median of the rows that can be trusted, their spread, and each row as a dot.

    Invalid rows are dots but no part of the median; rows without a value are listed.
    """
    dots = [_dot(row, metric) for row in rows]
    used = [dot["value"] for dot in dots if dot["value"] is not None and not dot["invalid"]]
    spread = summarise_repeats(used)
    first = rows[0]
    return {
        "point_id": first["point_id"],
        "x": first["concurrency"],
        "metric": metric,
        "value": spread["median"],
        "statistic": f"median of {spread['n']}" if spread["n"] > 1 else ("single run" if used else "none"),
        "population": first["population"],
        **{key: spread[key] for key in ("n", "min", "max", "spread_ratio")},
        "publishable": bool(used) and all(dot["publishable"] or dot["invalid"] for dot in dots),
        "dots": [dot for dot in dots if dot["value"] is not None],
        "unmeasured": [
            {"row_id": dot["row_id"], "reasons": dot["reasons"]} for dot in dots if dot["value"] is None
        ],
    }


def _rows_of(rows: Sequence[Row], arm: str, point_id: str, kind: str) -> list[Row]:
    return [row for row in rows if (row["arm"], row["point_id"], row["kind"]) == (arm, point_id, kind)]


def _conditions(rows: Sequence[Row]) -> dict[str, Any]:
    return {name: rows[0][name] for name in (*CONDITIONS, "gpus")}


def _finish(
    entry: dict[str, Any],
    plan: Mapping[str, Any],
    points: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Add what every entry has: the rows and runs behind it, and what a reader must be told."""
    dots = [dot for point in points for dot in point["dots"]]
    told = list(notes)
    hollow = {dot["row_id"] for dot in dots if not dot["publishable"]}
    lost = {one["row_id"] for point in points for one in point["unmeasured"]}
    if hollow:
        words = sorted({word for dot in dots if not dot["publishable"] for word in dot["reasons"]})
        total = len({dot["row_id"] for dot in dots})
        told.append(f"Hollow: {len(hollow)} of {total} rows are not publishable ({', '.join(words)}).")
    if any(dot["invalid"] for dot in dots):
        told.append("Crossed: invalid rows, not part of the median.")
    if lost:
        told.append(f"No value: {', '.join(sorted(lost))}.")
    if plan.get("rehearsal"):
        told.insert(0, "REHEARSAL on a simulated server: not a measurement.")
    unmeasured = [one["row_id"] for point in points for one in point["unmeasured"]]
    return entry | {
        "campaign": plan["name"],
        "rehearsal": bool(plan.get("rehearsal")),
        "row_ids": sorted({dot["row_id"] for dot in dots} | set(unmeasured)),
        "run_ids": sorted({dot["run_id"] for dot in dots if dot["run_id"]}),
        "notes": told,
    }


def make_curve(campaign: Campaign, rows: Sequence[Row], chart_id: str) -> dict[str, Any]:
    """A metric of the finite points against concurrency: one panel per workload, one series per arm."""
    plan = campaign.plan
    metric, title, unit = CURVES[chart_id]
    panels, points = [], []
    finite = {name: point for name, point in plan["points"].items() if point["kind"] == "finite"}
    for workload in dict.fromkeys(point["workload"] for point in finite.values()):
        series, conditions = [], dict[str, Any]()
        for arm in _arms(plan):
            found = []
            for point_id, point in finite.items():
                behind = _rows_of(rows, arm, point_id, "repeat")
                if point["workload"] == workload and behind:
                    found.append(make_point(behind, metric))
                    conditions[point_id] = _conditions(behind)
            found.sort(key=lambda one: one["x"])
            points += found
            series.append({"arm": arm, "label": _label(plan, arm), "points": found})
        panels.append({"workload": workload, "conditions": conditions, "series": series})
    entry = {
        "id": chart_id,
        "kind": "curve",
        "title": f"{title} against concurrency",
        "subtitle": plan.get("title"),
        "x": {"label": "Concurrency", "unit": "requests in flight"},
        "y": {"label": title, "unit": unit, "metric": metric},
        "panels": panels,
    }
    notes = ["Line: median of the repeats. Bar: their range. Dots: each repeat. Only ok requests enter."]
    return _finish(entry, plan, points, notes)


def make_windows(campaign: Campaign, rows: Sequence[Row]) -> dict[str, Any]:
    """Sustained sets: each window of each arm, and the pooled value."""
    plan = campaign.plan
    groups, points = [], []
    for point_id, point in plan["points"].items():
        if point["kind"] != "sustained":
            continue
        panels, conditions = [], dict[str, Any]()
        for metric, title, unit in WINDOW_METRICS:
            series = []
            for arm in _arms(plan):
                windows, pooled = (_rows_of(rows, arm, point_id, kind) for kind in ("window", "pooled"))
                if not windows:
                    continue
                conditions = conditions or _conditions(windows)
                found = [
                    make_point([row], metric) | {"x": row["window"], "leg": row["leg"]} for row in windows
                ]
                whole = make_point(pooled, metric) if pooled else None
                points += found + ([whole] if whole else [])
                series.append({"arm": arm, "label": _label(plan, arm), "points": found, "pooled": whole})
            panels.append({"y": {"label": title, "unit": unit, "metric": metric}, "series": series})
        groups.append(
            {"point_id": point_id, "workload": point["workload"], "conditions": conditions, "panels": panels}
        )
    entry = {
        "id": "sustained",
        "kind": "windows",
        "title": "Sustained windows",
        "subtitle": plan.get("title"),
        "x": {"label": "Window", "unit": ""},
        "groups": groups,
    }
    notes = [
        "Dots: each window, its drain included. Line: all windows pooled (total tokens over total elapsed)."
    ]
    return _finish(entry, plan, points, notes)


def _chosen(finite: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """At most CARD_POINTS points for a card: the ends of each workload's range first, then the rest."""
    by_workload: dict[str, list[str]] = {}
    for name in sorted(finite, key=lambda one: (finite[one]["concurrency"], one)):
        by_workload.setdefault(finite[name]["workload"], []).append(name)
    ranked = [names[-1] for names in by_workload.values()] + [names[0] for names in by_workload.values()]
    ranked += [name for names in by_workload.values() for name in names]
    chosen = set(list(dict.fromkeys(ranked))[:CARD_POINTS])
    return [name for name in finite if name in chosen]


def make_card(campaign: Campaign, rows: Sequence[Row], comparisons: Mapping[str, Any]) -> dict[str, Any]:
    """Arms side by side: numbers per point and metric, with the differences that make or unmake the
    comparison. A campaign without finite points has its window sets on the card, pooled."""
    plan = campaign.plan
    finite = {name: point for name, point in plan["points"].items() if point["kind"] == "finite"}
    shown, row_kind = (finite, "repeat") if finite else (plan["points"], "pooled")
    chosen = _chosen(shown)
    groups, points = [], []
    for point_id in chosen:
        bars: list[dict[str, Any]] = []
        conditions: dict[str, Any] = {}
        for metric, title, unit in CARD_METRICS:
            found = []
            for arm in _arms(plan):
                behind = _rows_of(rows, arm, point_id, row_kind)
                if behind:
                    conditions = conditions or _conditions(behind)
                    found.append({"arm": arm, "label": _label(plan, arm), **make_point(behind, metric)})
            points += found
            bars.append({"metric": metric, "label": title, "unit": unit, "arms": found})
        groups.append({"point_id": point_id, "conditions": conditions, "metrics": bars})
    claims = [
        {
            "name": one["name"],
            "numerator": one["numerator"],
            "denominator": one["denominator"],
            "kind": one["kind"],
            "why_not_matched": one["why_not_matched"],
            "run_order": one["run_order"]["planned"],
            "differences": one["differences"],
            "ratios": [
                {
                    "point_id": point["point_id"],
                    "metric": metric["metric"],
                    "ratio": metric["ratio"],
                    "separation": metric["separation"],
                    "publishable": metric["publishable"],
                }
                for point in one["points"]
                if point["point_id"] in chosen
                for metric in point["metrics"]
                if metric["metric"] in {name for name, _, _ in CARD_METRICS}
            ],
        }
        for one in comparisons["comparisons"]
    ]
    entry = {
        "id": "arms",
        "kind": "card",
        "title": "Arms side by side",
        "subtitle": plan.get("title"),
        "groups": groups,
        "comparisons": claims,
    }
    notes = ["Numbers are medians of the repeats; whiskers show their range."]
    if not finite:
        notes = ["Numbers are those of all windows pooled: total tokens over total elapsed, drains included."]
    if len(chosen) < len(shown):
        notes.append(f"{len(shown) - len(chosen)} further points stand in comparison.csv.")
    return _finish(entry, plan, points, notes)


def make_chart_data(
    campaign: Campaign, rows: Sequence[Row], comparisons: Mapping[str, Any]
) -> dict[str, Any]:
    """Every chart's entry by id."""
    charts = {chart_id: make_curve(campaign, rows, chart_id) for chart_id in CURVES}
    charts["arms"] = make_card(campaign, rows, comparisons)
    charts["sustained"] = make_windows(campaign, rows)
    return {"schema": "assay/chart_data/1", "campaign": campaign.name, "charts": charts}


def extract_chart_data(campaign_dir: Path) -> dict[str, Any]:
    """chart_data of a campaign's folder."""
    campaign = open_campaign(campaign_dir)
    rows = build_rows(campaign)
    return make_chart_data(campaign, rows, make_comparisons(campaign, rows))


def write(campaign_dir: Path, chart_data_json: Path) -> None:
    """Write chart_data.json."""
    write_json(chart_data_json, extract_chart_data(campaign_dir))
