"""The rehearsal server over its socket: load, gates, faults, counters; against what it says it really sent."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from assay.gates import Endpoint, load_policy, run_gates
from assay.load import LoadSpec, Prompt, run_load
from assay.metrics import prometheus
from assay.records.requests import read_requests
from engines.rehearsal_process import SERVED_NAME, RehearsalProcess

ROOT = Path(__file__).resolve().parents[2]
STANDARD = ROOT / "config/gates/standard.yaml"
SLOTS = {"max_num_seqs": 8}


def chat_prompts(count: int) -> list[Prompt]:
    """Chats of growing length: the count of its prompt's tokens names a request in the server's log."""
    return [
        Prompt(
            id=f"p{n:03d}",
            messages=[{"role": "user", "content": f"Tell me about item {n}." + " Please." * n}],
        )
        for n in range(count)
    ]


def load(
    server: RehearsalProcess, out: Path, concurrency: int, requests: int, **keys: Any
) -> tuple[dict[str, Any], pa.Table]:
    """Run a load of chats; its client record and its requests."""
    spec = {"max_tokens": 24, "timeout_s": 20.0, "metrics_urls": (f"{server.url}/metrics",), **keys}
    prompts = spec.pop("prompts", None) or chat_prompts(requests)
    record = run_load(
        LoadSpec(url=server.url, model=SERVED_NAME, concurrency=concurrency, requests=requests, **spec),
        prompts,
        out,
    )
    return record, read_requests(out / "requests.parquet")


def gates(server: RehearsalProcess, out: Path, policy: Path = STANDARD) -> dict[str, Any]:
    return run_gates(Endpoint(url=server.url, model=SERVED_NAME), load_policy(policy), out, when="before")


def counters(server: RehearsalProcess) -> dict[str, float | None]:
    return prometheus.normalise(prometheus.parse(server.get("/metrics").text))


def test_client_sees_what_the_server_sent(tmp_path: Path) -> None:
    """Each request's chunks and tokens are those of the server's own log, none stamped before it was sent,
    and the server's counters agree with the sum."""
    with RehearsalProcess(tmp_path, SLOTS | {"num_speculative_tokens": 3}, log_events=True) as server:
        record, table = load(server, tmp_path / "load", 4, 12)
        told = counters(server)
        sent = server.events()
    assert record["requests"] == {"issued": 12, "ok": 12, "failed": 0, "incomplete": 0}
    rows = table.to_pylist()
    assert len(sent) == len(rows) == len({event["n_prompt"] for event in sent}) == 12
    # streams that start in one step are stamped in any order: prompts tell them apart, not times
    rows.sort(key=lambda row: row["prompt_id"])
    sent.sort(key=lambda event: event["n_prompt"])
    for row, event in zip(rows, sent, strict=True):
        assert len(row["chunk_offsets_ns"]) == len(event["sent"])
        assert row["n_output"] == sum(n for _, _, n in event["sent"])
        assert row["n_prompt"] == event["n_prompt"]
        # the kernel's stamps are paired with the monotonic clock to a few microseconds
        for offset, (_, wall_ns, _) in zip(row["chunk_offsets_ns"], event["sent"], strict=True):
            assert row["t_send_ns"] + offset >= wall_ns - 1_000_000
    assert told["generation_tokens"] == sum(row["n_output"] for row in table.to_pylist())
    assert told["requests_ok"] == 12
    assert told["draft_tokens"] > told["accepted_tokens"] > 0


def test_events_leave_no_earlier_than_their_simulated_time(tmp_path: Path) -> None:
    """Simulated times in the log grow by the same steps as the scheduler's, and wall times never run ahead of
    them divided by the scale."""
    with RehearsalProcess(tmp_path, SLOTS, log_events=True, time_scale=5) as server:
        load(server, tmp_path / "load", 2, 4)
        sent = server.events()
    first_s, first_ns = min((t_s, wall_ns) for event in sent for t_s, wall_ns, _ in event["sent"])
    for event in sent:
        for t_s, wall_ns, _ in event["sent"]:
            assert (wall_ns - event["t_arrival_ns"]) / 1e9 >= (t_s - event["t_arrival_s"]) / 5 - 1e-6
    assert first_ns > 0
    assert first_s > 0


def test_two_servers_take_the_same_simulated_time(tmp_path: Path) -> None:
    """The same requests one after another on two servers get the same tokens in the same simulated steps."""
    runs = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        with RehearsalProcess(folder, SLOTS | {"num_speculative_tokens": 3}, log_events=True) as server:
            load(server, folder / "load", 1, 5)
            runs.append([[(t_s - e["t_arrival_s"], n) for t_s, _, n in e["sent"]] for e in server.events()])
    for first, second in zip(*runs, strict=True):
        assert [n for _, n in first] == [n for _, n in second]
        assert [t_s for t_s, _ in first] == pytest.approx([t_s for t_s, _ in second], abs=1e-9)


