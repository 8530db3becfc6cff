"""Verdicts from the task records on disk: computed by the run, recomputed by the audit without a server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import Incomplete
from assay.gates.grade import grade_record
from assay.gates.needles import haystack_messages
from assay.gates.policy import Policy
from assay.gates.reasons import GateReason
from assay.gates.tasks import Task, read_data
from assay.gates.thinking import judge_thinking
from assay.vocab import GateKind, GateOutcome, ScreenResult, Verdict

_MAX_WORDS = 20_000_000
"""More filler than any context holds: a record that claims it is not followed."""


def read_tasks(path: Path) -> list[dict[str, Any]]:
    """The lines of a tasks.jsonl. Raises Incomplete when it is missing or a line is broken."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line]
    except FileNotFoundError as error:
        raise Incomplete(f"{path}: not there") from error
    except (OSError, ValueError) as error:
        raise Incomplete(f"{path}: cannot be read: {error}") from error


def judge(
    summary_or_tasks: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Path, policy: Policy
) -> dict[str, Any]:
    """Recompute verdicts from records. Pure: no server, no clock.

    Given task records (or the path of their tasks.jsonl), every task is graded again from its recorded
    answer, and ``disagreements`` lists where the record says otherwise, does not fit the policy, or is
    missing. Given a summary, the verdicts are recomputed from its counts.
    """
    if isinstance(summary_or_tasks, Path):
        summary_or_tasks = read_tasks(summary_or_tasks)
    if isinstance(summary_or_tasks, Mapping):
        return _judge_summary(summary_or_tasks, policy)
    records = list(summary_or_tasks)
    grades, disagreements = _grade_all(records, policy)
    kinds = {
        kind: _kind_verdict([g for k, g in grades if k is kind], kind, policy) for kind in policy.kinds()
    }
    thinking = judge_thinking(records, policy.ask_thinking)
    return {
        "policy": policy.name,
        "policy_sha256": policy.sha256,
        "tasks_sha256": policy.tasks_sha256,
        "kinds": {kind.value: value for kind, value in kinds.items()},
        "n": len(grades),
        "thinking": thinking,
        "verdict": _overall(kinds.values(), thinking["verdict"]),
        "disagreements": disagreements,
    }


def _grade_all(
    records: Sequence[Mapping[str, Any]], policy: Policy
) -> tuple[list[tuple[GateKind, dict[str, Any]]], list[dict[str, str]]]:
    """(kind, {outcome, reason}) of every task due and of every repetition recorded; and what does not fit."""
    grades: list[tuple[GateKind, dict[str, Any]]] = []
    disagreements: list[dict[str, str]] = []
    seen: Counter[tuple[str, int]] = Counter()
    tasks = {task.id: task for task in policy.tasks}
    for record in records:
        task_id, round_number = str(record.get("task_id")), int(record.get("round", 0))
        task = tasks.get(task_id)
        if task is None:
            disagreements.append({"task_id": task_id, "what": "not a task of this policy"})
            continue
        seen[task_id, round_number] += 1
        if seen[task_id, round_number] > 1:
            # which of the two is the answer cannot be told: neither improves the verdict
            twice = {"outcome": GateOutcome.COULD_NOT_RUN.value, "reason": GateReason.RECORDED_TWICE.value}
            grades.append((task.kind, twice))
            disagreements.append({"task_id": task_id, "what": "recorded twice"})
            continue
        grade = grade_record(task, record, policy.ask_thinking)
        entry = {"outcome": grade.outcome.value, "reason": grade.reason.value if grade.reason else None}
        if not _is_asked_as_due(task, record, policy):
            entry = {"outcome": GateOutcome.COULD_NOT_RUN.value, "reason": GateReason.REQUEST_DIFFERS.value}
            disagreements.append({"task_id": task_id, "what": "the recorded request is not the policy's"})
        elif (record.get("outcome"), record.get("reason")) != (entry["outcome"], entry["reason"]):
            what = f"recorded {record.get('outcome')}/{record.get('reason')}, "
            disagreements.append(
                {"task_id": task_id, "what": what + f"graded {entry['outcome']}/{entry['reason']}"}
            )
        grades.append((task.kind, entry))
    # the first round is due in full, and so is every round that another one followed
    last_round = max((round_number for _, round_number in seen), default=0)
    for round_number in range(max(last_round, 1)):
        for task in policy.tasks:
            if (task.id, round_number) not in seen:
                missing = {
                    "outcome": GateOutcome.COULD_NOT_RUN.value,
                    "reason": GateReason.MISSING_RECORD.value,
                }
                grades.append((task.kind, missing))
                disagreements.append({"task_id": task.id, "what": "no record"})
    return grades, disagreements


