"""write_evidence: the statements, the crate, the page of cards, and SHA256SUMS over everything, in this
order."""

from __future__ import annotations

from pathlib import Path

from assay.audit.files import CRATE, SUMS, campaign_files, session_files, session_ids
from assay.audit.published import CHART_FORMS
from assay.audit.walk import Audit
from assay.digest import sha256_of_file
from assay.errors import CheckFailed, Incomplete
from assay.extract.attempts import collect_attempts
from assay.records.campaign import Campaign, open_campaign
from assay.records.files import read_json, write_json, write_text
from assay.records.pins import Pins, format_sums
from assay.report.crate import build_crate
from assay.report.pages import cards_page
from assay.report.statements import audit_statement, gate_statements


def check_pins(campaign: Campaign) -> None:
    """Every file against every digest that was recorded for it, before anything is pinned.

    Raises CheckFailed naming a file that is not what was recorded, Incomplete naming one that is not there.
    """
    pins = Pins(campaign)
    for session_id in session_ids(campaign):
        pins.add_session(session_id)
    faults = [*campaign.broken, *pins.faults]
    faults += [fault for path in sorted(pins.sources) if (fault := pins.check(path)) is not None]
    if not faults:
        return
    said = "; ".join(f"{fault.path}: {fault.kind}: {fault.detail}" for fault in faults[:5])
    more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
    if all(fault.kind in ("missing", "unpinned") for fault in faults):
        raise Incomplete(f"the evidence is incomplete: {said}{more}")
    raise CheckFailed(f"the evidence is not what was recorded: {said}{more}")


def collect_sums(campaign: Campaign, *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """{path relative to results: sha256} of the campaign's files and of every file of its sessions."""
    files = [file for file in campaign_files(campaign.folder) if file.name not in without]
    for session_id in session_ids(campaign):
        files += session_files(campaign, session_id)
    return {file.relative_to(campaign.results).as_posix(): sha256_of_file(file) for file in files}


def write_statements(campaign: Campaign) -> None:
    """One statement per half of a bracket, and one per audited chart. Stale ones are removed."""
    folder = campaign.folder / "statements"
    statements = gate_statements(campaign)
    opened = Audit(campaign.folder, "", require_sums=False)
    for chart in sorted((campaign.folder / "charts").glob("*")):
        if chart.suffix in CHART_FORMS:
            walk = opened.another(str(chart))
            walk.chart(chart)
            statements[f"audit.{chart.name}.json"] = audit_statement(walk.report, chart, campaign.results)
    for old in folder.glob("*.json"):
        if old.name not in statements:
            old.unlink()
    for name, statement in statements.items():
        write_json(folder / name, statement)


def write_evidence(campaign_dir: Path) -> None:
    """Pin a finished campaign: statements/*.json, cards.html, ro-crate-metadata.json, SHA256SUMS.

    The list comes last and covers the others. Raises CheckFailed or Incomplete, naming the file, when the
    evidence is not what its own records say; then nothing is pinned.
    """
    campaign = open_campaign(campaign_dir)
    check_pins(campaign)
    for old in (SUMS, CRATE):
        (campaign.folder / old).unlink(missing_ok=True)
    cards = campaign.folder / "extracts" / "cards.json"
    if cards.is_file():
        write_text(campaign.folder / "cards.html", cards_page(read_json(cards)))
    write_statements(campaign)
    sums = collect_sums(campaign, without=(CRATE,))
    write_json(campaign.folder / CRATE, build_crate(campaign, sums, collect_attempts(campaign)))
    write_text(campaign.folder / SUMS, format_sums(collect_sums(campaign)))