def test_gates_pass_by_construction(tmp_path: Path) -> None:
    """All 24 JSON tasks, 8 tool tasks, 9 needles and 3 programs are answered rightly through the real gates."""
    with RehearsalProcess(tmp_path, {"max_model_len": 32768}, time_scale=200) as server:
        summary = gates(server, tmp_path / "gates")
    assert summary["verdict"] == "pass", summary["kinds"]
    assert {kind: about["n"] for kind, about in summary["kinds"].items()} == {
        "json": 24,
        "tool": 8,
        "needle": 9,
        "code": 3,
    }


def test_slots_show_in_gauges_and_readback(tmp_path: Path) -> None:
    """With 2 slots and 6 streams the server's own gauges show 2 running and 4 waiting; the hidden limit of a
    state pool lowers what runs and not what is told."""
    for faults, running in (([], 4), ([{"kind": "state_pool_limit", "sequences": 2}], 2)):
        folder = tmp_path / str(running)
        folder.mkdir()
        with RehearsalProcess(folder, {"max_num_seqs": 4}, faults, time_scale=1) as server:
            record, _ = load(server, folder / "load", 6, 12, gauge_interval_s=0.02)
            told = server.get("/rehearsal/config").json()
        assert told["flags"]["max_num_seqs"] == 4
        seen = [sample for sample in record["server_gauges"] if sample["running"] is not None]
        assert max(sample["running"] for sample in seen) == running
        assert max(sample["waiting"] for sample in seen) >= 6 - running - 1


def test_prefix_cache_is_counted(tmp_path: Path) -> None:
    """The same long chat twice: cached tokens are in the usage and in the counters, when it is on."""
    text = "a long story about water " * 200
    for caching in (True, False):
        folder = tmp_path / str(caching)
        folder.mkdir()
        with RehearsalProcess(folder, {"enable_prefix_caching": caching}) as server:
            usages = [server.chat(text, max_tokens=2).json()["usage"] for _ in range(2)]
            told = counters(server)
        cached = [(usage.get("prompt_tokens_details") or {}).get("cached_tokens") for usage in usages]
        assert cached == ([0, told["cached_prompt_tokens"]] if caching else [None, None])
        assert told["cached_prompt_tokens"] == (usages[0]["prompt_tokens"] - 1) // 16 * 16 * caching


def test_a_conversation_finds_its_earlier_turns_in_the_cache(tmp_path: Path) -> None:
    """The second turn finds the first prompt and the first answer cached, to whole blocks."""
    with RehearsalProcess(tmp_path, {"enable_prefix_caching": True}) as server:
        body: dict[str, Any] = {"model": SERVED_NAME, "max_tokens": 100, "ignore_eos": True}
        messages = [{"role": "user", "content": "Tell me of rivers and bread. " * 20}]
        first = server.post("/v1/chat/completions", body | {"messages": messages}).json()
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And of stone?"}]
        second = server.post("/v1/chat/completions", body | {"messages": messages}).json()
    # the last token of the first answer is never computed
    kept = first["usage"]["prompt_tokens"] + 100 - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == kept // 16 * 16


def test_token_ids_and_texts_reach_completions(tmp_path: Path) -> None:
    """A prompt of n token ids is n tokens; a text is as many as /tokenize says."""
    with RehearsalProcess(tmp_path, {}) as server:
        body = {"model": SERVED_NAME, "max_tokens": 3, "ignore_eos": True}
        ids = server.post("/v1/completions", body | {"prompt": list(range(20, 57))}).json()
        text = server.post("/v1/completions", body | {"prompt": "Twelve bells rang."}).json()
        counted = server.post("/tokenize", {"prompt": "Twelve bells rang."}).json()["count"]
    assert ids["usage"] == {"prompt_tokens": 37, "completion_tokens": 3, "total_tokens": 40}
    assert text["usage"]["prompt_tokens"] == counted
    assert text["choices"][0]["finish_reason"] == "length"


# ---------------------------------------------------------------------- faults


def test_will_not_load(tmp_path: Path) -> None:
    """The process ends with an error before it ever listens."""
    with RehearsalProcess(tmp_path, {}, [{"kind": "will_not_load", "after_s": 0.1}]) as server:
        assert server.process.wait(10) == 1
    assert "listening" not in server.log
    assert "weight_scale_inv" in server.log


