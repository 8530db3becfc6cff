"""`assay show`: a finished campaign as a short table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from assay.cli.console import table_console
from assay.errors import Incomplete
from assay.records.files import read_json
from assay.vocab import Reason

MAX_REASONS = 3


def _number(text: str, form: str) -> str:
    return format(float(text), form) if text else "-"


def _flags(row: dict[str, str]) -> str:
    if row["publishable"] == "true":
        return "publishable"
    word = "INVALID" if row["invalid"] == "true" else "not publishable"
    reasons = json.loads(row["reasons"] or "[]")
    more = f" +{len(reasons) - MAX_REASONS}" if len(reasons) > MAX_REASONS else ""
    return f"{word}: {', '.join(reasons[:MAX_REASONS])}{more}"


def show(
    campaign_dir: Annotated[Path, typer.Argument(help="results/<campaign>")],
) -> None:
    """Print the rows of a campaign with their flags, each leg's verdict, and where the charts are."""
    path = campaign_dir / "extracts" / "rows.csv"
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
    except OSError as error:
        raise Incomplete(f"{path}: {error.strerror}; has the campaign run?") from error
    table = Table(
        Column("row", no_wrap=True),
        "ok/issued",
        "output tok/s",
        "TTFT p50 ms",
        "TPOT p50 ms",
        "flags",
        box=None,
    )
    for row in rows:
        table.add_row(
            escape(row["row_id"]),
            f"{row['n_ok'] or '-'}/{row['n_issued'] or '-'}",
            _number(row["output_tok_s"], ".1f"),
            _number(row["ttft_ms_p50"], ".1f"),
            _number(row["tpot_ms_p50"], ".2f"),
            escape(_flags(row)),
        )
    console = table_console()
    console.print(table)
    verdicts = read_json(campaign_dir / "extracts" / "verdicts.json")
    counts = verdicts["counts"]
    console.print(
        f"{counts['rows']} rows: {counts['publishable']} publishable, {counts['invalid']} invalid, "
        f"{counts['neither']} neither"
    )
    for leg in verdicts["legs"]:
        console.print(f"{escape(leg['leg'])}: {escape(str(leg.get('verdict', 'not_run')))}")
    for chart in sorted((campaign_dir / "charts").glob("*.svg")):
        console.print(f"chart {escape(str(chart))}")
    unclosed = [row for row in rows if str(Reason.BRACKET_OPEN) in json.loads(row["reasons"] or "[]")]
    if unclosed:
        console.print(
            f"{len(unclosed)} rows were measured in a session that ended before its gates after the load; to measure "
            f"them again: python -m assay retry --failed --results {escape(str(campaign_dir))}, then snakemake"
        )
    if not any(row["n_issued"] for row in rows):
        reasons = sorted({reason for row in rows for reason in json.loads(row["reasons"] or "[]")})
        raise Incomplete(f"nothing was measured: {', '.join(reasons)}")
    console.print(
        f"audit any of them: python -m assay audit {escape(str(campaign_dir))}/charts/throughput.svg"
    )
