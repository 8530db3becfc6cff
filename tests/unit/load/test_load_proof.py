"""Proof of load: what the client claims about itself, and what it says when it could not do its part."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.load import LoadSpec, Prompt, proof, recover, run_load, summarise
from assay.load.health import LAG_BOUNDS_MS
from assay.load.spec import process_count
from assay.records.requests import read_requests
from engines.scripted_server import DONE, ScriptedServer, Wait, answer, counts, delta, usage_event, words


def test_concurrency_is_reached_and_seen_by_the_server(load: Any) -> None:
    """N streams hold N in flight: the client's trace, the server's own count and its gauges agree."""
    gauge = {"n": 0}

    def page() -> str:
        gauge["n"] += 1
        return f"vllm:num_requests_running {server.in_flight}\nvllm:num_requests_waiting 0\n"

    with ScriptedServer(lambda _r: words(3, first_ms=200, gap_ms=50), pages={"/metrics": page}) as server:
        outcome = load(
            server.url,
            requests=48,
            concurrency=12,
            metrics_urls=(f"{server.url}/metrics",),
            gauge_interval_s=0.1,
        )
        assert server.max_in_flight == 12
    screen = outcome.client["screens"]["concurrency_reached"]
    assert screen["result"] == "pass"
    assert screen["measured"]["max"] == 12
    assert screen["measured"]["server_agrees"] is True
    assert gauge["n"] >= 3
    assert max(point["max"] for point in outcome.client["in_flight"]["trace"]) == 12


def test_no_request_is_sent_before_all_are_ready(load: Any) -> None:
    """The start barrier: with two processes, the first request follows the last connection."""
    with ScriptedServer(lambda _r: words(2, first_ms=100)) as server:
        outcome = load(server.url, requests=40, concurrency=20, processes=2)
        assert server.n_connections == 20
    barrier = outcome.client["phase"]["barrier"]
    assert (barrier["n_processes"], barrier["n_connected"]) == (2, 20)
    assert min(row["t_send_ns"] for row in outcome.rows) >= barrier["t_ready_ns"]
    assert outcome.client["screens"]["concurrency_reached"]["measured"]["max"] == 20


def test_processes_share_one_schedule(load: Any) -> None:
    """Two processes send each request once, in one sequence of prompts, and their records are one table."""
    with ScriptedServer(lambda _r: words(2, first_ms=5)) as server:
        outcome = load(server.url, requests=60, concurrency=6, processes=2)
        said = sorted(request.body["messages"][0]["content"] for request in server.requests)
    assert [row["request_id"] for row in outcome.rows] == [f"r{i:06d}" for i in range(60)]
    assert said == sorted(f"say {i % 8}" for i in range(60))
    assert {row["worker"] for row in outcome.rows} == set(range(6))
    assert outcome.client["prompts"]["cycled"] is True


def test_a_client_that_could_not_hold_n_is_invalid() -> None:
    """In flight reached 3 of 8: the screen fails and says so, whatever the mean."""
    sends = np.array([0, 10, 20], dtype=np.int64)
    ends = np.array([100, 110, 120], dtype=np.int64)
    screen = proof.concurrency_reached(8, *proof.in_flight_steps(sends, ends), 0, 120, [])
    assert (screen["result"], screen["measured"]["max"]) == ("fail", 3)


def test_the_server_may_contradict_the_client() -> None:
    """The client holds 4 in flight, the server's gauges never show more than 1: the claim fails."""
    sends = np.zeros(4, dtype=np.int64)
    ends = np.full(4, 1_000, dtype=np.int64)
    gauges = [{"t_ns": t, "running": 1.0, "waiting": 0.0} for t in (10, 20, 30)]
    assert (
        proof.concurrency_reached(4, *proof.in_flight_steps(sends, ends), 0, 1_000, gauges)["result"]
        == "fail"
    )
    unknown = [{"t_ns": t, "running": None, "waiting": None, "reason": "absent"} for t in (10, 20, 30)]
    screen = proof.concurrency_reached(4, *proof.in_flight_steps(sends, ends), 0, 1_000, unknown)
    assert (screen["result"], screen["measured"]["server_agrees"]) == ("pass", None)


