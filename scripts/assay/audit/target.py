"""`audit_target`: from a chart, an extract, a row or a receipt back to the raw records, everything re-hashed.

Needs the results folder and the package: no GPU, no server, no Snakemake.
"""

from __future__ import annotations

from pathlib import Path

from assay.audit.files import SUMS
from assay.audit.outcome import AuditReport
from assay.audit.published import CHART_FORMS
from assay.audit.walk import Audit
from assay.chart.render import read_identity
from assay.errors import BadInput


def _campaign_of(path: Path, results_dir: Path | None) -> Path:
    """The campaign's folder of a target: the nearest folder above it with a plan or SHA256SUMS."""
    if results_dir is not None and path.suffix in CHART_FORMS and path.is_file():
        named = results_dir / read_identity(path)["campaign"]
        if named.is_dir():
            return named
    for folder in path.resolve().parents:
        if (folder / "plan.json").is_file() or (folder / SUMS).is_file():
            return folder
    raise BadInput(
        "belongs to no campaign's results folder", where=path, hint="results/<campaign>/... or --results"
    )


def audit_target(path: Path, results_dir: Path | None = None, *, require_sums: bool = True) -> AuditReport:
    """Audit a chart (.svg, .png), an extract, one row (``rows.csv#<row_id>``) or a receipt.

    ``results_dir`` says where the evidence lies when a chart was copied out of it. Raises BadInput when the
    target is nothing that can be audited.
    """
    text = str(path)
    file, _, row_id = text.partition("#")
    target = Path(file)
    if target.is_dir():
        return verify_campaign(target, require_sums=require_sums)
    folder = _campaign_of(target, results_dir)
    audit = Audit(folder, text, require_sums=require_sums)
    if target.suffix in CHART_FORMS:
        audit.chart(target)
        return audit.report
    inside = target.resolve().relative_to(folder) if target.resolve().is_relative_to(folder) else None
    if inside is None:
        raise BadInput("not a file of a campaign", where=target)
    if inside.parts[0] == "extracts":
        if row_id and inside.name not in ("rows.csv", "rows.parquet"):
            raise BadInput("only rows.csv and rows.parquet have rows", where=target)
        audit.extract(inside.name, row_id or None)
    elif inside.parts[0] == "receipts":
        audit.receipt(f"{folder.name}/{inside.as_posix()}")
    else:
        raise BadInput("neither a chart, nor an extract, nor a receipt", where=target)
    return audit.report


def verify_campaign(campaign_dir: Path, *, require_sums: bool = True) -> AuditReport:
    """Everything of one campaign: all files, extracts, charts, gates."""
    audit = Audit(campaign_dir, str(campaign_dir), require_sums=require_sums)
    audit.everything()
    return audit.report


def verify_results(results_dir: Path) -> list[AuditReport]:
    """verify_campaign of each campaign below a results folder, or of the folder itself when it is a
    campaign's.

    Raises BadInput when there is none.
    """
    if (results_dir / "plan.json").is_file() or (results_dir / SUMS).is_file():
        return [verify_campaign(results_dir)]
    folders = sorted(
        folder
        for folder in results_dir.glob("*")
        if folder.is_dir() and ((folder / "plan.json").is_file() or (folder / SUMS).is_file())
    )
    if not folders:
        raise BadInput("no campaign in it", where=results_dir, hint="a results folder, or results/<campaign>")
    return [verify_campaign(folder) for folder in folders]
