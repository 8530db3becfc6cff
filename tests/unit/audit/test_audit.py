"""Audits of a small campaign: what is right is VERIFIED, and whatever is touched is found and named."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from assay.audit import audit_target, verify_results
from assay.chart import render_chart
from assay.chart.render import read_identity
from assay.cli import main
from assay.errors import BadInput, CheckFailed
from assay.extract import everything
from assay.records.files import write_json
from assay.report.evidence import write_evidence
from make_audited import finish, hash_only, repin
from make_results import ROOT, Scene

REFERENCE = ROOT / "config" / "reference" / "published_results.csv"
CHART = "campaign_test/charts/throughput.svg"


@pytest.mark.parametrize(
    "target",
    [
        CHART,
        "campaign_test/charts/arms.png",
        "campaign_test/charts/sustained.svg",
        "campaign_test/extracts/rows.csv",
        "campaign_test/extracts/rows.csv#base/chat_c2/r2",
        "campaign_test/extracts/rows.parquet#fast/soak_c2/pooled",
        "campaign_test/extracts/verdicts.json",
        "campaign_test/extracts/attempts.csv",
        "campaign_test/extracts/comparison.csv",
        "campaign_test/receipts/base/finite/chat_c2/r1.json",
        "campaign_test/receipts/fast/gate_after.json",
        "campaign_test",
    ],
)
def test_an_untouched_campaign_is_verified(results: Path, target: str) -> None:
    """Every kind of target of a copied folder is VERIFIED, with exit code 0."""
    report = audit_target(results / target)
    assert (str(report.result), report.exit_code) == ("VERIFIED", 0), report.as_text()
    assert report.as_text().splitlines()[-1] == "VERIFIED"


def test_a_chart_audit_tells_each_point(results: Path) -> None:
    """Each plotted value is told with its recomputation, its n, its population and the rows behind it."""
    report = audit_target(results / CHART)
    assert [(p["arm"], p["shown"], p["recomputed"], p["n"]) for p in report.points] == [
        ("base", pytest.approx(110.0), pytest.approx(110.0), 3),
        ("fast", pytest.approx(110.0), pytest.approx(110.0), 3),
    ]
    assert report.points[0]["population"] == "ok requests of one repeat"
    assert len(report.points[0]["rows"]) == 3
    assert [one["image"] for one in report.origin] == ["img@dddddddddddd"] * 2


def test_exclusions_are_told_with_their_reasons(tmp_path: Path) -> None:
    """A point whose repeat is invalid tells which repeat was left out, and why."""
    scene = Scene(tmp_path)
    scene.states["base/chat_c2/r2"] = ("invalid", ["client_bound"])
    report = audit_target(finish(scene.build()) / CHART)
    assert str(report.result) == "VERIFIED"
    assert report.points[0]["n"] == 2
    assert report.points[0]["excluded"] == {"base/chat_c2/r2": ["client_bound", "stage:invalid"]}
    assert "client_bound" in report.as_text()


def test_a_chart_that_was_copied_out_of_its_folder(results: Path, tmp_path: Path) -> None:
    """A chart found elsewhere is audited against the results folder it is said to come from."""
    found = Path(shutil.copy(results / CHART, tmp_path / "from-a-website.svg"))
    assert str(audit_target(found, results).result) == "VERIFIED"
    found.write_text(found.read_text().replace("#0072b2", "#d55e00"))
    assert str(audit_target(found, results).result) == "MISMATCH"
    with pytest.raises(BadInput):
        audit_target(found)


def forge_rows(results: Path) -> str:
    path = results / "campaign_test/extracts/rows.csv"
    path.write_text(path.read_text().replace(",110.0,", ",210.0,"))
    return "campaign_test/extracts/rows.csv"


def forge_chart_data(results: Path) -> str:
    path = results / "campaign_test/extracts/chart_data.json"
    data = json.loads(path.read_text())
    data["charts"]["throughput"]["panels"][0]["series"][0]["points"][0]["value"] = 210.0
    write_json(path, data)
    for form in ("svg", "png"):  # the chart is drawn anew from the forged entry
        render_chart(data, "throughput", results / f"campaign_test/charts/throughput.{form}")
    return "campaign_test/extracts/chart_data.json"


def forge_svg(results: Path) -> str:
    path = results / CHART
    path.write_text(path.read_text().replace("#0072b2", "#d55e00"))
    return CHART


def forge_requests(results: Path) -> str:
    """Another table of requests, with the receipt's own digests made to fit."""
    receipt = results / "campaign_test/receipts/base/finite/chat_c2/r1.json"
    body = json.loads(receipt.read_text())
    body["evidence"][-1]["sha256"] = body["evidence"][0]["sha256"]
    receipt.write_text(json.dumps(body))
    return "campaign_test/receipts/base/finite/chat_c2/r1.json"


def forge_state(results: Path) -> str:
    """A receipt that calls a failed stage completed."""
    receipt = results / "campaign_test/receipts/fast/warm_up.json"
    receipt.write_text(receipt.read_text().replace('"state": "completed"', '"state": "failed"'))
    return "campaign_test/receipts/fast/warm_up.json"


