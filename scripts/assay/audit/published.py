"""What is published beside the extracts, made again from the evidence and compared: the page of cards, the
statements, the crate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.audit.files import CRATE
from assay.audit.outcome import AuditReport
from assay.audit.recompute import where_different
from assay.errors import Incomplete
from assay.extract.attempts import collect_attempts
from assay.extract.chart_data import chart_ids
from assay.records.campaign import Campaign
from assay.records.files import read_json
from assay.report.crate import build_crate
from assay.report.pages import cards_page
from assay.report.statements import gate_statements
from assay.vocab import AuditResult

PAGE = "cards.html"
CHART_FORMS = (".svg", ".png")
_SHOWN = 5


def all_charts(campaign: Campaign) -> list[Path]:
    """The charts that the plan's points give, there or not, and any other that is there."""
    folder = campaign.folder / "charts"
    names = {f"{chart}{form}" for chart in chart_ids(campaign.plan) for form in CHART_FORMS}
    names |= {path.name for path in folder.glob("*") if path.suffix in CHART_FORMS}
    return [folder / name for name in sorted(names)]


def compare_page(report: AuditReport, folder: Path) -> None:
    """cards.html is what cards.json gives, byte by byte."""
    page, cards = folder / PAGE, folder / "extracts" / "cards.json"
    relative = f"{folder.name}/{PAGE}"
    if not cards.is_file():
        return  # told as a missing extract
    if not page.is_file():
        report.say(PAGE, AuditResult.INCOMPLETE, "not there", relative)
    elif page.read_bytes() == cards_page(read_json(cards)).encode():
        report.say(PAGE, AuditResult.VERIFIED, "made again from cards.json, the same bytes")
    else:
        report.say(PAGE, AuditResult.MISMATCH, "is not what cards.json gives", relative)


def compare_statement_names(report: AuditReport, campaign: Campaign, charts: list[Path]) -> None:
    """One statement for each half of a bracket and for each chart: no more, no fewer."""
    folder = campaign.folder / "statements"
    wanted = {*gate_statements(campaign), *(f"audit.{chart.name}.json" for chart in charts)}
    held = {path.name for path in folder.glob("*")} if folder.is_dir() else set()
    for name in sorted(wanted - held):
        report.say("statements", AuditResult.INCOMPLETE, f"{name}: not there", _named(campaign, name))
    for name in sorted(held - wanted):
        detail = f"{name}: no gates and no chart of this campaign have it"
        report.say("statements", AuditResult.MISMATCH, detail, _named(campaign, name))


def compare_gate_statements(report: AuditReport, campaign: Campaign) -> None:
    """Each gate's statement is what its summary and its transcripts give."""
    fresh = gate_statements(campaign)
    good = sum(compare_statement(report, campaign, name, one) for name, one in fresh.items())
    if good and good == len(fresh):
        report.say("statements", AuditResult.VERIFIED, f"{good} of gates made again, the same")


def compare_statement(
    report: AuditReport, campaign: Campaign, name: str, fresh: Mapping[str, Any], *, words: bool = True
) -> bool:
    """One stored statement against the one made again; without ``words`` the texts of the tests may differ.

    A statement that is not there has been told by ``compare_statement_names``.
    """
    path = campaign.folder / "statements" / name
    if not path.exists():
        return False
    try:
        held = read_json(path)
    except Incomplete as error:
        report.say("statements", AuditResult.MISMATCH, str(error), _named(campaign, name))
        return False
    if not words:
        fresh, held = _without_words(fresh), _without_words(held)
    places = list(where_different(fresh, held))
    if places:
        detail = f"{name}: differs from what the evidence gives at {', '.join(places[:_SHOWN])}"
        report.say("statements", AuditResult.MISMATCH, detail, _named(campaign, name))
    return not places


def _without_words(statement: Any) -> Any:
    """A statement with the names of its tests alone: what follows them tells versions of libraries."""
    if not isinstance(statement, Mapping) or not isinstance(statement.get("predicate"), Mapping):
        return statement
    predicate = dict(statement["predicate"])
    for key in ("passedTests", "failedTests"):
        predicate[key] = [str(text).partition(":")[0] for text in predicate.get(key) or ()]
    return {**statement, "predicate": predicate}


def _named(campaign: Campaign, name: str) -> str:
    return f"{campaign.folder.name}/statements/{name}"


def compare_crate(report: AuditReport, campaign: Campaign, sums: Mapping[str, str]) -> None:
    """The crate's entities, by their @id, are those of the files and the attempts."""
    relative = f"{campaign.folder.name}/{CRATE}"
    path = campaign.folder / CRATE
    if not path.exists():
        report.say("crate", AuditResult.INCOMPLETE, "not there", relative)
        return
    try:
        held = _by_id(read_json(path))
    except (Incomplete, KeyError, TypeError) as error:
        report.say("crate", AuditResult.MISMATCH, f"no crate: {type(error).__name__}", relative)
        return
    listed = {name: sha256 for name, sha256 in sums.items() if name != relative}
    fresh = _by_id(build_crate(campaign, listed, collect_attempts(campaign)))
    places = list(where_different(fresh, held))
    if places:
        more = f" and {len(places) - _SHOWN} more places" if len(places) > _SHOWN else ""
        detail = f"differs from what files and attempts give at {', '.join(places[:_SHOWN])}{more}"
        report.say("crate", AuditResult.MISMATCH, detail, relative)
    else:
        report.say("crate", AuditResult.VERIFIED, f"{len(fresh)} entities made again, the same")


def _by_id(crate: Any) -> dict[str, Any]:
    found = {entity["@id"]: entity for entity in crate["@graph"]}
    if len(found) != len(crate["@graph"]):
        raise TypeError("an entity stands twice")
    return found | {"@context": crate["@context"]}
