"""A run of gates against a scripted server: each outcome once, told apart, and kept whole on disk."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from assay.errors import BadInput
from assay.gates import Endpoint, Policy, judge, load_policy, make_policy, read_tasks, run_gates, run_mixed
from assay.vocab import GateOutcome
from engines.gate_server import GateServer, Reply, after

ROOT = Path(__file__).resolve().parents[3]
WHY = {"min_pass_share": 1.0, "reason": "every one", "source": "a test"}
SMALL = {"set": "small"}


def policy_of(thinking: bool | None = None, timeout_s: float = 20, **gates: Any) -> Policy:
    spec = {
        "schema": "assay/gates/1",
        "name": "test",
        "request": {"timeout_s": timeout_s, "extra_body": {"cache_prompt": False}},
        "thinking": {"ask": thinking},
        "gates": {kind: {"threshold": WHY, **gate} for kind, gate in gates.items()},
    }
    return make_policy(spec, Path("test.yaml"))


NEEDLES = {"keys": 1, "depths_percent": [50], "lengths_tokens": [200]}


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


def test_the_standard_policy_passes_on_a_server_that_is_right(tmp_path: Path) -> None:
    """24 JSON, 8 tool, 9 needle and 3 code tasks, all right: every task passes and so does the verdict."""
    policy = load_policy(ROOT / "config" / "gates" / "standard.yaml")
    with GateServer(policy) as server:
        summary, records = run(policy, server, tmp_path, concurrency=4)
        streamed = [entry for entry in server.log if entry["body"].get("stream")]
    assert {kind: value["counts"]["pass"] for kind, value in summary["kinds"].items()} == {
        "json": 24,
        "tool": 8,
        "needle": 9,
        "code": 3,
    }
    assert summary["verdict"] == "pass"
    assert len(records) == 44
    assert len(streamed) == 8
    assert all(len(record["runs"]) == 5 for record in records.values() if record["kind"] == "code")


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


def test_one_http_500_after_a_load_is_an_availability_failure(tmp_path: Path) -> None:
    """23 of 24 and one HTTP 500: the verdict is fail, the outcome unavailable, no value is called wrong."""
    policy = policy_of(json={"tasks": {"set": "standard"}})
    with GateServer(policy, {"json-array_primes": Reply(status=500)}) as server:
        summary, records = run(policy, server, tmp_path)
    counts = summary["kinds"]["json"]["counts"]
    assert (counts["pass"], counts["unavailable"], counts["wrong_value"]) == (23, 1, 0)
    assert summary["verdict"] == "fail"
    assert records["json-array_primes"]["response"]["status"] == 500
    assert "scripted failure" in records["json-array_primes"]["response"]["body"]


def test_a_policy_without_tasks_fails(tmp_path: Path) -> None:
    """Zero checks is a failure: for a policy that names no kind, and for a kind that selects nothing."""
    for number, policy in enumerate((policy_of(), policy_of(json={"tasks": {"ids": []}}))):
        with GateServer(policy) as server:
            summary, _ = run(policy, server, tmp_path / str(number))
        assert summary["verdict"] == "fail"
        assert summary["n"] == 0


def test_a_checker_that_cannot_be_imported_is_could_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When our own checker fails to import, the task could not be run: no pass, not the model's fault."""
    policy = policy_of(json={"tasks": {"ids": ["small_person"]}})
    monkeypatch.setitem(__import__("sys").modules, "assay.gates.checks", None)
    with GateServer(policy) as server:
        summary, records = run(policy, server, tmp_path)
    assert records["json-small_person"]["outcome"] == "could_not_run"
    assert records["json-small_person"]["reason"] == "checker_error"
    assert summary["verdict"] == "fail"


@pytest.mark.parametrize("leak", [{"reasoning": "Hm, let me see."}, {"content": '<think>x</think>{"a": 1}'}])
def test_an_ignored_thinking_switch_is_not_graded_wrong(leak: dict[str, str], tmp_path: Path) -> None:
    """Thinking was switched off and came all the same: the verdict is invalid, no answer is called wrong."""
    policy = policy_of(thinking=False, json={"tasks": {"ids": ["small_person"]}})
    with GateServer(policy, {"json-small_person": lambda right, _: after(right, **leak)}) as server:
        summary, records = run(policy, server, tmp_path)
        assert server.asked("json-small_person")[0]["body"]["chat_template_kwargs"] == {
            "enable_thinking": False
        }
    assert records["json-small_person"]["outcome"] == "could_not_run"
    assert records["json-small_person"]["reason"] == "thinking_ignored"
    assert summary["thinking"]["verdict"] == "fail"
    assert summary["verdict"] == "invalid"