def test_crash_at_concurrency(tmp_path: Path) -> None:
    """Three streams are served; a load of four kills the process, and the client's requests fail."""
    with RehearsalProcess(tmp_path, SLOTS, [{"kind": "crash_at_concurrency", "concurrency": 4}]) as server:
        fine, _ = load(server, tmp_path / "three", 3, 6)
        broken, _ = load(server, tmp_path / "four", 4, 8)
        assert server.process.wait(10) == 1
    assert fine["requests"]["ok"] == 6
    assert broken["requests"]["ok"] < 8
    assert broken["requests"]["failed"] > 0
    assert "4 requests in flight" in server.log


def test_illegal_memory_after_a_time_under_load(tmp_path: Path) -> None:
    """Idle time does not count: the process dies once it has been under load for the scripted time."""
    fault = {"kind": "illegal_memory", "after_s": 1.5}
    with RehearsalProcess(tmp_path, SLOTS, [fault], time_scale=4) as server:
        time.sleep(1.0)  # 4 simulated seconds without load
        assert server.chat("still there?", max_tokens=2).status_code == 200
        record, _ = load(server, tmp_path / "load", 4, 400, max_tokens=200)
        assert server.process.wait(10) == 1
    assert "illegal memory access" in server.log
    assert record["requests"]["failed"] > 0


def test_one_post_load_json_task_gets_500(tmp_path: Path) -> None:
    """Before the load all 24 JSON tasks pass; the load has no failure; after it one task is unavailable, the
    other 23 pass, and the tools all pass."""
    with RehearsalProcess(tmp_path, SLOTS, [{"kind": "http_500"}], time_scale=200) as server:
        before = gates(server, tmp_path / "before")
        record, _ = load(server, tmp_path / "load", 4, 8)
        after = gates(server, tmp_path / "after")
    assert before["verdict"] == "pass"
    assert record["requests"]["failed"] == 0
    assert after["verdict"] == "fail"
    counts = after["kinds"]["json"]["counts"]
    assert (counts["pass"], counts["unavailable"], counts["wrong_value"]) == (23, 1, 0)
    assert after["kinds"]["tool"]["verdict"] == "pass"


def test_incomplete_json_under_mixed_load(tmp_path: Path) -> None:
    """A JSON task is answered whole on a quiet server and broken off while a load runs."""
    with RehearsalProcess(tmp_path, SLOTS, [{"kind": "incomplete_json"}], time_scale=2) as server:
        prompt = 'Write a JSON object whose only key is "a".'  # of no task file: never broken
        task = next(t for t in load_policy(STANDARD).tasks if t.kind == "json")
        assert task.messages is not None
        text = task.messages[0]["content"]
        quiet = server.chat(text, max_tokens=256).json()["choices"][0]["message"]["content"]
        other = server.chat(prompt, max_tokens=64, response_format={"type": "json_object"}).json()
        runs = threading.Thread(
            target=load, args=(server, tmp_path / "load", 4, 16), kwargs={"max_tokens": 150}
        )
        runs.start()
        busy = quiet
        while runs.is_alive() and busy == quiet:
            busy = server.chat(text, max_tokens=256).json()["choices"][0]["message"]["content"]
        runs.join()
    assert json.loads(quiet) == task.expected
    assert json.loads(other["choices"][0]["message"]["content"]) == {}
    assert quiet.startswith(busy)
    assert busy != quiet


@pytest.mark.parametrize("channel", ["reasoning", "content"])
def test_thinking_toggle_ignored(tmp_path: Path, channel: str) -> None:
    """Thinking is switched off in the request, and reasoning comes all the same; a model that obeys has none."""
    off = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 600}
    with RehearsalProcess(tmp_path, {}, values={"thinks_by_default": True}) as server:
        obeys = server.chat("Say yes.", **off).json()["choices"][0]["message"]
    fault = {"kind": "thinking_ignored", "channel": channel}
    with RehearsalProcess(tmp_path, {}, [fault], {"thinks_by_default": True}) as server:
        ignores = server.chat("Say yes.", **off).json()["choices"][0]["message"]
    assert "reasoning_content" not in obeys
    assert "<think>" not in obeys["content"]
    assert ("<think>" in ignores["content"]) is (channel == "content")
    assert bool(ignores.get("reasoning_content")) is (channel == "reasoning")