def _is_asked_as_due(task: Task, record: Mapping[str, Any], policy: Policy) -> bool:
    """The recorded requests are what the policy makes of the task, down to a needle's filler."""
    request = record.get("request")
    if request is None:
        return bool(record.get("before_sending"))
    body = request["body"]
    if task.messages is not None:
        messages = [dict(message) for message in task.messages]
    else:
        n_words = record.get("needle", {}).get("n_words", 0)
        if not isinstance(n_words, int) or not 0 <= n_words <= _MAX_WORDS:
            return False
        messages = haystack_messages(task.check, read_data("filler"), n_words)
    if body != policy.request_body(task, body["model"], messages, stream=False):
        return False
    streamed = record.get("streamed")
    if not streamed:
        return True
    due: bool = streamed["request"]["body"] == policy.request_body(task, body["model"], messages, stream=True)
    return due


def _kind_verdict(grades: Sequence[Mapping[str, Any]], kind: GateKind, policy: Policy) -> dict[str, Any]:
    counts = Counter(grade["outcome"] for grade in grades)
    reasons = Counter(f"{grade['outcome']}/{grade['reason']}" for grade in grades if grade["reason"])
    threshold = policy.thresholds[kind]
    value = {
        "n": len(grades),
        "counts": {outcome.value: counts.get(outcome.value, 0) for outcome in GateOutcome},
        "reasons": dict(sorted(reasons.items())),
        "threshold": threshold.min_pass_share,
    }
    value["verdict"] = _meets(value)
    return value


def _meets(kind: Mapping[str, Any]) -> str:
    """pass when at least one task was due and the share of passes over all of them reaches the threshold.

    Tasks that were unavailable or could not be run stay in the denominator: they passed nothing.
    """
    n, n_pass = kind["n"], kind["counts"].get(GateOutcome.PASS.value, 0)
    reached = n >= 1 and n_pass >= 1 and n_pass >= kind["threshold"] * n - 1e-9
    return (Verdict.PASS if reached else Verdict.FAIL).value


def _overall(kinds: Iterable[Mapping[str, Any]], thinking: str) -> str:
    """fail without any kind; invalid when the thinking toggle was ignored; pass when every kind passes."""
    values = [kind["verdict"] for kind in kinds]
    if not values:
        return Verdict.FAIL.value
    if thinking == ScreenResult.FAIL.value:
        return Verdict.INVALID.value
    return (Verdict.PASS if all(value == Verdict.PASS.value for value in values) else Verdict.FAIL).value


def _judge_summary(summary: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    disagreements = []
    kinds: dict[str, dict[str, Any]] = {}
    due = Counter(task.kind for task in policy.tasks)
    for kind in policy.kinds():
        given = summary.get("kinds", {}).get(kind.value)
        if given is None or sum(given["counts"].values()) != given["n"] or given["n"] < due[kind]:
            disagreements.append({"task_id": kind.value, "what": "its counts are missing or do not add up"})
            given = {"n": due[kind], "counts": {GateOutcome.COULD_NOT_RUN.value: due[kind]}, "reasons": {}}
        kinds[kind.value] = {**given, "threshold": policy.thresholds[kind].min_pass_share}
        kinds[kind.value]["verdict"] = _meets(kinds[kind.value])
        if given.get("verdict", kinds[kind.value]["verdict"]) != kinds[kind.value]["verdict"]:
            disagreements.append({"task_id": kind.value, "what": "another verdict than its counts give"})
    for name, ours in (("policy_sha256", policy.sha256), ("tasks_sha256", policy.tasks_sha256)):
        if summary.get(name) != ours:
            disagreements.append({"task_id": name, "what": "made by another policy"})
    thinking = summary.get("thinking") or {"verdict": ScreenResult.NOT_CHECKED.value}
    verdict = _overall(kinds.values(), thinking["verdict"])
    if summary.get("verdict") != verdict:
        disagreements.append(
            {"task_id": "verdict", "what": f"summary says {summary.get('verdict')}, counts {verdict}"}
        )
    return {
        "policy": policy.name,
        "policy_sha256": policy.sha256,
        "tasks_sha256": policy.tasks_sha256,
        "kinds": kinds,
        "n": sum(kind["n"] for kind in kinds.values()),
        "thinking": thinking,
        "verdict": verdict,
        "disagreements": disagreements,
    }