def process(cpu: float, wait: float | None, lags: dict[float, int]) -> dict[str, Any]:
    counted = [lags.get(bound, 0) for bound in LAG_BOUNDS_MS] + [0]
    return {"cpu_share": cpu, "wait_share": wait, "lag_counts": counted, "lag_max_ms": max(lags)}


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([process(0.2, 0.05, {1.0: 100})], "pass"),
        ([process(0.2, 0.0, {1.0: 100}), process(0.96, 0.0, {1.0: 100})], "fail"),
        ([process(0.6, 0.4, {1.0: 100})], "fail"),
        ([process(0.2, None, {1.0: 90, 200.0: 10})], "fail"),
        ([process(0.2, None, {1.0: 100})], "pass"),
        ([], "not_checked"),
    ],
)
def test_client_bound(processes: list[dict[str, Any]], expected: str) -> None:
    """C21: a process at 95 % of a core (running or waiting for one), or a late loop, is client_bound."""
    assert proof.client_bound(processes, [])["result"] == expected


def test_busy_for_a_part_of_the_time_is_bound_too() -> None:
    """C21: a tenth of the one-second samples at a full core is enough; no process at all is no pass."""
    samples = [{"cpu_share": 0.99 if i < 2 else 0.1, "wait_share": 0.0} for i in range(20)]
    assert proof.client_bound([process(0.2, 0.0, {1.0: 100})], samples)["result"] == "fail"


_LIMITED = """
import json, resource, sys
from pathlib import Path
from assay.load import LoadSpec, Prompt, run_load
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), int(sys.argv[3])))
spec = LoadSpec(url=sys.argv[1], model="m", concurrency=128, requests=256)
print(json.dumps(run_load(spec, [Prompt("p", prompt="x")], Path(sys.argv[2]))))
"""


