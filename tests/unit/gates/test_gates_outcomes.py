"""Answers against a scripted server: each outcome told apart, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.gates.client import ChatClient
from assay.session.chat_tokens import Endpoint
from engines.gate_runs import NEEDLES, SMALL, outcome_of, policy_of, run
from engines.gate_server import GateServer, Reply, after
from engines.scripted_server import ScriptedServer, drip, drip_headers, flood


def test_each_outcome_once_told_apart(tmp_path: Path) -> None:
    """Of six JSON tasks four fail, each in its own way, and none is taken for another."""
    policy = policy_of(json={"tasks": SMALL})
    script = {
        "json-small_person": Reply('{"name": "Ada", "age": 37}'),
        "json-small_flag": Reply('```json\n{"colour": "blue"}\n```'),
        "json-small_city": Reply("", finish_reason="length", reasoning="Let me think about Zürich"),
        "json-small_numbers": Reply(status=500),
    }
    with GateServer(policy, script) as server:
        summary, records = run(policy, server, tmp_path)
    assert {task_id: (r["outcome"], r["reason"]) for task_id, r in records.items()} == {
        "json-small_person": ("wrong_value", "value"),
        "json-small_flag": ("malformed", "fence"),
        "json-small_city": ("no_answer", "budget"),
        "json-small_numbers": ("unavailable", "http_status"),
        "json-small_nested": ("pass", None),
        "json-small_plain": ("pass", None),
    }
    counts = summary["kinds"]["json"]["counts"]
    assert counts == {
        "pass": 2,
        "wrong_value": 1,
        "malformed": 1,
        "no_answer": 1,
        "unavailable": 1,
        "could_not_run": 0,
    }
    assert summary["verdict"] == "fail"


JSON_CASES: list[tuple[Any, str, str]] = [
    (Reply('{"name": "Ada', finish_reason="length"), "malformed", "truncated"),
    (Reply('Here: {"name": "Ada", "age": 36}'), "malformed", "prose_around"),
    (Reply('{"name": "Ada", "age": 36, "note": 1}'), "malformed", "extra_key"),
    (Reply('{"name": "Ada", "age": "36"}'), "malformed", "schema"),
    (Reply('{"name": "Ada", "age": true}'), "malformed", "schema"),
    (Reply('{"name": "Ada"}'), "malformed", "schema"),
    (Reply('{"name": "Ada", "age": 36, "age": 36}'), "malformed", "duplicate_key"),
    (Reply('{"name": "Ada", "age": NaN}'), "malformed", "nan"),
    (Reply(""), "malformed", "empty"),
    (Reply('{"name": "Ada", "age": 36}', finish_reason="length"), "malformed", "finish_reason"),
    (Reply('{"name": "\\ud800", "age": 36}'), "wrong_value", "value"),
    (Reply("<think>so the name", finish_reason="length"), "no_answer", "budget"),
    (Reply(raw_body="<html>busy</html>"), "unavailable", "protocol"),
    (Reply(raw_body='{"error": {"message": "out of memory"}}'), "unavailable", "in_stream"),
    (Reply(raw_body='{"choices": []}'), "unavailable", "protocol"),
    (Reply(drop_before_headers=True), "unavailable", "connect"),
    (Reply('{"name": "Ada", "age": 36}', drop_in_body=True), "unavailable", "truncated_stream"),
    (Reply(status=503), "unavailable", "http_status"),
    (Reply(status=307), "unavailable", "http_status"),
]


@pytest.mark.parametrize(("reply", "outcome", "reason"), JSON_CASES)
def test_json_answers(reply: Reply, outcome: str, reason: str, tmp_path: Path) -> None:
    """Each way a JSON answer can be bad has its outcome and reason; a broken server is no wrong model."""
    policy = policy_of(json={"tasks": {"ids": ["small_person"]}})
    assert outcome_of(policy, "json-small_person", reply, tmp_path) == (outcome, reason)


def test_a_slow_answer_is_a_timeout(tmp_path: Path) -> None:
    """An answer that does not come within the policy's time is unavailable by timeout."""
    policy = policy_of(timeout_s=0.3, json={"tasks": {"ids": ["small_person"]}})
    assert outcome_of(policy, "json-small_person", Reply("{}", delay_s=1.0), tmp_path) == (
        "unavailable",
        "timeout",
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "reason"), [(drip, "timeout"), (drip_headers, "timeout"), (flood, "too_large")]
)
def test_an_answer_without_an_end_holds_no_gate(script: Any, reason: str, stream: bool) -> None:
    """Headers or a body that drip end at the policy's time, and one that floods at the limit of bytes."""
    with ScriptedServer(script) as server:
        client = ChatClient(Endpoint(server.url, "m"), 20.0 if reason == "too_large" else 0.5)
        record = client.exchange({"messages": [], "stream": stream})
        client.close()
    assert record["response"]["fault"]["reason"] == reason
    assert record["elapsed_ms"] < 15_000


