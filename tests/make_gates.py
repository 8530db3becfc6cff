"""Gate records as a run would leave them, judged by the product's own judge: JSON tasks answered as
scripted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.gates.grade import grade_record
from assay.gates.judge import judge, read_tasks
from assay.gates.policy import Policy, make_policy

GATE_SPEC: dict[str, Any] = {
    "schema": "assay/gates/1",
    "name": "test",
    "description": "The JSON tasks.",
    "request": {"temperature": 0, "timeout_s": 20},
    "gates": {
        "json": {
            "tasks": {"set": "standard"},
            "threshold": {"min_pass_share": 1.0, "reason": "all of them parse", "source": "tests"},
        }
    },
}


def policy() -> Policy:
    return make_policy(GATE_SPEC, Path("tests/make_gates.py"))


def _response(expected: Any, outcome: str) -> dict[str, Any]:
    if outcome == "unavailable":
        return {"status": 500, "body": "internal server error"}
    content = json.dumps(expected if outcome == "pass" else {"wrong": True})
    if outcome == "malformed":
        content = f"Sure! {content}"
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return {"status": 200, "body": json.dumps({"choices": [choice], "usage": {"completion_tokens": 9}})}


def write_gates(folder: Path, when: str, bad: dict[str, int]) -> list[Path]:
    """tasks.jsonl and summary.json: ``bad`` is outcome -> how many of the last tasks end so."""
    chosen = policy()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = ["pass"] * (len(chosen.tasks) - sum(bad.values()))
    outcomes += [outcome for outcome, count in bad.items() for _ in range(count)]
    lines = []
    for task, outcome in zip(chosen.tasks, outcomes, strict=True):
        messages = [dict(message) for message in task.messages or ()]
        record: dict[str, Any] = {
            "task_id": task.id,
            "kind": task.kind.value,
            "round": 0,
            "expected": task.expected,
            "request": {"body": chosen.request_body(task, "tiny", messages, stream=False)},
            "response": _response(task.expected, outcome),
            "streamed": None,
        }
        grade = grade_record(task, record, chosen.ask_thinking)
        record |= {"outcome": grade.outcome.value, "reason": grade.reason.value if grade.reason else None}
        lines.append(json.dumps(record, sort_keys=True) + "\n")
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(lines))
    summary = judge(read_tasks(tasks), chosen)
    assert not summary.pop("disagreements")
    path = folder / "summary.json"
    path.write_text(json.dumps(summary | {"when": when}, indent=1, sort_keys=True) + "\n")
    return [path, tasks]
