"""Recompute extracts and charts from the raw records and compare them with what is stored."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.audit.outcome import AuditReport
from assay.errors import BadInput, Incomplete
from assay.extract.cards import make_cards
from assay.extract.columns import ARROW_SCHEMA, COLUMNS, FLAG, INT, NAMES, REAL, TEXTS
from assay.extract.comparisons import make_comparisons
from assay.extract.rows import Row
from assay.extract.summary import make_findings, make_summary
from assay.extract.verdicts import make_verdicts
from assay.records.campaign import Campaign
from assay.records.files import read_json
from assay.vocab import AuditResult

TOLERANCE = 1e-9
"""Relative; a percentile may differ in its last bits between numpy versions."""
_SHOWN = 5


def same(one: Any, other: Any) -> bool:
    """Equal, floats within TOLERANCE, containers element by element."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        if math.isinf(one) or math.isinf(other):
            return one == other
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-12)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def where_different(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Places (dotted) at which two JSON values differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            inner = f"{place}.{key}" if place else str(key)
            if key not in one or key not in other:
                yield inner
            else:
                yield from where_different(one[key], other[key], inner)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from where_different(a, b, f"{place}[{k}]")
    elif not same(one, other):
        yield place or "the whole"


def _parse_cell(text: str, kind: pa.DataType) -> Any:
    if text == "":
        return None
    if kind == INT:
        return int(text)
    if kind == REAL:
        return float(text)
    if kind == FLAG:
        return {"true": True, "false": False}[text]
    return json.loads(text) if kind == TEXTS else text


def read_rows_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of a rows.csv with their types. Raises Incomplete when it is no such file: its columns are
    those of docs/extracts.md, all of them, in their order."""
    kinds = {column.name: column.kind for column in COLUMNS}
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))
        if tuple(lines[0]) != tuple(NAMES):
            raise ValueError("its columns are not those of rows.csv")
        return [
            {name: _parse_cell(cell, kinds[name]) for name, cell in zip(NAMES, line, strict=True)}
            for line in lines[1:]
        ]
    except (OSError, ValueError, KeyError, IndexError, csv.Error) as error:
        raise Incomplete(f"{path.name}: cannot be read as rows: {type(error).__name__}: {error}") from error


def read_rows_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        table = pq.read_table(path)
        if not table.schema.equals(ARROW_SCHEMA):
            raise Incomplete(f"{path.name}: its columns are not those of rows.parquet")
        return [dict(row) for row in table.to_pylist()]
    except (OSError, pa.ArrowException) as error:
        raise Incomplete(f"{path.name}: cannot be read as parquet: {type(error).__name__}") from error


def doubtful_rows(rows: Sequence[Row]) -> set[str]:
    """Rows that cannot be recomputed, since a file behind them is missing or changed."""
    bad = {row["row_id"] for row in rows if row.load is not None and row.load.faults}
    sets = {row_id.rsplit("/", 1)[0] for row_id in bad}
    return bad | {
        row["row_id"] for row in rows if row["kind"] == "pooled" and row["row_id"].rsplit("/", 1)[0] in sets
    }


def compare_rows(
    report: AuditReport, path: Path, relative: str, rows: Sequence[Row], only: str | None = None
) -> None:
    """Stored rows (CSV or Parquet) against recomputed ones; ``only`` one row."""
    try:
        stored = read_rows_csv(path) if path.suffix == ".csv" else read_rows_parquet(path)
    except Incomplete as error:
        kind = AuditResult.MISMATCH if path.exists() else AuditResult.INCOMPLETE
        report.say("rows", kind, str(error), relative)
        return
    doubtful = doubtful_rows(rows)
    fresh = {row["row_id"]: row.values for row in rows}
    held = {str(row.get("row_id")): row for row in stored}
    wrong: list[str] = []
    if only is None:
        wrong += [f"{row_id}: not in the evidence" for row_id in sorted(held.keys() - fresh.keys())]
        wrong += [f"{row_id}: missing" for row_id in sorted(fresh.keys() - held.keys())]
        if len(held) == len(stored) and [*held] != [*fresh] and held.keys() == fresh.keys():
            wrong.append("the rows stand in another order")
    elif only not in held or only not in fresh:
        report.say(
            "rows", AuditResult.INCOMPLETE, f"no row {only!r} in {path.name} and the evidence", relative
        )
        return
    if len(held) != len(stored):
        wrong.append("a row stands twice")
    checked = 0
    for row_id in [only] if only is not None else sorted(held.keys() & fresh.keys()):
        if row_id in doubtful:
            continue
        checked += 1
        mine = {name: list(v) if isinstance(v := fresh[row_id][name], tuple) else v for name in NAMES}
        columns = [name for name in NAMES if not same(held[row_id][name], mine[name])]
        wrong += [
            f"{row_id}: {name} is {held[row_id][name]!r}, recomputed {mine[name]!r}" for name in columns
        ]
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        report.say("rows", AuditResult.MISMATCH, f"{path.name}: {'; '.join(wrong[:_SHOWN])}{more}", relative)
    elif doubtful and not checked:
        report.say("rows", AuditResult.INCOMPLETE, f"{path.name}: no row could be recomputed")
    else:
        left = f", {len(doubtful)} could not be" if doubtful else ""
        report.say("rows", AuditResult.VERIFIED, f"{path.name}: {checked} rows recomputed{left}")


def make_extract(name: str, campaign: Campaign, rows: list[Row]) -> Mapping[str, Any]:
    """A JSON extract by its file's name, made again. Raises BadInput when there is none of that name."""
    if name == "comparisons.json":
        return make_comparisons(campaign, rows)
    if name == "cards.json":
        return make_cards(campaign, rows)
    verdicts = make_verdicts(campaign, rows)
    makers = {"summary.json": make_summary, "findings.json": make_findings}
    if name == "verdicts.json":
        return verdicts
    if name not in makers:
        raise BadInput(f"no extract {name!r}", where=campaign.folder / "extracts")
    return makers[name](campaign, rows, verdicts)


def compare_json(
    report: AuditReport, path: Path, relative: str, fresh: Mapping[str, Any], doubtful: bool
) -> None:
    """A stored JSON extract against the recomputed one. With doubtful evidence its figures are not judged."""
    if not path.exists():
        report.say(path.name, AuditResult.INCOMPLETE, "not there", relative)
        return
    try:
        stored = read_json(path)
    except Incomplete as error:
        report.say(path.name, AuditResult.MISMATCH, str(error), relative)
        return
    if doubtful:
        report.say(path.name, AuditResult.INCOMPLETE, "not recomputed: evidence behind it is at fault")
        return
    places = list(where_different(json.loads(json.dumps(fresh)), stored))
    if places:
        more = f" and {len(places) - _SHOWN} more places" if len(places) > _SHOWN else ""
        detail = f"differs from its recomputation at {', '.join(places[:_SHOWN])}{more}"
        report.say(path.name, AuditResult.MISMATCH, detail, relative)
    else:
        report.say(path.name, AuditResult.VERIFIED, "recomputed, the same")


def compare_text(report: AuditReport, path: Path, relative: str, fresh: str, doubtful: bool) -> None:
    """A stored CSV extract against the recomputed text."""
    if not path.exists():
        report.say(path.name, AuditResult.INCOMPLETE, "not there", relative)
        return
    if doubtful:
        report.say(path.name, AuditResult.INCOMPLETE, "not recomputed: evidence behind it is at fault")
        return
    same_text = path.read_bytes() == fresh.encode()
    result = AuditResult.VERIFIED if same_text else AuditResult.MISMATCH
    detail = "recomputed, the same" if same_text else "differs from its recomputation"
    report.say(path.name, result, detail, None if same_text else relative)


def list_points(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(arm, plotted point) of every value that a chart's entry shows."""
    for panel in entry.get("panels") or ():
        for series in panel["series"]:
            yield from ((series["arm"], point) for point in series["points"])
    for group in entry.get("groups") or ():
        for metric in group.get("metrics") or ():
            yield from ((arm["arm"], arm) for arm in metric["arms"])
        for panel in group.get("panels") or ():
            for series in panel["series"]:
                yield from ((series["arm"], point) for point in series["points"])
                if series.get("pooled"):
                    yield series["arm"], series["pooled"]


def compare_points(
    report: AuditReport,
    stored: Mapping[str, Any],
    fresh: Mapping[str, Any],
    doubtful: set[str],
    relative: str,
) -> None:
    """Each plotted value against its recomputation, with its population, exclusions and reasons."""
    shown, again = list(list_points(stored)), list(list_points(fresh))
    if len(shown) != len(again):
        detail = f"{len(shown)} points are shown, the evidence has {len(again)}"
        report.say("points", AuditResult.MISMATCH, detail, relative)
    wrong = unsure = 0
    for (arm, point), (arm_again, mine) in zip(shown, again, strict=False):
        behind = [dot["row_id"] for dot in point["dots"]] + [one["row_id"] for one in point["unmeasured"]]
        doubted = sorted(doubtful & set(behind))
        agrees: bool | None = arm == arm_again and same(
            {k: point[k] for k in ("value", "n", "min", "max", "point_id", "x")},
            {k: mine[k] for k in ("value", "n", "min", "max", "point_id", "x")},
        )
        if doubted:
            agrees = None
        wrong += agrees is False
        unsure += agrees is None
        dots = {dot["row_id"]: dot for dot in point["dots"]}
        report.points.append(
            {
                "arm": arm,
                "point_id": point["point_id"],
                "x": point["x"],
                "metric": point.get("metric"),
                "shown": point["value"],
                "recomputed": None if doubted else mine["value"],
                "agrees": agrees,
                "statistic": point["statistic"],
                "n": point["n"],
                "population": point["population"],
                "rows": behind,
                "excluded": {row_id: dot["reasons"] for row_id, dot in dots.items() if dot["invalid"]}
                | {one["row_id"]: one["reasons"] or ["no value"] for one in point["unmeasured"]}
                | {row_id: ["evidence at fault"] for row_id in doubted},
                "flagged": {
                    row_id: dot["reasons"]
                    for row_id, dot in dots.items()
                    if not dot["publishable"] and not dot["invalid"]
                },
            }
        )
    if wrong:
        report.say(
            "points",
            AuditResult.MISMATCH,
            f"{wrong} of {len(shown)} plotted values do not recompute",
            relative,
        )
    elif unsure:
        report.say(
            "points", AuditResult.INCOMPLETE, f"{unsure} of {len(shown)} plotted values cannot be recomputed"
        )
    elif not shown:
        report.say("points", AuditResult.VERIFIED, "the chart shows no value, and the evidence has none")
    else:
        report.say(
            "points", AuditResult.VERIFIED, f"{len(shown)} plotted values recomputed from requests.parquet"
        )