def only_streamed(**changes: Any) -> Callable[[Reply, dict[str, Any]], Reply]:
    return lambda right, body: after(right, **changes) if body.get("stream") else right


OSLO = {"name": "get_weather", "arguments": {"city": "Oslo"}}
TOOL_CASES: list[tuple[str, Any, str, str | None]] = [
    ("small_named", Reply("It is cold."), "malformed", "no_tool_call"),
    ("small_named", Reply('<tool_call>{"name": "get_weather"}</tool_call>'), "malformed", "call_in_content"),
    ("small_named", Reply(calls=({"name": "get_time", "arguments": {}},)), "malformed", "unknown_tool"),
    ("small_named", Reply(calls=({**OSLO, "arguments": "{'city': 1}"},)), "malformed", "arguments_not_json"),
    ("small_named", Reply(calls=({**OSLO, "arguments": {"town": "Oslo"}},)), "malformed", "arguments_schema"),
    ("small_named", Reply(calls=({**OSLO, "id": None},)), "malformed", "call_id"),
    ("small_named", Reply(calls=({**OSLO, "arguments": {"city": "Bergen"}},)), "wrong_value", "value"),
    ("small_named", Reply(calls=(OSLO, OSLO)), "wrong_value", "wrong_tool"),
    ("small_named", Reply(None, (OSLO,), "length"), "malformed", "finish_reason"),
    ("small_named", Reply(None, (OSLO,), "stop"), "pass", None),
    ("small_named", Reply(None, finish_reason="length"), "no_answer", "budget"),
    ("small_auto", Reply("It is warm."), "wrong_value", "no_tool_call"),
    ("small_must_not_call", Reply(calls=(OSLO,)), "wrong_value", "unwanted_call"),
    ("small_must_not_call", Reply("Goodbye"), "wrong_value", "value"),
    ("small_must_not_call", Reply("Hello and", finish_reason="length"), "malformed", "truncated"),
    ("small_named", only_streamed(calls=({**OSLO, "arguments": {"city": "Rome"}},)), "wrong_value", "value"),
    ("small_named", only_streamed(finish_reason="stop"), "wrong_value", "stream_differs"),
    ("small_named", only_streamed(error_in_stream=True), "unavailable", "in_stream"),
    ("small_named", only_streamed(finish_reason=None, no_done=True), "unavailable", "truncated_stream"),
    ("small_named", only_streamed(drop_in_body=True), "unavailable", "truncated_stream"),
    ("small_named", only_streamed(status=500), "unavailable", "http_status"),
    ("small_must_not_call", only_streamed(content="hello, world"), "wrong_value", "stream_differs"),
]


@pytest.mark.parametrize(("task", "reply", "outcome", "reason"), TOOL_CASES)
def test_tool_answers(task: str, reply: Any, outcome: str, reason: str | None, tmp_path: Path) -> None:
    """Each way a tool answer can be bad, whole or streamed, has its outcome and its reason."""
    policy = policy_of(tool={"tasks": {"ids": [task]}})
    assert outcome_of(policy, f"tool-{task}", reply, tmp_path) == (outcome, reason)


def test_parallel_calls_may_come_in_any_order(tmp_path: Path) -> None:
    """Two parallel calls are right in either order, and wrong when one of them is missing."""
    policy = policy_of(tool={"tasks": {"ids": ["parallel_two_cities"]}})
    turned: Any = lambda right, _: after(right, calls=tuple(reversed(right.calls)))  # noqa: E731
    one: Any = lambda right, _: after(right, calls=right.calls[:1])  # noqa: E731
    task_id = "tool-parallel_two_cities"
    assert outcome_of(policy, task_id, turned, tmp_path / "turned") == ("pass", None)
    assert outcome_of(policy, task_id, one, tmp_path / "one") == ("wrong_value", "wrong_tool")


