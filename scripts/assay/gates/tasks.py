"""Gate tasks: what is asked and what is expected, built from policy and task data without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.gates.needles import needle_specs
from assay.vocab import GateKind

DATA_ROOT = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True)
class Task:
    """One gate task.

    ``body`` holds the request keys that belong to the task (max_tokens, response_format, tools, ...);
    ``messages`` the chat, None for a needle, whose chat is made to measure on the server;
    ``expected`` what a right answer holds; ``check`` what the grader needs besides (schema, cases, limits).
    """

    id: str
    kind: GateKind
    messages: tuple[Mapping[str, Any], ...] | None
    body: Mapping[str, Any]
    expected: Any
    check: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_streamed_too(self) -> bool:
        """Tool tasks are asked twice: whole and streamed."""
        return self.kind is GateKind.TOOL

    def as_record(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]


def build_tasks(gates: Mapping[str, Any], where: Path) -> Iterator[Task]:
    """The tasks of a policy's ``gates`` mapping, in a fixed order. BadInput for an unknown task id."""
    if "json" in gates:
        for item in _selected("json_tasks", gates["json"]["tasks"], where, "gates.json.tasks"):
            yield _json_task(item, gates["json"])
    if "tool" in gates:
        for item in _selected("tool_tasks", gates["tool"]["tasks"], where, "gates.tool.tasks"):
            yield _tool_task(item, gates["tool"])
    if "needle" in gates:
        for spec in needle_specs(gates["needle"], read_data("filler"), where):
            body = {"max_tokens": gates["needle"].get("max_tokens", 64)}
            yield Task(spec["id"], GateKind.NEEDLE, None, body, spec["key"], spec)
    if "code" in gates:
        for item in _selected("code_tasks", gates["code"]["tasks"], where, "gates.code.tasks"):
            yield _code_task(item, gates["code"])


@cache
def read_data(name: str) -> dict[str, Any]:
    """One of the package's own task files."""
    loaded: dict[str, Any] = json.loads((DATA_ROOT / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def _selected(data: str, choice: Mapping[str, Any], where: Path, key: str) -> list[dict[str, Any]]:
    """The data items a policy selects: a whole ``set``, or ``ids`` in the order given."""
    items: list[dict[str, Any]] = read_data(data)["tasks"]
    if "set" in choice:
        chosen = [item for item in items if item["set"] == choice["set"]]
        if not chosen:
            names = ", ".join(sorted({item["set"] for item in items}))
            raise BadInput(f"no set {choice['set']!r}", where=where, key=f"{key}.set", hint=f"one of {names}")
        return chosen
    by_id = {item["id"]: item for item in items}
    for task_id in choice["ids"]:
        if task_id not in by_id:
            raise BadInput(
                f"no task {task_id!r}", where=where, key=f"{key}.ids", hint=f"one of {', '.join(by_id)}"
            )
    return [by_id[task_id] for task_id in choice["ids"]]


def _json_task(item: Mapping[str, Any], gate: Mapping[str, Any]) -> Task:
    form = gate.get("response_format", "as_task")
    form = item["response_format"] if form == "as_task" else form
    body: dict[str, Any] = {"max_tokens": gate.get("max_tokens", item["max_tokens"])}
    if form == "json_object":
        body["response_format"] = {"type": "json_object"}
    elif form == "json_schema":
        schema = {"name": item["id"], "strict": True, "schema": item["schema"]}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    messages = ({"role": "user", "content": item["prompt"]},)
    return Task(
        f"json-{item['id']}", GateKind.JSON, messages, body, item["expected"], {"schema": item["schema"]}
    )


def _tool_task(item: Mapping[str, Any], gate: Mapping[str, Any]) -> Task:
    choice = item["choice"]
    body: dict[str, Any] = {
        "max_tokens": gate.get("max_tokens", item["max_tokens"]),
        "tools": item["tools"],
        "tool_choice": {"type": "function", "function": choice} if isinstance(choice, dict) else choice,
    }
    if item["parallel"]:
        body["parallel_tool_calls"] = True
    check = {"tools": item["tools"], "choice": choice, "content_contains": item["content_contains"]}
    messages = ({"role": "user", "content": item["prompt"]},)
    return Task(f"tool-{item['id']}", GateKind.TOOL, messages, body, item["expected_calls"], check)


def _code_task(item: Mapping[str, Any], gate: Mapping[str, Any]) -> Task:
    body = {"max_tokens": gate.get("max_tokens", item["max_tokens"])}
    check = {
        "function": item["function"],
        "args": [case["args"] for case in item["cases"]],
        "runs": gate.get("runs", 5),
        "limits": dict(gate.get("limits", {})),
    }
    expected = [case["expected"] for case in item["cases"]]
    messages = ({"role": "user", "content": item["prompt"]},)
    return Task(f"code-{item['id']}", GateKind.CODE, messages, body, expected, check)
