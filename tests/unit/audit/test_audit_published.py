"""Audits of what was changed with every digest made to fit, and of files that are not what their names say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.audit import verify_results
from assay.digest import sha256_of_file
from make_audited import hash_only, repin


def put_in_place(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    after = change(before)
    assert after != before
    path.write_text(after)


def forge_page(results: Path) -> str:
    page = results / "campaign_test/cards.html"
    put_in_place(page, lambda text: text.replace("<p class=value>", "<p class=value>9", 1))
    return "campaign_test/cards.html"


def forge_crate(results: Path) -> str:
    crate = results / "campaign_test/ro-crate-metadata.json"
    put_in_place(crate, lambda text: text.replace("CompletedActionStatus", "FailedActionStatus", 1))
    return "campaign_test/ro-crate-metadata.json"


def forge_gate_statement(results: Path) -> str:
    path = next((results / "campaign_test/statements").glob("gates_after.*.json"))
    put_in_place(path, lambda text: text.replace('"PASSED"', '"FAILED"'))
    return path.relative_to(results).as_posix()


def forge_audit_statement(results: Path) -> str:
    path = results / "campaign_test/statements/audit.arms.svg.json"
    put_in_place(path, lambda text: text.replace("plotted values", "splendid values"))
    return path.relative_to(results).as_posix()


def add_statement(results: Path) -> str:
    (results / "campaign_test/statements/audit.more.svg.json").write_text("{}")
    return "campaign_test/statements/audit.more.svg.json"


def remove_statement(results: Path) -> str:
    (results / "campaign_test/statements/audit.arms.svg.json").unlink()
    return "campaign_test/statements/audit.arms.svg.json"


@pytest.mark.parametrize(
    "forge",
    [forge_page, forge_crate, forge_gate_statement, forge_audit_statement, add_statement, remove_statement],
)
def test_what_is_published_is_made_again(results: Path, forge: Callable[[Path], str]) -> None:
    """With SHA256SUMS written anew, a changed page, crate or statement is not VERIFIED and is named."""
    named = forge(results)
    repin(results)
    (report,) = verify_results(results)
    assert str(report.result) == "MISMATCH", report.as_text()
    assert named in report.files_at_fault


def rewrite_session(results: Path, name: str, content: bytes) -> str:
    """Another content for a file of the first session, with its manifest, the receipts and the list made to
    fit."""
    path = next((results / "evidence").glob(f"20261129T10*/{name}"))
    manifest = path.parents[name.count("/")] / "MANIFEST.sha256"
    old = {path: sha256_of_file(path), manifest: sha256_of_file(manifest)}
    path.write_bytes(content)
    manifest.write_text(manifest.read_text().replace(old[path], sha256_of_file(path)))
    for record in [*results.rglob("receipts/**/*.json"), *results.rglob("stage.json")]:
        text = record.read_text()
        for changed, was in old.items():
            text = text.replace(was, sha256_of_file(changed))
        record.write_text(text)
    repin(results)
    return path.relative_to(results).as_posix()


def test_a_session_that_tells_of_another_engine(results: Path) -> None:
    """session.json with another engine than the plan has is a MISMATCH, even where every digest fits."""
    session = json.loads(next((results / "evidence").glob("20261129T10*/session.json")).read_text())
    name = rewrite_session(results, "session.json", json.dumps({**session, "engine": "another"}).encode())
    (report,) = verify_results(results)
    assert str(report.result) == "MISMATCH", report.as_text()
    assert name in report.files_at_fault


def test_a_table_that_is_none_is_a_fault(results: Path) -> None:
    """A parquet file that cannot be read is named, even where every digest fits and no row rests on it."""
    name = rewrite_session(results, "warmup/requests.parquet", b"x")
    report = hash_only(results)
    assert str(report.result) == "MISMATCH"
    assert any(fault.path == name and fault.kind == "unreadable" for fault in report.faults)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("campaign_test/plan.json", '{"schema": "assay/plan/1", "points": {"zz": 5}}'),
        ("campaign_test/plan.json", '{"schema": "assay/plan/1", "name": "x", "order": 5}'),
        ("campaign_test/receipts/base/finite/chat_c2/r1.json", "[" * 100_000),
        ("campaign_test/receipts/base/finite/chat_c2/r1.json", '{"evidence": 5}'),
        ("campaign_test/receipts/base/gate_after.json", '{"measured": {"brackets": {"../..": {}}}}'),
        ("campaign_test/extracts/cards.json", "[" * 100_000),
        ("campaign_test/extracts/cards.json", "[]"),
        ("campaign_test/ro-crate-metadata.json", '{"@graph": [5]}'),
        ("evidence/*/gates_after/summary.json", "[]"),
        ("evidence/*/gates_after/tasks.jsonl", "[]\n5\n"),
        ("evidence/*/finite/chat_c2/r1/client.json", '{"issue": []}'),
    ],
)
def test_misshapen_files_are_findings(results: Path, name: str, content: str) -> None:
    """Whatever stands in a file, the audit ends with a result that names it, never with an error of its own."""
    path = next(results.glob(name))
    path.write_text(content)
    reports = verify_results(results)
    assert str(reports[0].result) in ("MISMATCH", "INCOMPLETE")
    assert path.relative_to(results).as_posix() in reports[0].files_at_fault


def test_links_and_pipes_are_faults_and_are_not_opened(results: Path, tmp_path: Path) -> None:
    """Evidence that is a link to the same bytes elsewhere, and a pipe among the charts, are named; nothing hangs."""
    linked = next((results / "evidence").glob("*/finite/chat_c2/r1/requests.parquet"))
    linked.rename(tmp_path / "elsewhere.parquet")
    linked.symlink_to(tmp_path / "elsewhere.parquet")
    os.mkfifo(linked.parents[3] / "stage.json")
    os.mkfifo(results / "campaign_test/charts/zzz.svg")
    os.mkfifo(results / "campaign_test/extracts/zzz.csv")
    os.mkfifo(results / "campaign_test/receipts/zzz.json")
    (report,) = verify_results(results)
    assert str(report.result) == "MISMATCH"
    assert {
        linked.relative_to(results).as_posix(),
        (linked.parents[3] / "stage.json").relative_to(results).as_posix(),
        "campaign_test/charts/zzz.svg",
        "campaign_test/extracts/zzz.csv",
        "campaign_test/receipts/zzz.json",
    } <= {fault.path for fault in report.faults}