NEEDLE_CASES: list[tuple[Any, str, str | None]] = [
    (lambda right, _: right, "pass", None),
    (lambda right, _: after(right, content=f"Sure! {right.content} Remember it."), "pass", None),
    (lambda right, _: after(right, content=f"{right.content} Or 123456."), "wrong_value", "wrong_key"),
    (Reply("It is 123456."), "wrong_value", "wrong_key"),
    (lambda right, _: after(right, content=right.content[:-2] + "77."), "wrong_value", "key_missing"),
    (Reply("There is no such code."), "wrong_value", "key_missing"),
    (Reply(""), "malformed", "empty"),
    (lambda right, _: after(right, prompt_tokens=150), "could_not_run", "length_disagrees"),
    (Reply(status=500), "unavailable", "http_status"),
]


@pytest.mark.parametrize("style", ["facts", "pass_key"])
@pytest.mark.parametrize(("reply", "outcome", "reason"), NEEDLE_CASES)
def test_needle_answers(style: str, reply: Any, outcome: str, reason: str | None, tmp_path: Path) -> None:
    """Only the exact key passes; a prompt that the server cut is not graded at all."""
    policy = policy_of(needle={**NEEDLES, "style": style})
    assert outcome_of(policy, policy.tasks[0].id, reply, tmp_path) == (outcome, reason)


def test_a_needle_needs_a_measured_length(tmp_path: Path) -> None:
    """From a server without counts and usage the needle could not be run, and it is not asked."""
    policy = policy_of(needle=NEEDLES)
    with GateServer(policy, counting="none", gives_usage=False) as server:
        summary, records = run(policy, server, tmp_path)
        assert server.asked(policy.tasks[0].id) == []
    assert records[policy.tasks[0].id]["reason"] == "length_not_measured"
    assert summary["kinds"]["needle"]["counts"]["could_not_run"] == 1


CODE = "```python\n{}\n```"
CODE_CASES: list[tuple[Any, str, str | None]] = [
    (Reply(CODE.format("def double(n):\n    return n + n")), "pass", None),
    (Reply("def double(n):\n    return n * 2"), "pass", None),
    (Reply(CODE.format("def double(n):\n    return n ** 2")), "wrong_value", "value"),
    (Reply(CODE.format("def double(n):\n    return float(2 * n) + 0.5")), "wrong_value", "value"),
    (Reply(CODE.format("def double(n):\n    return str(2 * n)")), "wrong_value", "value"),
    (Reply(CODE.format("def double(n):\n    raise ValueError(n)")), "wrong_value", "run_error"),
    (Reply(CODE.format("import sys\ndef double(n): return 2 * n\nsys.exit(0)")), "wrong_value", "run_error"),
    (Reply(CODE.format("def double(n):\n    return bytearray(1 << 40)")), "wrong_value", "run_limit"),
    (Reply(CODE.format("def twice(n):\n    return 2 * n")), "malformed", "no_function"),
    (Reply(CODE.format("def double(n) return 2 * n")), "malformed", "syntax"),
    (Reply("Multiply it by two, of course!"), "malformed", "no_code"),
    (Reply("```python\ndef double(n):\n    return 2 *", finish_reason="length"), "no_answer", "budget"),
    (Reply(status=500), "unavailable", "http_status"),
]


@pytest.mark.parametrize(("reply", "outcome", "reason"), CODE_CASES)
def test_code_answers(reply: Reply, outcome: str, reason: str | None, tmp_path: Path) -> None:
    """Code passes by what its function returns for inputs it was not told, in every run."""
    policy = policy_of(code={"tasks": SMALL, "limits": {"wall_s": 5, "cpu_s": 2}, "runs": 2})
    assert outcome_of(policy, "code-small_double", reply, tmp_path) == (outcome, reason)


def test_code_is_run_five_times_and_must_agree(tmp_path: Path) -> None:
    """A function that is right only in some of many runs does not pass."""
    text = "import os\ndef double(n):\n    return 2 * n + (os.urandom(1)[0] < 128)"
    policy = policy_of(code={"tasks": SMALL, "runs": 5})
    outcome, reason = outcome_of(policy, "code-small_double", Reply(CODE.format(text)), tmp_path)
    assert outcome == "wrong_value"
    assert reason in ("value", "runs_differ")
