"""`assay show`: a campaign as a short table: its rows, and before there are any its stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from assay.cli.console import table_console
from assay.cli.evidence import of_shape, read_receipt, read_record, read_rows
from assay.config.campaign import REHEARSAL_SUFFIX
from assay.errors import Incomplete
from assay.load import summarise
from assay.load.phase import REQUESTS
from assay.records.campaign import resolve_inside
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


def _stages(campaign_dir: Path) -> Table:
    """What has ended so far: the receipts of the legs, in the order in which they ended."""
    table = Table(Column("stage", no_wrap=True), "state", "ok/issued", "output tok/s", "ended, UTC", box=None)
    folder = campaign_dir / "receipts"
    ended = []
    for path in folder.rglob("*.json"):
        receipt = read_receipt(path)
        with of_shape(path):
            if receipt.get("leg") is not None:
                name = str(path.relative_to(folder).with_suffix(""))
                ended.append((receipt["t_end_utc"], name, _ended(receipt, campaign_dir.parent)))
    for t_end_utc, name, (state, counts, rates) in sorted(ended):
        table.add_row(escape(name), escape(state), counts, rates, escape(t_end_utc[:19].replace("T", " ")))
    return table


def _ended(receipt: dict[str, Any], results: Path) -> tuple[str, str, str]:
    """A receipt's state with its reasons, its counts, and the rate of its repeat or of each of its windows."""
    reasons = ", ".join(receipt["reasons"])
    state = receipt["state"] + (f": {reasons}" if reasons else "")
    tables = [one["path"] for one in receipt["evidence"] if Path(one["path"]).name == REQUESTS]
    loads = [summarise(resolve_inside(results, path).parent) for path in tables]
    if not loads:
        return state, "", ""
    n_ok, n_issued = (sum(load["requests"][key] for load in loads) for key in ("ok", "issued"))
    rates = [_number(load["throughput"]["output_tok_s"], ".1f") for load in loads]
    return state, f"{n_ok}/{n_issued}", " ".join(rates)


def _whats_left(campaign_dir: Path) -> str:
    name = campaign_dir.resolve().name
    of_rehearsal = " --rehearse" if name.endswith(REHEARSAL_SUFFIX) else ""
    return f"what is left: python -m assay plan {name.removesuffix(REHEARSAL_SUFFIX)}{of_rehearsal}"


def show(
    campaign_dir: Annotated[Path, typer.Argument(help="results/<campaign>")],
) -> None:
    """Print the rows of a campaign with their flags, each leg's verdict, and where the charts are.

    Before the rows are there, the stages that have ended are printed, and the exit code is 3.
    """
    if not (campaign_dir / "extracts" / "rows.csv").is_file() and (campaign_dir / "receipts").is_dir():
        table_console().print(_stages(campaign_dir))
        raise Incomplete(
            f"{campaign_dir}: no rows yet: they are made when every leg has ended; {_whats_left(campaign_dir)}"
        )
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
