"""in-toto Statements (v1) about gates and audits, with the test-result predicate (v0.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.digest import sha256_of_file
from assay.records.campaign import Campaign, read_lines, resolve_inside
from assay.records.files import read_json
from assay.verdict.record import WHENS
from assay.vocab import AuditResult, GateOutcome, Stage, Verdict

if TYPE_CHECKING:  # the audit makes the statements again, and imports this module
    from assay.audit.outcome import AuditReport

STATEMENT = "https://in-toto.io/Statement/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"


def make_statement(
    subjects: Mapping[str, str],
    *,
    passed: Sequence[str],
    failed: Sequence[str],
    result: str,
    configuration: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """One statement; ``subjects`` are {path relative to results: sha256}. Raises ValueError without a
    subject."""
    if not subjects:
        raise ValueError("a statement needs a subject")
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": sha256}} for name, sha256 in sorted(subjects.items())
        ],
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": result,
            "configuration": list(configuration),
            "passedTests": list(passed),
            "failedTests": list(failed),
        },
    }


def gate_statements(campaign: Campaign) -> dict[str, dict[str, Any]]:
    """{file name: statement} of every half of every session's bracket."""
    gates = campaign.plan.get("gates") or {}
    configuration = [
        {"name": f"gates policy {gates.get('policy')}", "digest": {"sha256": gates.get("sha256")}}
    ]
    found = {}
    for receipt in campaign.of_stage(Stage.GATE_AFTER):
        for session_id, bracket in ((receipt.body.get("measured") or {}).get("brackets") or {}).items():
            for when in WHENS:
                half = bracket.get(when)
                if half is None:
                    continue
                folder = half["path"].rsplit("/", 1)[0]
                paths = [f"{folder}/summary.json", f"{folder}/tasks.jsonl"]
                subjects = {path: sha256_of_file(resolve_inside(campaign.results, path)) for path in paths}
                tasks = list(read_lines(resolve_inside(campaign.results, paths[1])))
                summary = read_json(resolve_inside(campaign.results, paths[0]))
                good = [str(task.get("task_id")) for task in tasks if task.get("outcome") == GateOutcome.PASS]
                bad = [
                    f"{task.get('task_id')}: {task.get('outcome')}"
                    for task in tasks
                    if task.get("outcome") != GateOutcome.PASS
                ]
                passed = summary.get("verdict") == Verdict.PASS
                found[f"gates_{when}.{session_id}.json"] = make_statement(
                    subjects,
                    passed=good,
                    failed=bad,
                    result="PASSED" if passed else "FAILED",
                    configuration=configuration,
                )
    return found


def audit_statement(report: AuditReport, target: Path, results: Path) -> dict[str, Any]:
    """What an audit of one file found: its checks by name, VERIFIED as PASSED and anything else as FAILED."""
    name = target.resolve().relative_to(results).as_posix()
    good = [
        f"{check.name}: {check.detail}" for check in report.checks if check.result == AuditResult.VERIFIED
    ]
    bad = [
        f"{check.name}: {check.result}: {check.detail}"
        for check in report.checks
        if check.result != AuditResult.VERIFIED
    ] + [f"{fault.path}: {fault.kind}" for fault in report.faults]
    here = f"{results}/"  # a statement names files below results, not where they lie on this machine
    good, bad = ([text.replace(here, "") for text in texts] for texts in (good, bad))
    verified = report.result == AuditResult.VERIFIED
    data = results / str(report.campaign) / "extracts" / "chart_data.json"
    return make_statement(
        {name: sha256_of_file(target)},
        passed=good,
        failed=bad,
        result="PASSED" if verified else "FAILED",
        configuration=[
            {"name": data.relative_to(results).as_posix(), "digest": {"sha256": sha256_of_file(data)}},
        ]
        if data.is_file()
        else [],
    )