def forge_gates(results: Path) -> str:
    """A task that was answered wrongly, called a pass, with every digest of the session made to fit."""
    (summary,) = (results / "evidence").glob("20261129T10*/gates_after/summary.json")
    body = json.loads(summary.read_text())
    body["kinds"]["json"]["counts"]["pass"] -= 1
    body["kinds"]["json"]["counts"]["wrong_value"] += 1
    summary.write_text(json.dumps(body))
    return summary.relative_to(results).as_posix()


def forge_asked(results: Path) -> str:
    """A plan that says another seed than the receipts were asked."""
    path = results / "campaign_test/plan.json"
    plan = json.loads(path.read_text())
    plan["points"]["chat_c2"]["seed"] = 4711
    write_json(path, plan)
    return "campaign_test/receipts/base/finite/chat_c2/r1.json"


def forge_publication(results: Path) -> str:
    """A policy that asks for less, under the digest of the one that was agreed."""
    path = results / "campaign_test/plan.json"
    plan = json.loads(path.read_text())
    plan["publication"]["object"]["required"] = plan["publication"]["object"]["required"][:1]
    write_json(path, plan)
    return "campaign_test/plan.json"


def forge_digest(results: Path) -> str:
    """Another image in the plan's list than its arms were served from."""
    path = results / "campaign_test/plan.json"
    plan = json.loads(path.read_text())
    plan["images"]["img"]["digest"] = "0" * 64
    write_json(path, plan)
    return "campaign_test/plan.json"


@pytest.mark.parametrize(
    "forge",
    [
        *(forge_rows, forge_chart_data, forge_svg, forge_requests, forge_state, forge_gates),
        *(forge_asked, forge_publication, forge_digest),
    ],
)
def test_a_forgery_that_fits_the_list_is_found(results: Path, forge: Callable[[Path], str]) -> None:
    """With SHA256SUMS written anew to fit, a forged row, chart, receipt or gate is still a MISMATCH and is named."""
    named = forge(results)
    repin(results)
    report = audit_target(results / CHART)
    assert str(report.result) == "MISMATCH", report.as_text()
    assert named in report.files_at_fault
    assert report.exit_code == 1


def test_one_flipped_byte_in_any_file_is_found(results: Path) -> None:
    """For every file of the campaign and its sessions: one flipped bit is not VERIFIED, and the file is named."""
    files = sorted(path for path in results.rglob("*") if path.is_file())
    assert len(files) > 100
    for number, path in enumerate(files):
        whole = path.read_bytes()
        place = (number * 7919 + 13) % len(whole)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << number % 8)]) + whole[place + 1 :])
        report = hash_only(results)
        name = path.relative_to(results).as_posix()
        assert str(report.result) != "VERIFIED", name
        assert name in report.files_at_fault, (name, report.files_at_fault)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "name",
    [
        "campaign_test/SHA256SUMS",
        "campaign_test/plan.json",
        "campaign_test/extracts/chart_data.json",
        "campaign_test/extracts/rows.csv",
        "campaign_test/receipts/base/gate_after.json",
        "campaign_test/receipts/base/finite/chat_c2/r1.json",
        "campaign_test/ro-crate-metadata.json",
        "evidence/*/finite/chat_c2/r1/requests.parquet",
        "evidence/*/finite/chat_c2/r1/stage.json",
        "evidence/*/sustained/soak_c2/w2/client.json",
        "evidence/*/gates_after/tasks.jsonl",
        "evidence/*/gates_before/summary.json",
        "evidence/*/session.json",
        "evidence/*/server.log",
        "evidence/*/MANIFEST.sha256",
    ],
)
def test_a_deleted_file_is_incomplete_and_named(results: Path, name: str) -> None:
    """Deleting any one file ends INCOMPLETE, exit 3, and names the file; consequences are not called mismatches."""
    path = next(results.glob(name))
    path.unlink()
    report = audit_target(results / CHART)
    assert (str(report.result), report.exit_code) == ("INCOMPLETE", 3), report.as_text()
    assert path.relative_to(results).as_posix() in report.files_at_fault


def test_a_file_that_nobody_pinned_is_told(results: Path) -> None:
    """A file that was added to a session or to the campaign afterwards is not covered, and is named."""
    added = next((results / "evidence").iterdir()) / "finite" / "extra.json"
    added.write_text("{}")
    report = audit_target(results / CHART)
    assert str(report.result) == "INCOMPLETE"
    assert added.relative_to(results).as_posix() in report.files_at_fault


def test_no_evidence_is_pinned_that_is_not_what_was_recorded(tmp_path: Path) -> None:
    """write_evidence refuses a session file that its manifest does not confirm, names it, and pins nothing."""
    scene = Scene(tmp_path)
    folder = scene.build()
    everything.write(folder)
    log = scene.results / "evidence" / scene.session_id("base") / "server.log"
    log.write_text("another log\n")
    with pytest.raises(CheckFailed, match=r"server\.log"):
        write_evidence(folder)
    assert not (folder / "SHA256SUMS").exists()