@pytest.mark.parametrize(
    ("ask", "tail", "reasoning", "verdict"),
    [
        (None, "<|assistant|>", None, "pass"),
        (False, "<|assistant|>", None, "pass"),
        (False, "<|assistant|> <think>\n\n</think>\n\n", None, "pass"),
        (False, "<|assistant|> <think>\n", None, "fail"),
        (True, "<|assistant|> <think>\n", "I see.", "pass"),
        (True, "<|assistant|>", None, "fail"),
    ],
)
def test_the_thinking_record_says_what_was_asked_and_done(
    ask: bool | None, tail: str, reasoning: str | None, verdict: str, tmp_path: Path
) -> None:
    """The record holds the switch, the end of the rendered template and the answers with reasoning."""
    policy = policy_of(thinking=ask, json={"tasks": SMALL})
    script = {task.id: lambda right, _: after(right, reasoning=reasoning) for task in policy.tasks}
    with GateServer(policy, script, template_tail=tail) as server:
        thinking = run(policy, server, tmp_path)[0]["thinking"]
    assert thinking["asked"] is ask
    assert thinking["template"]["tail"].endswith(tail)
    assert thinking["n"] == 6
    assert thinking["n_reasoning"] == (6 if reasoning else 0)
    assert thinking["verdict"] == verdict


@pytest.mark.parametrize(
    ("thinking", "extra", "sent"),
    [
        ({"ask": False}, {}, {"enable_thinking": False}),
        ({"ask": False, "key": "thinking"}, {}, {"thinking": False}),
        ({}, {"chat_template_kwargs": {"thinking": False}}, {"thinking": False}),
        ({"ask": False}, {"chat_template_kwargs": {"lang": "en"}}, {"lang": "en", "enable_thinking": False}),
    ],
)
def test_the_switch_is_sent_and_watched_however_it_is_asked(
    thinking: dict[str, Any], extra: dict[str, Any], sent: dict[str, Any], tmp_path: Path
) -> None:
    """By the policy's own switch or by extra_body, the server gets it, and reasoning that comes is noticed."""
    gate = {"json": {"tasks": {"ids": ["small_person"]}, "threshold": WHY}}
    spec = {"name": "test", "request": {"extra_body": extra}, "thinking": thinking, "gates": gate}
    policy = make_policy(spec, Path("test.yaml"))
    with GateServer(policy, {"json-small_person": lambda right, _: after(right, reasoning="hm")}) as server:
        summary, _ = run(policy, server, tmp_path)
        assert server.asked("json-small_person")[0]["body"]["chat_template_kwargs"] == sent
    assert summary["verdict"] == "invalid"


