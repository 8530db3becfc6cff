"""Judge the gates again from the recorded requests and responses, and compare with the summaries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.audit.outcome import AuditReport
from assay.errors import AssayError
from assay.gates.judge import judge
from assay.gates.policy import make_policy
from assay.records.campaign import Campaign, resolve_inside
from assay.records.files import read_json
from assay.records.gates import AT_LOAD, MIXED
from assay.verdict.record import WHENS
from assay.vocab import AuditResult, Stage


def gate_runs(
    campaign: Campaign, brackets: dict[str, dict[str, Any]], sessions: list[str]
) -> Iterator[tuple[str, str, str]]:
    """(session, when, folder) of every gate run: both halves of each bracket, at load, beside the load."""
    for session_id in sessions:
        for when in WHENS:
            half = (brackets.get(session_id) or {}).get(when)
            if half is not None:
                folder = half["path"].rsplit("/", 1)[0]
                yield session_id, when, folder
                if (campaign.plan.get("gates") or {}).get("at_load"):
                    yield session_id, f"{when} at load", f"{folder}/{AT_LOAD}"
    for receipt in campaign.of_stage(Stage.RUN_SUSTAINED):
        for entry in receipt.body.get("evidence") or ():
            if (
                entry["path"].endswith(f"/{MIXED}/summary.json")
                and receipt.body.get("session_id") in sessions
            ):
                yield str(receipt.body["session_id"]), "mixed", entry["path"].rsplit("/", 1)[0]


def judge_again(report: AuditReport, campaign: Campaign, sessions: list[str], doubtful: set[str]) -> None:
    """Every bracket of ``sessions``: tasks.jsonl graded anew with the plan's own policy.

    ``doubtful`` are files at fault; gates that rest on one are not judged.
    """
    entry = campaign.plan.get("gates") or {}
    brackets: dict[str, dict[str, Any]] = {}
    for receipt in campaign.of_stage(Stage.GATE_AFTER):
        brackets.update((receipt.body.get("measured") or {}).get("brackets") or {})
    try:
        policy = make_policy(entry["object"], Path(f"{campaign.folder.name}/plan.json"))
    except (AssayError, KeyError, TypeError, ValueError) as error:
        detail = f"the plan's gate policy cannot be used: {type(error).__name__}: {error}"
        report.say("gates", AuditResult.INCOMPLETE, detail, f"{campaign.folder.name}/plan.json")
        return
    judged = 0
    for session_id, when, folder in gate_runs(campaign, brackets, sessions):
        summary_path, tasks_path = f"{folder}/summary.json", f"{folder}/tasks.jsonl"
        if {summary_path, tasks_path} & doubtful:
            continue
        try:
            summary = read_json(resolve_inside(campaign.results, summary_path))
            if not isinstance(summary, dict):
                report.say(f"gates {when}", AuditResult.MISMATCH, "the summary is no object", summary_path)
                continue
            again = judge(resolve_inside(campaign.results, tasks_path), policy)
        except AssayError as error:
            report.say(f"gates {when}", AuditResult.INCOMPLETE, str(error), tasks_path)
            continue
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            detail = f"the task records cannot be judged: {type(error).__name__}: {error}"
            report.say(f"gates {when}", AuditResult.MISMATCH, detail, tasks_path)
            continue
        judged += 1
        wrong = [
            f"{kind}: summary {theirs.get('counts')}, judged {mine['counts']}"
            for kind, mine in again["kinds"].items()
            if not _agree(theirs := (summary.get("kinds") or {}).get(kind) or {}, mine)
        ]
        if summary.get("verdict") != again["verdict"]:
            wrong.append(f"verdict: summary {summary.get('verdict')}, judged {again['verdict']}")
        wrong += [f"{one['task_id']}: {one['what']}" for one in again["disagreements"]]
        if wrong:
            report.say(
                f"gates {when}",
                AuditResult.MISMATCH,
                f"{session_id}: {'; '.join(wrong[:4])}",
                summary_path,
            )
    failing = [c for c in report.checks if c.name.startswith("gates ") and c.result != AuditResult.VERIFIED]
    if judged and not failing:
        report.say("gates", AuditResult.VERIFIED, f"{judged} gate runs judged again from their transcripts")
    elif not judged and not failing and not doubtful:
        report.say("gates", AuditResult.INCOMPLETE, "no session has gates that could be judged")


def _agree(theirs: dict[str, object], mine: dict[str, object]) -> bool:
    counts = {key: value for key, value in dict(theirs.get("counts") or {}).items() if value}  # type: ignore[call-overload]
    ours = {key: value for key, value in dict(mine["counts"]).items() if value}  # type: ignore[call-overload]
    return counts == ours and theirs.get("n") == mine["n"] and theirs.get("verdict") == mine["verdict"]
