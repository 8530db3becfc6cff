"""Gate policies: which tasks are asked, how, how many of them must pass, and why so many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.config.files import read_config
from assay.digest import PACKAGE_ROOT, sha256_of_value
from assay.errors import BadInput
from assay.gates.tasks import Task, build_tasks
from assay.vocab import GateKind

CHECKOUT_ROOT = PACKAGE_ROOT.parents[1]
THINKING_KEYS = ("enable_thinking", "thinking")
"""What chat templates call the switch; the first when the policy does not say."""


@dataclass(frozen=True)
class Threshold:
    """At least ``min_pass_share`` of a kind's tasks must pass; why, and where the number comes from."""

    min_pass_share: float
    reason: str
    source: str


@dataclass(frozen=True)
class Policy:
    """A validated policy with the tasks it selects, in the order they are asked.

    ``sha256`` covers everything; ``tasks_sha256`` only what is asked of the server and expected of it, so
    that two verdicts on the same questions can be told apart from two verdicts on different ones.
    """

    name: str
    path: Path
    spec: Mapping[str, Any]
    tasks: tuple[Task, ...]
    thresholds: Mapping[GateKind, Threshold]
    timeout_s: float
    ask_thinking: bool | None
    sha256: str = field(default="")
    tasks_sha256: str = field(default="")

    def kinds(self) -> list[GateKind]:
        """The kinds the policy names, with or without tasks."""
        return list(self.thresholds)

    def task(self, task_id: str) -> Task | None:
        return next((task for task in self.tasks if task.id == task_id), None)

    def body_extras(self) -> dict[str, Any]:
        """What the policy adds to every request body: extra_body, and the thinking toggle if asked."""
        extras = dict(self.spec.get("request", {}).get("extra_body", {}))
        thinking = self.spec.get("thinking", {})
        if thinking.get("ask") is not None:
            kwargs = dict(extras.get("chat_template_kwargs", {}))
            kwargs[thinking.get("key", THINKING_KEYS[0])] = thinking["ask"]
            extras["chat_template_kwargs"] = kwargs
        return extras

    def request_body(
        self, task: Task, model: str, messages: list[dict[str, Any]], *, stream: bool
    ) -> dict[str, Any]:
        """The complete body of one request; the audit makes it again and compares."""
        request = self.spec.get("request", {})
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "temperature": request.get("temperature", 0),
            "seed": request.get("seed", 1),
            **task.body,
            **self.body_extras(),
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        return body


def load_policy(path: Path) -> Policy:
    """Read and validate a policy file. BadInput names the file and the key.

    A policy that selects no task is a valid file; its verdict is fail.
    """
    path = Path(path)
    spec = read_config(CHECKOUT_ROOT, "gates", path)
    return make_policy(spec, path)


def make_policy(spec: Mapping[str, Any], path: Path) -> Policy:
    """A policy from an already validated mapping; ``path`` is named in complaints."""
    gates = spec.get("gates", {})
    thresholds = {
        kind: Threshold(
            **{name: gates[kind]["threshold"][name] for name in ("min_pass_share", "reason", "source")}
        )
        for kind in GateKind
        if kind in gates
    }
    tasks = tuple(build_tasks(gates, path))
    _refuse_reserved(spec, path)
    asked = {
        "tasks": [task.as_record() for task in tasks],
        "request": spec.get("request", {}),
        "thinking": spec.get("thinking", {}),
    }
    tasks_sha256 = sha256_of_value(asked)
    return Policy(
        name=spec["name"],
        path=path,
        spec=spec,
        tasks=tasks,
        thresholds=thresholds,
        timeout_s=float(spec.get("request", {}).get("timeout_s", 120)),
        ask_thinking=_asked_thinking(spec),
        tasks_sha256=tasks_sha256,
        sha256=sha256_of_value({"policy": spec, "tasks_sha256": tasks_sha256}),
    )


def _asked_thinking(spec: Mapping[str, Any]) -> bool | None:
    """What the requests ask of the model's thinking, be it by the policy's own switch or by extra_body."""
    ask: bool | None = spec.get("thinking", {}).get("ask")
    if ask is not None:
        return ask
    kwargs = spec.get("request", {}).get("extra_body", {}).get("chat_template_kwargs")
    if isinstance(kwargs, Mapping):
        for key in THINKING_KEYS:
            if isinstance(kwargs.get(key), bool):
                return bool(kwargs[key])
    return None


def _refuse_reserved(spec: Mapping[str, Any], path: Path) -> None:
    extra = spec.get("request", {}).get("extra_body", {})
    for name in ("model", "messages", "stream", "tools", "tool_choice", "response_format", "max_tokens", "n"):
        if name in extra:
            raise BadInput(
                "is set by the gate itself", where=path, key=f"request.extra_body.{name}", hint="remove it"
            )