def test_a_dead_server_makes_every_task_unavailable(tmp_path: Path) -> None:
    """Nobody listens: all tasks of all kinds are unavailable by connect, and the records are complete."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        policy = load_policy(ROOT / "config" / "gates" / "local.yaml")
        summary = run_gates(Endpoint(url, "none"), policy, tmp_path, when="after")
    assert_described(tmp_path)
    records = read_tasks(tmp_path / "tasks.jsonl")
    assert {(record["outcome"], record["reason"]) for record in records} == {("unavailable", "connect")}
    assert len(records) == len(policy.tasks) == summary["n"]
    assert summary["verdict"] == "fail"


def test_the_transcript_is_what_the_server_saw_and_sent(tmp_path: Path) -> None:
    """Every request body on disk equals the one the server received, and every answer the one it sent."""
    policy = policy_of(json={"tasks": SMALL}, tool={"tasks": SMALL}, needle=NEEDLES)
    with GateServer(policy) as server:
        _, records = run(policy, server, tmp_path)
        for task_id, record in records.items():
            asked = server.asked(task_id)
            whole = json.loads(record["response"]["body"])["choices"][0]
            assert record["request"]["body"] == asked[0]["body"]
            assert whole["message"]["content"] == asked[0]["reply"].content
            assert record["request"]["body"]["cache_prompt"] is False
            if record["kind"] == "tool":
                assert record["streamed"]["request"]["body"] == asked[1]["body"]
                assert record["streamed"]["response"]["events"][-1]["data"] == "[DONE]"


def test_concurrency_is_reached_and_noted(tmp_path: Path) -> None:
    """Asked for four in flight, four are in flight at once, as the server itself sees it."""
    policy = policy_of(json={"tasks": SMALL})
    barrier = threading.Barrier(4, timeout=10)

    def wait(right: Reply, _: Any) -> Reply:
        barrier.wait()
        return right

    script = {task.id: wait for task in policy.tasks[:4]}
    with GateServer(policy, script) as server:
        summary, _ = run(policy, server, tmp_path, concurrency=4)
    assert summary["concurrency"] == {"asked": 4, "reached": 4}
    assert summary["verdict"] == "pass"


def test_mixed_mode_asks_whole_rounds_until_stopped(tmp_path: Path) -> None:
    """Beside a load the tasks come round after round; one failure in any round fails the verdict."""
    policy = policy_of(json={"tasks": SMALL})
    stop = threading.Event()
    good = Reply('{"answer": 7}')
    script = {"json-small_plain": [good, Reply(status=500), good]}
    with GateServer(policy, script) as server:

        def stop_in_third_round() -> None:
            while len(server.asked("json-small_plain")) < 3:
                stop.wait(0.01)
            stop.set()

        watcher = threading.Thread(target=stop_in_third_round)
        watcher.start()
        summary = run_mixed(Endpoint(server.url, "m"), policy, tmp_path, stop=stop, interval_s=0.0)
        watcher.join()
    assert_described(tmp_path)
    records = read_tasks(tmp_path / "tasks.jsonl")
    plain = [record["outcome"] for record in records if record["task_id"] == "json-small_plain"]
    assert plain[:3] == ["pass", "unavailable", "pass"]
    assert summary["kinds"]["json"]["counts"]["unavailable"] == 1
    assert summary["verdict"] == "fail"
    assert judge(records, policy)["disagreements"] == []


def test_mixed_mode_asks_one_whole_round_at_least(tmp_path: Path) -> None:
    """A load that was over at once still gets every task asked, marked as after its end."""
    policy = policy_of(json={"tasks": SMALL})
    stop = threading.Event()
    stop.set()
    with GateServer(policy) as server:
        summary = run_mixed(Endpoint(server.url, "m"), policy, tmp_path, stop=stop)
    assert_described(tmp_path)
    assert summary["n"] == 6
    assert all(record["after_stop"] for record in read_tasks(tmp_path / "tasks.jsonl"))


def test_the_key_is_sent_and_never_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets the key and echoes it; no file of the record holds it."""
    monkeypatch.setenv("GATE_KEY", "sk-very-secret-7")
    policy = policy_of(json={"tasks": {"ids": ["small_person"]}})
    with GateServer(policy, {"json-small_person": Reply("your key is sk-very-secret-7")}) as server:
        endpoint = Endpoint(server.url, "m", {"x-tenant": "tenant-secret"}, "GATE_KEY")
        run_gates(endpoint, policy, tmp_path, when="before")
        sent = server.log[-1]["headers"]
    assert sent["authorization"] == "Bearer sk-very-secret-7"
    assert sent["x-tenant"] == "tenant-secret"
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "sk-very-secret-7" not in text
    assert "tenant-secret" not in text


def test_a_folder_with_a_record_is_not_overwritten(tmp_path: Path) -> None:
    """A second run into the same folder is bad input, and the first record stands."""
    policy = policy_of(json={"tasks": {"ids": ["small_person"]}})
    with GateServer(policy) as server:
        run(policy, server, tmp_path)
        before = (tmp_path / "tasks.jsonl").read_bytes()
        with pytest.raises(BadInput, match=r"tasks\.jsonl"):
            run_gates(Endpoint(server.url, "m"), policy, tmp_path, when="after")
    assert (tmp_path / "tasks.jsonl").read_bytes() == before


def test_every_outcome_has_a_count() -> None:
    """A summary's counts name all six outcomes, so that an absent one is not taken for an unknown one."""
    policy = policy_of(json={"tasks": SMALL})
    assert set(judge([], policy)["kinds"]["json"]["counts"]) == {outcome.value for outcome in GateOutcome}
