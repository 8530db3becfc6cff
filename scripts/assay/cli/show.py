"""`assay show`: a finished campaign as a short table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from assay.cli.console import table_console
from assay.cli.evidence import of_shape, read_record, read_rows
from assay.errors import Incomplete
from assay.vocab import Reason, Verdict

MAX_REASONS = 3


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _flags(row: dict[str, Any]) -> str:
    if row["publishable"]:
        return "publishable"
    word = "INVALID" if row["invalid"] else "not publishable"
    reasons = row["reasons"] or []
    more = f" +{len(reasons) - MAX_REASONS}" if len(reasons) > MAX_REASONS else ""
    return f"{word}: {', '.join(reasons[:MAX_REASONS])}{more}"


def _counted(verdicts: dict[str, Any]) -> list[str]:
    """Rows by flag, and the verdict of each leg."""
    counts = verdicts["counts"]
    return [
        f"{counts['rows']} rows: {counts['publishable']} publishable, {counts['invalid']} invalid, "
        f"{counts['neither']} neither",
        *(
            f"{leg['leg']}: {leg.get('verdict', 'not_run')}{_why(leg, verdicts['runs'])}"
            for leg in verdicts["legs"]
        ),
    ]


def _why(leg: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    """What decided a leg that did not pass: its missing rows, and what its runs did not pass."""
    if leg.get("verdict") == Verdict.PASS:
        return ""
    found = [f"{len(leg['missing_rows'])} rows missing"] if leg["missing_rows"] else []
    for run in runs:
        if run["run_id"] in leg["run_ids"]:
            for finding in run["findings"]:
                if finding["verdict"] != Verdict.PASS:
                    measured = finding["measured"] if isinstance(finding["measured"], dict) else {}
                    detail = finding["detail"] or ", ".join(
                        finding["reasons"] or measured.get("unchecked") or ()
                    )
                    found.append(
                        f"{finding['name']} {finding['verdict']}" + (f": {detail}" if detail else "")
                    )
    found = list(dict.fromkeys(found))
    more = f"; and {len(found) - MAX_REASONS} more" if len(found) > MAX_REASONS else ""
    return f" ({'; '.join(found[:MAX_REASONS])}{more})" if found else ""


def show(
    campaign_dir: Annotated[Path, typer.Argument(help="results/<campaign>")],
) -> None:
    """Print the rows of a campaign with their flags, each leg's verdict, and where the charts are."""
    rows = read_rows(campaign_dir)
    path = campaign_dir / "extracts" / "verdicts.json"
    verdicts = read_record(path, "assay/verdicts/1")
    with of_shape(path):
        lines = _counted(verdicts)
    table = Table(
        Column("row", no_wrap=True),
        "ok/issued",
        "output tok/s",
        "TTFT p50 ms",
        "TPOT p50 ms",
        "flags",
        box=None,
    )
    with of_shape(campaign_dir / "extracts" / "rows.csv"):
        for row in rows:
            n_ok, n_issued = _number(row["n_ok"], "d"), _number(row["n_issued"], "d")
            table.add_row(
                escape(row["row_id"]),
                f"{n_ok}/{n_issued}",
                _number(row["output_tok_s"], ".1f"),
                _number(row["ttft_ms_p50"], ".1f"),
                _number(row["tpot_ms_p50"], ".2f"),
                escape(_flags(row)),
            )
    console = table_console()
    console.print(table)
    for line in lines:
        console.print(escape(line))
    for chart in sorted((campaign_dir / "charts").glob("*.svg")):
        console.print(f"chart {escape(str(chart))}")
    unclosed = [row for row in rows if str(Reason.BRACKET_OPEN) in (row["reasons"] or ())]
    if unclosed:
        console.print(
            f"{len(unclosed)} rows were measured in a session that ended before its gates after the load; to measure "
            f"them again: python -m assay retry --failed --results {escape(str(campaign_dir))}, then snakemake"
        )
    if all(row["n_issued"] is None for row in rows):
        reasons = sorted({reason for row in rows for reason in row["reasons"] or ()})
        raise Incomplete(f"nothing was measured: {', '.join(reasons)}")
    console.print(
        f"audit any of them: python -m assay audit {escape(str(campaign_dir))}/charts/throughput.svg"
    )
