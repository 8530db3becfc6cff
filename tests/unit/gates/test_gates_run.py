"""A run of gates: what is asked, what is kept, and the verdict, before, after and beside a load."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.gates import Endpoint, judge, load_policy, make_policy, read_tasks, run_gates, run_mixed
from assay.vocab import GateOutcome
from engines.gate_runs import NEEDLES, ROOT, SMALL, WHY, assert_described, policy_of, run
from engines.gate_server import GateServer, Reply, after


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
