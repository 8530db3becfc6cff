"""Re-hash every file of a campaign and of its sessions, against every record that names it."""

from __future__ import annotations

from pathlib import Path

from assay.audit.outcome import AuditReport
from assay.audit.sessions import broken_tables, odd_files
from assay.digest import sha256_of_file
from assay.errors import Incomplete
from assay.records.campaign import Campaign, Fault, list_attempts, resolve_inside
from assay.records.files import read_json
from assay.records.pins import MANIFEST, Pins, parse_sums
from assay.vocab import AuditResult

SUMS = "SHA256SUMS"
CRATE = "ro-crate-metadata.json"


def campaign_files(folder: Path) -> list[Path]:
    """Every file below a campaign's folder but SHA256SUMS itself and temporary ones."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path != folder / SUMS
        and not (path.name.startswith(".") and path.name.endswith(".tmp"))
    )


def session_ids(campaign: Campaign) -> list[str]:
    """Sessions that receipts, brackets or attempts of this campaign name."""
    found = set(campaign.sessions())
    for path, body in list_attempts(campaign):
        if body is not None:
            found.add(path.split("/")[1])
    return sorted(found)


def session_files(campaign: Campaign, session_id: str) -> list[Path]:
    folder = campaign.results / "evidence" / session_id
    return sorted(path for path in folder.rglob("*") if path.is_file())


def read_sums(campaign_dir: Path) -> tuple[dict[str, str] | None, list[Fault]]:
    """SHA256SUMS as {path relative to results: sha256}; None and a fault when it is missing or broken."""
    path = campaign_dir / SUMS
    relative = f"{campaign_dir.name}/{SUMS}"
    if not path.is_file():
        return None, [Fault(relative, "missing", "the evidence was not pinned, or the list is gone")]
    try:
        return parse_sums(path.read_text(encoding="utf-8"), relative), []
    except Incomplete as error:
        return None, [Fault(relative, "unreadable", str(error))]
    except (OSError, UnicodeDecodeError):
        return None, [Fault(relative, "unreadable", "not text")]


def read_crate_digests(campaign_dir: Path) -> dict[str, str]:
    """{path relative to results: sha256} as the crate has them; empty when it cannot be read."""
    try:
        graph = read_json(campaign_dir / CRATE)["@graph"]
        return {
            entity["@id"].removeprefix("../")
            if entity["@id"].startswith("../")
            else f"{campaign_dir.name}/{entity['@id']}": entity["sha256"]
            for entity in graph
            if isinstance(entity, dict) and "sha256" in entity
        }
    except (Incomplete, KeyError, TypeError, AttributeError):
        return {}


def check_sums(report: AuditReport, campaign_dir: Path, sums: dict[str, str]) -> dict[str, str]:
    """Hash every listed file, and find files that the list does not have; returns {path: sha256 found}."""
    results = campaign_dir.parent
    own = f"{campaign_dir.name}/{SUMS}"
    found: dict[str, str] = {}
    faults = []
    witness = read_crate_digests(campaign_dir)
    for path, sha256 in sums.items():
        if path.startswith("/") or ".." in Path(path).parts:
            faults.append(Fault(own, "unreadable", f"names a path outside the results folder: {path!r}"))
            continue
        file = results / path
        if not file.is_file():
            faults.append(Fault(path, "missing", f"listed in {own}, not there"))
            continue
        found[path] = sha256_of_file(file)
        if found[path] != sha256:
            faults.append(Fault(path, "changed", f"{own} says {sha256[:12]}, found {found[path][:12]}"))
            # The crate has every other digest a second time: when it vouches for the file, the list is in doubt
            # too. For the crate itself there is no second witness, so both are named.
            if path == f"{campaign_dir.name}/{CRATE}" or witness.get(path) == found[path]:
                faults.append(Fault(own, "changed", f"{own} and {CRATE} disagree on {path}"))
    here = {file.relative_to(results).as_posix() for file in campaign_files(campaign_dir)}
    for session_id in {path.split("/")[1] for path in sums if path.startswith("evidence/")}:
        folder = results / "evidence" / session_id
        here |= {file.relative_to(results).as_posix() for file in folder.rglob("*") if file.is_file()}
    gone = {sums[fault.path] for fault in faults if fault.kind == "missing"}
    for path in sorted(here - sums.keys()):
        faults.append(Fault(path, "unpinned", f"not listed in {own}"))
        if gone and sha256_of_file(results / path) in gone:
            faults.append(Fault(own, "changed", f"lists {path} under another name"))
    report.files_hashed = max(report.files_hashed, len(found))
    report.blame(faults)
    return found


def cross_check(report: AuditReport, campaign: Campaign, pins: Pins, sums: dict[str, str] | None) -> None:
    """Every digest that a receipt, a stage record or a manifest recorded, against the file as it is now.

    A list that was doctored shows here: a file that its own records confirm, and SHA256SUMS does not, puts
    the blame on SHA256SUMS.
    """
    own = f"{campaign.folder.name}/{SUMS}"
    faults = [*pins.faults, *campaign.broken]
    for path in sorted(pins.sources):
        fault = pins.check(path)
        recorded = set(pins.sources[path].values())
        if fault is not None:
            faults.append(fault)
            if fault.kind == "changed":
                # One of the two was changed: the file, or a record of it. The records are named as well when
                # nothing else vouches for them.
                faults += _doubtful_records(pins, path, sums)
        if sums is not None and path not in sums:
            faults.append(Fault(path, "unpinned", f"not listed in {own}"))
        elif sums is not None and recorded != {sums[path]} and fault is None:
            faults.append(Fault(own, "changed", f"disagrees with the records of {path}"))
    named = set(campaign.sessions())
    for session_id in session_ids(campaign):
        manifest = f"evidence/{session_id}/{MANIFEST}"
        if not (campaign.results / manifest).is_file():
            # A session that only an attempt names may have been killed before it could be closed.
            if session_id in named:
                faults.append(Fault(manifest, "missing", "the session was not closed"))
            continue
        for file in session_files(campaign, session_id):
            relative = file.relative_to(campaign.results).as_posix()
            if relative != manifest and relative not in pins.sources:
                faults.append(Fault(relative, "unpinned", "no record names it"))
    faults += compare_receipts(campaign)
    report.files_hashed = max(report.files_hashed, len(pins.sources))
    report.blame(faults)


def compare_receipts(campaign: Campaign) -> list[Fault]:
    """A receipt is its stage record and where that lies; only the brackets of gate_after are its own."""
    faults = []
    for receipt in campaign.receipts:
        pinned = receipt.body.get("stage_record")
        if not isinstance(pinned, dict):
            continue
        try:
            record = read_json(resolve_inside(campaign.results, str(pinned.get("path"))))
        except Incomplete:
            continue  # the missing or broken record is a fault of its own
        body = {key: value for key, value in receipt.body.items() if key != "stage_record"}
        if isinstance(body.get("measured"), dict):
            body["measured"] = {key: value for key, value in body["measured"].items() if key != "brackets"}
        if body != record:
            faults.append(Fault(receipt.path, "changed", f"is not what its record {pinned['path']} says"))
    return faults


def _doubtful_records(pins: Pins, path: str, sums: dict[str, str] | None) -> list[Fault]:
    """Records of ``path`` that disagree with the file while another record agrees with it."""
    try:
        found = sha256_of_file(pins.results / path)
    except OSError:
        return []
    vouched = found in pins.sources[path].values() or (sums or {}).get(path) == found
    if not vouched:
        return []
    return [
        Fault(source, "changed", f"its record of {path} is not what the others say")
        for source, sha256 in pins.sources[path].items()
        if sha256 != found
    ]


def check_files(
    report: AuditReport,
    campaign_dir: Path,
    campaign: Campaign | None,
    pins: Pins | None,
    *,
    require_sums: bool = True,
    use_sums: bool = True,
) -> None:
    """Re-hash all. ``campaign`` is None when its plan cannot be read; the list alone is then checked.

    Without ``use_sums`` the records alone are checked, as before the list was written.
    """
    sums, faults = read_sums(campaign_dir) if use_sums else (None, [])
    before = len(report.faults)
    report.blame(list(odd_files(campaign_dir, campaign_dir.parent)))
    if sums is not None:
        check_sums(report, campaign_dir, sums)
    elif require_sums:
        report.blame(faults)
    if campaign is not None and pins is not None:
        for session_id in session_ids(campaign):
            report.blame(list(odd_files(campaign.results / "evidence" / session_id, campaign.results)))
            report.blame(list(broken_tables(session_files(campaign, session_id), campaign.results)))
        for session_id in session_ids(campaign):
            if session_id not in campaign.sessions():
                pins.add_session(session_id)
        cross_check(report, campaign, pins, sums)
    bad = len(report.faults) - before
    result = AuditResult.VERIFIED if not bad else AuditResult.INCOMPLETE
    detail = f"{report.files_hashed} files re-hashed against SHA256SUMS, manifests and receipts, {bad} faults"
    report.say("files", result, detail)