def test_the_host_refuses_the_last_sockets(tmp_path: Path) -> None:
    """C23: 128 streams where the host allows fewer: an invalid phase that says so, recorded, nothing sent."""
    with ScriptedServer(lambda _r: words(2)) as server:
        run = subprocess.run(
            [sys.executable, "-c", _LIMITED, server.url, str(tmp_path / "out"), "90"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert server.requests == []
    record = json.loads(run.stdout)
    assert record == json.loads((tmp_path / "out" / "client.json").read_text())
    assert record["state"] == "invalid"
    assert "client_refused" in record["reasons"]
    assert "refused a socket" in record["detail"]
    assert record["requests"]["issued"] == 0
    assert read_requests(tmp_path / "out" / "requests.parquet").num_rows == 0


def test_counters_of_a_warm_server(load: Any) -> None:
    """C14: the same prompts again on a server with a prefix cache: its counters and usage say warm."""

    def page() -> str:
        n = len(server.requests)
        return (
            f'vllm:prompt_tokens_total{{engine="0"}} {100 * n}\n'
            f'vllm:prefix_cache_hits_total{{engine="0"}} {96 * max(n - 2, 0)}\n'
            f"vllm:prefix_cache_hits_created 1.7e9\n"
        )

    def script(request: Any) -> Any:
        cached = 96 if request.index >= 2 else 0
        return answer([delta("a"), delta(finish="stop"), usage_event(100, 1, cached=cached), DONE])

    prompts = [Prompt("a", prompt="x"), Prompt("b", prompt="y")]
    with ScriptedServer(script, pages={"/metrics": page}) as server:
        urls = (f"{server.url}/metrics",)
        cold = load(server.url, prompts, requests=2, metrics_urls=urls)
        warm = load(server.url, prompts, requests=2, metrics_urls=urls)
    deltas = [json.loads((one.folder / "counters.json").read_text()) for one in (cold, warm)]
    assert [one["delta"]["cached_prompt_tokens"] for one in deltas] == [0, 192]
    assert [row["n_cached"] for row in warm.rows] == [96, 96]
    assert deltas[0]["delta"]["draft_tokens"] is None
    assert deltas[0]["reasons"]["draft_tokens"] == "absent"


def test_lengths_are_recorded_beside_what_was_asked(load: Any) -> None:
    """C15: the server stops at 40 of 128 forced tokens and counts 5,000 prompt tokens for 1,000: kept."""
    script = answer(
        [*(delta(f" w{i}") for i in range(40)), delta(finish="stop"), usage_event(5000, 40), DONE]
    )
    with ScriptedServer(lambda _r: script) as server:
        (row,) = load(server.url, max_tokens=128, ignore_eos=True, planned_prompt_tokens=1000).rows
        assert server.requests[0].body["ignore_eos"] is True
    assert (row["n_output"], row["n_requested"], row["finish_reason"], row["ignore_eos"]) == (
        40,
        128,
        "stop",
        True,
    )
    assert (row["n_prompt"], row["n_planned_prompt"]) == (5000, 1000)


_INTERRUPTED = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell inherits it ignored
from assay.load import LoadSpec, Prompt, run_load
spec = LoadSpec(url=sys.argv[1], model="m", concurrency=2, duration_s=60)
run_load(spec, [Prompt("p", prompt="x")], Path(sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_broken_off_the_journal_stays(tmp_path: Path, number: int) -> None:
    """A load that is stopped or killed leaves its journal, from which the finished requests come back."""
    out = tmp_path / "out"
    with ScriptedServer(lambda _r: words(3, first_ms=20)) as server:
        run = subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTED, server.url, str(out)], stderr=subprocess.DEVNULL
        )
        limit = time.monotonic() + 30
        while len(server.requests) < 60 and time.monotonic() < limit:
            time.sleep(0.05)
        n_seen = len(server.requests)
        time.sleep(0.6)  # the journal is handed to the kernel four times a second
        run.send_signal(number)
        assert run.wait(15) != 0
        time.sleep(0.3)
        n_after = len(server.requests)
        time.sleep(0.3)
        assert len(server.requests) == n_after  # no process of it goes on
    assert n_seen >= 60
    assert not (out / "requests.parquet").exists()
    told = recover(out)
    table = read_requests(out / "requests.parquet")
    assert table.num_rows == told["rows"] >= n_seen - 2
    assert set(table.column("status").to_pylist()) <= {"ok", "incomplete"}
    assert not [name for name in os.listdir("/proc") if name.isdigit() and _is_worker_of(name, run.pid)]


def _is_worker_of(pid: str, parent: int) -> bool:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) == parent
    except (OSError, ValueError, IndexError):
        return False


@pytest.mark.parametrize(
    ("options", "cores", "expected"),
    [
        ({"concurrency": 128}, 8, 1),
        ({"concurrency": 1024}, 8, 1),
        ({"concurrency": 2048}, 8, 2),
        ({"concurrency": 9000}, 4, 4),
        ({"concurrency": 8, "expected_events_per_s": 120_000.0}, 8, 3),
        ({"concurrency": 8, "processes": 2}, 1, 2),
        ({"concurrency": 1, "processes": 4}, 8, 1),
    ],
)
def test_as_many_processes_as_the_load_needs(options: dict[str, Any], cores: int, expected: int) -> None:
    """One process per 1,024 streams or 50,000 events/s expected, never more than cores unless asked."""
    assert process_count(LoadSpec(url="http://x", model="m", requests=1, **options), cores) == expected


def test_memory_is_counted_for_the_client_itself(load: Any) -> None:
    """A client process starts without numpy and pyarrow: its peak memory stays far under the parent's."""
    with ScriptedServer(lambda _r: words(2)) as server:
        outcome = load(server.url, requests=4)
    (health,) = outcome.client["health"]["processes"]
    assert 5 < health["max_rss_mib"] < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 > 60


def test_continuous_usage_is_not_mistaken(load: Any) -> None:
    """Usage in every event (counts change each time) gives the last count and every event its time."""
    events = [delta(f" w{i}", usage=counts(3, i + 1)) for i in range(200)]
    with ScriptedServer(
        lambda _r: answer([Wait(1), *events, delta(finish="stop"), usage_event(3, 200), DONE])
    ) as server:
        (row,) = load(server.url).rows
    assert (row["n_output"], len(row["chunk_offsets_ns"]), row["n_first_chunk"]) == (200, 200, 1)


def test_an_outage_at_the_start_costs_time_and_concurrency(tmp_path: Path) -> None:
    """A server that comes up in the middle of a window: the time without it is in the throughput and in the
    mean concurrency."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    spec = LoadSpec(url=f"http://127.0.0.1:{port}", model="m", concurrency=4, duration_s=3.0)
    with contextlib.ExitStack() as servers:

        def come_up() -> None:
            servers.enter_context(ScriptedServer(lambda _r: words(5, gap_ms=10.0), port=port))

        late = threading.Timer(2.0, come_up)
        late.start()
        folder = tmp_path / "load"
        client = run_load(spec, [Prompt("p", messages=[{"role": "user", "content": "x"}])], folder)
        late.join()
    summary = summarise(folder)
    assert client["requests"]["failed"]
    assert client["requests"]["ok"]
    assert summary["throughput"]["elapsed_s"] > 2.5
    assert client["screens"]["concurrency_reached"]["measured"]["mean"] < 2.5
    assert client["reasons"] == ["concurrency_not_reached"]


def test_a_window_that_the_requests_end_is_as_long_as_they_took(load: Any) -> None:
    """Both limits given and the requests used up first: the window ends with the last send."""
    with ScriptedServer(lambda _r: words(5, gap_ms=20.0)) as server:
        outcome = load(server.url, requests=10, concurrency=2, duration_s=20.0)
    throughput = outcome.summary["throughput"]
    assert throughput["window_s"] < 5
    assert outcome.client["state"] == "completed"
    assert throughput["window_tok_s"] == pytest.approx(throughput["output_tok_s"], rel=0.5)
