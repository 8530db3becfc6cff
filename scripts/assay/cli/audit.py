"""``assay audit``, ``assay verify``, ``assay compare``: judge a results folder, with nothing but its
files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from assay.audit import audit_target, verify_results
from assay.audit.files import SUMS
from assay.audit.outcome import EXIT_CODES, AuditReport, plain
from assay.cli.console import table_console
from assay.cli.evidence import of_shape, read_record, read_rows
from assay.errors import EXIT_OK, BadInput
from assay.extract.reference import read_reference, side_by_side
from assay.records.campaign import open_campaign
from assay.vocab import AuditResult

_FORMAT = Annotated[str, typer.Option("--format", help="text or json.")]
_SEVERITY = (AuditResult.VERIFIED, AuditResult.INCOMPLETE, AuditResult.MISMATCH)


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="A chart, an extract, one row (rows.csv#ROW_ID), a receipt, or a campaign's folder."
        ),
    ],
    results: Annotated[
        Path | None, typer.Option("--results", help="The results folder, when a chart was copied out of it.")
    ] = None,
    output_format: _FORMAT = "text",
) -> None:
    """Walk from a figure back to its raw records: re-hash every file, recompute every value, judge the
    gates again.

    Ends VERIFIED (exit 0), MISMATCH (1) or INCOMPLETE (3), and names each file at fault.
    """
    _known_format(output_format)
    file = target.partition("#")[0]
    if not file:
        raise BadInput("names no file", where="audit", hint="results/<campaign>, or a file in it")
    if not Path(file).exists():
        raise BadInput("not there", where=file)
    if Path(file).is_dir() and not any((Path(file) / name).is_file() for name in ("plan.json", SUMS)):
        raise BadInput("no campaign's folder", where=file, hint="results/<campaign>")
    _finish([audit_target(Path(target), results)], output_format)


def verify(
    results_dir: Annotated[Path, typer.Argument(help="A results folder, or one campaign's folder in it.")],
    output_format: _FORMAT = "text",
) -> None:
    """Audit everything below a results folder: all files, extracts, charts and gates of each campaign."""
    _known_format(output_format)
    if not results_dir.is_dir():
        raise BadInput("no such folder", where=results_dir)
    _finish(verify_results(results_dir), output_format)


def _known_format(output_format: str) -> None:
    if output_format not in ("text", "json"):
        raise BadInput(f"{output_format!r} is not known", where="--format", hint="text or json")


def _finish(reports: list[AuditReport], output_format: str) -> None:
    worst = max((report.result for report in reports), key=_SEVERITY.index)
    if output_format == "json":
        records = [report.as_record() for report in reports]
        typer.echo(json.dumps(records[0] if len(records) == 1 else records, indent=1, sort_keys=True))
    else:
        typer.echo("\n\n".join(report.as_text() for report in reports))
    raise typer.Exit(EXIT_CODES[worst])


def compare(
    campaign_dir: Annotated[Path, typer.Argument(help="A campaign's folder: results/<campaign>.")],
    reference: Annotated[
        Path | None,
        typer.Option("--reference", help="Published figures to put beside (see config/reference)."),
    ] = None,
    output_format: _FORMAT = "text",
) -> None:
    """Show the campaign's comparisons: ratios with both operands, and the differences beside them.

    With --reference: published and measured figures side by side, for rows whose campaign, arm, workload,
    concurrency and metric are the same.
    """
    _known_format(output_format)
    campaign = open_campaign(campaign_dir)
    if reference is not None:
        published = read_reference(reference)
        path = campaign_dir / "extracts" / "rows.csv"
        rows = read_rows(campaign_dir)
        with of_shape(path):
            record: Any = side_by_side(published, campaign, rows)
        show = _show_reference
    else:
        path = campaign_dir / "extracts" / "comparisons.json"
        record = read_record(path, "assay/comparisons/1")
        show = _show_comparisons
    if output_format == "json":
        typer.echo(json.dumps(record, indent=1, sort_keys=True))
    else:
        with of_shape(path):
            show(record)
    raise typer.Exit(EXIT_OK)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:.4g}" if isinstance(value, float) else plain(value, 60))


def _separation(metric: dict[str, Any]) -> str:
    """What the ranges say, with how many repeats or windows they are of."""
    sides = (metric["numerator"], metric["denominator"])
    counts = " and ".join(str((side.get("windows") or side)["n"]) for side in sides)
    return f"{metric['separation']} (n {counts})" if metric["separation"] else ""


def _show_comparisons(record: dict[str, Any]) -> None:
    console = table_console()
    if not record["comparisons"]:
        console.print("The campaign plans no comparison.")
    for one in record["comparisons"]:
        title = f"{one['numerator']} over {one['denominator']}: {one['kind']}, order {one['run_order']['planned']}"
        table = Table(title=Text(plain(title)))
        for name in (
            "point",
            "metric",
            one["numerator"],
            one["denominator"],
            "ratio",
            "separation",
            "publishable",
        ):
            table.add_column(Text(plain(name, 30)))
        for point in one["points"]:
            for metric in point["metrics"]:
                top, base = metric["numerator"], metric["denominator"]
                if top["median"] is None and base["median"] is None:
                    continue
                cells = (
                    point["point_id"],
                    metric["metric"],
                    top["median"],
                    base["median"],
                    metric["ratio"],
                    _separation(metric),
                    "yes" if metric["publishable"] else "no",
                )
                table.add_row(*map(_cell, cells))
        console.print(table)
        for difference in one["differences"]:
            asked = f"{difference['numerator']['asked']!r} against {difference['denominator']['asked']!r}"
            read = (
                f"read back {difference['numerator']['read']!r} against {difference['denominator']['read']!r}"
            )
            console.print(Text(plain(f"  differs: {difference['key']}: {asked}; {read}")))
        for why in one["why_not_matched"]:
            console.print(Text(plain(f"  not matched: {why}")))


def _show_reference(record: dict[str, Any]) -> None:
    console = table_console()
    table = Table(title=Text(plain(f"{record['campaign']}: published and measured")))
    for name in ("arm", "workload", "C", "metric", "unit", "published", "measured", "ratio", "statistic"):
        table.add_column(name)
    for line in record["lines"]:
        cells = (
            line["arm"],
            line["workload"],
            line["concurrency"],
            line["metric"],
            line["unit"],
            line["published"],
            line["measured"],
            line["measured_over_published"],
            line["measured_statistic"] or line["why_null"],
        )
        table.add_row(*map(_cell, cells))
    console.print(table)
    if not record["lines"]:
        console.print(Text(plain(f"The reference has no row of {record['campaign']}.")))