def test_slow_replica(tmp_path: Path) -> None:
    """Of two replicas with the same work the slow one's chunks come farther apart in simulated time."""
    fault = {"kind": "slow_replica", "replica": 1, "factor": 3.0}
    with RehearsalProcess(tmp_path, SLOTS | {"replicas": 2}, [fault], log_events=True) as server:
        load(server, tmp_path / "load", 2, 2, ignore_eos=True)
        sent = server.events()
    spans = sorted(event["sent"][-1][0] - event["sent"][0][0] for event in sent)
    assert spans[1] == pytest.approx(3 * spans[0], rel=0.01)


def test_compile_stall_at_a_new_shape(tmp_path: Path) -> None:
    """The first request of a shape takes the stall in simulated time, the second does not."""
    fault = {"kind": "compile_stall", "stall_s": 5.0}
    with RehearsalProcess(tmp_path, {}, [fault], log_events=True) as server:
        for _ in range(2):
            server.chat("the same", max_tokens=4, ignore_eos=True)
        first, second = (event["sent"][-1][0] - event["t_arrival_s"] for event in server.events())
    assert first > 5.0 > second


def test_hang(tmp_path: Path) -> None:
    """From the scripted request on nothing is answered, while /health still is."""
    fault = {"kind": "hang", "after_load_requests": 2}
    with RehearsalProcess(tmp_path, SLOTS, [fault]) as server:
        record, table = load(server, tmp_path / "load", 1, 4, timeout_s=1.5)
        assert server.get("/health").status_code == 200
    assert record["requests"] == {"issued": 4, "ok": 2, "failed": 2, "incomplete": 0}
    assert [row["error_class"] for row in table.to_pylist()] == [None, None, "timeout", "timeout"]


def test_stream_cut(tmp_path: Path) -> None:
    """One stream in four is cut; the client calls it failed, and the others are whole."""
    fault = {"kind": "stream_cut", "after_tokens": 5, "nth": 4, "every": 4}
    with RehearsalProcess(tmp_path, SLOTS, [fault]) as server:
        _, table = load(server, tmp_path / "load", 2, 8, ignore_eos=True)
    rows = table.to_pylist()
    failed = [row for row in rows if row["status"] == "failed"]
    assert len(failed) == 2
    assert all(not row["terminal_seen"] and 1 <= len(row["chunk_offsets_ns"]) <= 5 for row in failed)
    assert all(row["n_output"] == 24 for row in rows if row["status"] == "ok")


def test_wrong_usage(tmp_path: Path) -> None:
    """The usage says seven tokens too many; a client that counts the tokens itself sees the difference."""
    fault = {"kind": "wrong_usage", "offset": 7}
    with RehearsalProcess(tmp_path, SLOTS, [fault]) as server:
        _, table = load(server, tmp_path / "load", 2, 4, ignore_eos=True, tokenizer="server")
    for row in table.to_pylist():
        assert row["n_output"] == 31
        assert row["n_output_tokenizer"] == 24


def test_broken_draft_accepts_next_to_nothing(tmp_path: Path) -> None:
    """With a broken draft head the mean tokens per step stay near one, as the counters show."""
    flags = SLOTS | {"num_speculative_tokens": 3}
    with RehearsalProcess(tmp_path, flags, [{"kind": "broken_draft"}]) as server:
        load(server, tmp_path / "load", 4, 16, max_tokens=100, ignore_eos=True)
        told = counters(server)
    assert 1 + told["accepted_tokens"] / told["drafts"] < 1.1


def test_bad_configuration_ends_with_one_line(tmp_path: Path) -> None:
    """A misspelt fault ends the process with one line and exit code 2, before anything listens."""
    with RehearsalProcess(tmp_path, {}, [{"kind": "hangs"}]) as server:
        assert server.process.wait(10) == 2
    assert server.log.count("\n") == 1
    assert "did you mean 'hang'" in server.log


def test_clients_that_leave_and_clients_that_pipeline(tmp_path: Path) -> None:
    """A stream whose client hangs up, or sends a second request into the first one's answer, frees its slot."""
    body = json.dumps(
        {"model": SERVED_NAME, "stream": True, "max_tokens": 4_000, "ignore_eos": True, "prompt": "go on"}
    ).encode()
    request = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with RehearsalProcess(tmp_path, SLOTS, time_scale=1) as server:
        for n_requests in (1, 2):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
                client.sendall(request)
                assert client.recv(64).startswith(b"HTTP/1.1 200")
                if n_requests == 2:
                    client.sendall(request)
                    with contextlib.suppress(ConnectionResetError):
                        while client.recv(65_536):
                            pass  # it ends long before 4,000 tokens could have come
        deadline = time.monotonic() + 10
        while (running := prometheus.gauges(prometheus.parse(server.get("/metrics").text))["running"]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.05)
        assert running == 0
        assert counters(server)["generation_tokens"] < 8_000
