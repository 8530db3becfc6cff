"""Runs of gates against the scripted server, checked as every run must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from assay.gates import Endpoint, Policy, judge, make_policy, read_tasks, run_gates
from engines.gate_server import GateServer

ROOT = Path(__file__).resolve().parents[2]
WHY = {"min_pass_share": 1.0, "reason": "every one", "source": "a test"}
SMALL = {"set": "small"}
NEEDLES = {"keys": 1, "depths_percent": [50], "lengths_tokens": [200]}


def policy_of(thinking: bool | None = None, timeout_s: float = 20, **gates: Any) -> Policy:
    spec = {
        "schema": "assay/gates/1",
        "name": "test",
        "request": {"timeout_s": timeout_s, "extra_body": {"cache_prompt": False}},
        "thinking": {"ask": thinking},
        "gates": {kind: {"threshold": WHY, **gate} for kind, gate in gates.items()},
    }
    return make_policy(spec, Path("test.yaml"))


def run(
    policy: Policy, server: GateServer, out: Path, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(summary, records by task id); the judge must reach the same verdict from the disk alone."""
    summary = run_gates(Endpoint(server.url, "scripted"), policy, out, when="before", **options)
    assert_described(out)
    again = judge(out / "tasks.jsonl", policy)
    assert again["disagreements"] == []
    assert again["kinds"] == summary["kinds"]
    assert again["verdict"] == summary["verdict"]
    return summary, {record["task_id"]: record for record in read_tasks(out / "tasks.jsonl")}


def assert_described(out: Path) -> None:
    """Every file of a run meets its record schema."""
    records = ROOT / "workflow" / "schemas" / "record"
    line_schema = Draft202012Validator(json.loads((records / "gates_task.schema.json").read_text()))
    for line in (out / "tasks.jsonl").read_text().splitlines():
        line_schema.validate(json.loads(line))
    summary_schema = Draft202012Validator(json.loads((records / "gates_summary.schema.json").read_text()))
    summary_schema.validate(json.loads((out / "summary.json").read_text()))


def outcome_of(policy: Policy, task_id: str, reply: Any, out: Path) -> tuple[str, str | None]:
    with GateServer(policy, {task_id: reply}) as server:
        _, records = run(policy, server, out)
    return records[task_id]["outcome"], records[task_id]["reason"]