def test_targets_that_cannot_be_audited_are_bad_input(results: Path, tmp_path: Path) -> None:
    """A file of no campaign, or of no auditable kind, is refused with a hint."""
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(BadInput):
        audit_target(tmp_path / "x.json")
    with pytest.raises(BadInput):
        audit_target(results / "campaign_test/plan.json")


def test_verify_judges_each_campaign_of_a_folder(results: Path) -> None:
    """verify_results audits every extract and chart, and an empty folder is bad input."""
    (report,) = verify_results(results)
    assert str(report.result) == "VERIFIED", report.as_text()
    assert {"attempts.csv", "cards.json", "verdicts.json"} <= {check.name for check in report.checks}
    with pytest.raises(BadInput):
        verify_results(results / "evidence")


class Told(NamedTuple):
    returncode: int
    stdout: str


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """The command line in this process: exit code and what it printed."""

    def run(*words: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["assay", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Told(int(ended.value.code or 0), capsys.readouterr().out)

    return run


def test_command_line(results: Path, assay: Callable[..., Told]) -> None:
    """`assay audit` and `assay verify` end 0, 1, 2 or 3, as text or JSON."""
    good = assay("audit", str(results / CHART), "--format", "json")
    assert good.returncode == 0
    assert json.loads(good.stdout)["result"] == "VERIFIED"
    shown = assay("compare", str(results / "campaign_test"))
    assert shown.returncode == 0
    assert "matched" in shown.stdout
    beside = assay(
        "compare", str(results / "campaign_test"), "--reference", str(REFERENCE), "--format", "json"
    )
    assert json.loads(beside.stdout)["lines"] == []
    forge_svg(results)
    bad = assay("verify", str(results))
    assert bad.returncode == 1
    assert CHART in bad.stdout
    (results / CHART).unlink()
    assert assay("audit", str(results / CHART)).returncode == 2
    gone = assay("audit", str(results / "campaign_test/charts/ttft.svg"))
    assert gone.returncode == 3
    assert gone.stdout.splitlines()[-1] == "INCOMPLETE"


def test_identity_inside_the_chart(results: Path) -> None:
    """SVG and PNG carry campaign, chart and the digest of their entry."""
    for form in ("svg", "png"):
        mark = read_identity(results / f"campaign_test/charts/arms.{form}")
        assert (mark["campaign"], mark["chart_id"]) == ("campaign_test", "arms")
        assert len(mark["entry_sha256"]) == 64


def _without_column(path: Path, name: str) -> None:
    lines = list(csv.reader(io.StringIO(path.read_text(), newline="")))
    place = lines[0].index(name)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([*line[:place], *line[place + 1 :]] for line in lines)


def lose_column(results: Path) -> str:
    _without_column(results / "campaign_test/extracts/rows.csv", "publishable")
    return "rows.csv"


def lose_parquet_columns(results: Path) -> str:
    path = results / "campaign_test/extracts/rows.parquet"
    pq.write_table(pq.read_table(path, columns=["row_id"]), path)
    return "rows.parquet"


def lose_order(results: Path) -> str:
    path = results / "campaign_test/extracts/rows.csv"
    head, *lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([head, *reversed(lines)]))
    return "rows.csv"


def lose_attempts(results: Path) -> str:
    (results / "campaign_test/extracts/attempts.csv").unlink()
    return "attempts.csv"


def lose_cards(results: Path) -> str:
    (results / "campaign_test/extracts/cards.json").unlink()
    (results / "campaign_test/cards.html").unlink()
    return "cards.json"


def lose_chart(results: Path) -> str:
    for form in ("svg", "png"):
        (results / f"campaign_test/charts/throughput.{form}").unlink()
        (results / f"campaign_test/statements/audit.throughput.{form}.json").unlink()
    return "throughput.svg"


@pytest.mark.parametrize(
    "lose", [lose_column, lose_parquet_columns, lose_order, lose_attempts, lose_cards, lose_chart]
)
def test_what_should_be_there_and_is_not_is_no_pass(results: Path, lose: Callable[[Path], str]) -> None:
    """A column, an extract or a chart that is gone, with the lists written anew to fit, is not VERIFIED."""
    named = lose(results)
    repin(results)
    report = audit_target(results / "campaign_test")
    assert str(report.result) != "VERIFIED"
    assert any(named in text for text in report.files_at_fault), report.files_at_fault


def test_a_row_that_does_not_recompute_ends_its_own_audit(results: Path) -> None:
    """A row that stands twice, once forged: the audit of that row alone is a MISMATCH too."""
    path = results / "campaign_test/extracts/rows.csv"
    head, first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([head, first.replace(",110.0,", ",999.0,"), first, *rest]))
    repin(results)
    report = audit_target(Path(f"{path}#base/chat_c2/r1"))
    assert str(report.result) == "MISMATCH"
