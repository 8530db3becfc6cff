"""Open loop, ramps, windows: when requests are sent, and what the records say about it."""

from __future__ import annotations

import itertools
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from assay.load import Prompt, recover
from assay.load.schedule import Arrivals, arrival_offsets_ns
from assay.metrics.latency import derive
from assay.records.requests import read_requests
from engines.scripted_server import STREAM_HEAD, ScriptedServer, Wait, chunk, delta, words


def first(n: int, *args: Any, **kwargs: Any) -> list[int]:
    return list(itertools.islice(arrival_offsets_ns(*args, **kwargs), n))


def test_constant_arrivals_do_not_drift() -> None:
    """The millionth constant arrival at 1,000/s is at 1,000 s to the nanosecond: times are absolute."""
    offsets = arrival_offsets_ns(Arrivals.CONSTANT, 1_000.0, 0)
    assert next(itertools.islice(offsets, 1_000_000, None)) == 1_000_000_000_000


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_the_same_seed_gives_the_same_schedule(arrivals: Arrivals) -> None:
    """A schedule is a function of its arguments; another seed gives another (but for constant gaps)."""
    assert first(100, arrivals, 10.0, 5) == first(100, arrivals, 10.0, 5)
    assert (first(100, arrivals, 10.0, 5) == first(100, arrivals, 10.0, 6)) is (arrivals is Arrivals.CONSTANT)


@pytest.mark.parametrize(
    ("arrivals", "burstiness", "cv"), [("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 4.0, 0.5)]
)
def test_gaps_have_the_asked_distribution(arrivals: str, burstiness: float, cv: float) -> None:
    """Mean gap 1/rate; coefficient of variation 1 for Poisson, 1/sqrt(shape) for gamma (large numbers)."""
    offsets = first(40_001, Arrivals(arrivals), 100.0, 1, burstiness=burstiness)
    gaps = [b - a for a, b in itertools.pairwise(offsets)]
    assert statistics.fmean(gaps) == pytest.approx(1e7, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(cv, rel=0.1)


def test_a_ramp_grows_linearly() -> None:
    """Over a ramp of 10 s to 100/s come 500 arrivals, a quarter of them in the first half."""
    offsets = first(2_000, Arrivals.CONSTANT, 100.0, 0, ramp_s=10.0)
    inside = [offset for offset in offsets if offset < 10e9]
    assert len(inside) == pytest.approx(500, abs=1)
    assert sum(offset < 5e9 for offset in inside) == pytest.approx(125, abs=1)


def test_open_loop_keeps_its_schedule_behind_a_slow_server(load: Any) -> None:
    """Arrivals do not wait for answers, and each row has the time the schedule wanted."""
    with ScriptedServer(lambda _r: words(1, first_ms=400)) as server:
        outcome = load(server.url, requests=30, concurrency=0, rate_per_s=60.0, arrivals="constant")
        received = sorted(request.t_received_ns for request in server.requests)
        assert server.max_in_flight > 15
    planned = [row["t_scheduled_ns"] for row in outcome.rows]
    gaps = [b - a for a, b in itertools.pairwise(planned)]
    assert max(abs(gap - 1e9 / 60) for gap in gaps) <= 1
    assert all(got >= due for got, due in zip(received, planned, strict=True))
    assert outcome.client["screens"]["concurrency_reached"]["result"] == "not_checked"


def test_a_cap_delays_but_is_told(load: Any) -> None:
    """With at most 2 in flight, late requests keep their scheduled time, and latencies from it."""
    with ScriptedServer(lambda _r: words(1, first_ms=100)) as server:
        outcome = load(server.url, requests=12, concurrency=2, rate_per_s=100.0, arrivals="constant")
        assert server.max_in_flight == 2
    derived = derive(outcome.table)
    assert max(derived.schedule_delay_ms) >= 300
    late = derived.ttft_from_schedule_ms - derived.ttft_ms
    assert late == pytest.approx(derived.schedule_delay_ms)


def test_open_loop_over_processes_is_the_same_schedule(load: Any) -> None:
    """Split over two processes, the scheduled gaps are those of one."""
    with ScriptedServer(lambda _r: words(1)) as server:
        outcome = load(server.url, requests=20, concurrency=0, rate_per_s=100.0, seed=3, processes=2)
    planned = [row["t_scheduled_ns"] for row in outcome.rows]
    expected = first(20, Arrivals.POISSON, 100.0, 3)
    assert [t - planned[0] for t in planned] == expected
    assert len({row["worker"] % 2 for row in outcome.rows}) == 2


def test_what_was_due_and_never_sent_is_incomplete(load: Any) -> None:
    """In a window whose slots are all stuck, due requests are rows too: issued counts all."""
    stuck = [STREAM_HEAD, chunk(delta("a")), Wait(60_000)]
    with ScriptedServer(lambda _r: stuck) as server:
        outcome = load(
            server.url, duration_s=0.5, drain_limit_s=0.2, concurrency=1, rate_per_s=20.0, arrivals="constant"
        )
        assert len(server.requests) == 1
    assert [row["status"] for row in outcome.rows] == ["incomplete"] * 10
    assert sum(row["t_send_ns"] is None for row in outcome.rows) == 9
    assert outcome.rows[0]["body"] is not None


def test_a_closed_ramp_is_not_measured(load: Any) -> None:
    """Streams that start one after the other draw from the opening prompts until all have started."""
    opening = [Prompt("o", prompt="open")]
    measured = [Prompt("m", prompt="measure")]
    with ScriptedServer(lambda _r: words(1, first_ms=20)) as server:
        outcome = load(server.url, measured, opening, requests=20, concurrency=4, ramp_s=0.5)
        assert server.requests[0].body["prompt"] == "open"
    anchor = outcome.client["phase"]["anchor"]["monotonic_ns"]  # taken just before the start
    assert min(row["t_send_ns"] for row in outcome.rows) >= anchor + 0.5e9
    assert {row["prompt_id"] for row in outcome.rows} == {"m"}


def test_a_dead_server_is_not_hammered(load: Any) -> None:
    """In a window against a server that is gone, refused connections are spaced: tens, not thousands."""
    with ScriptedServer(lambda _r: words(1)) as server:
        url = server.url
    outcome = load(url, duration_s=1.0, concurrency=2)
    assert 2 <= len(outcome.rows) <= 40
    assert {row["error_class"] for row in outcome.rows} == {"connect"}
    assert outcome.client["state"] in ("failed", "invalid")


def test_a_cap_is_shared_by_processes_that_each_have_a_part(load: Any) -> None:
    """More processes than the cap has slots: never more requests in flight than the cap says."""
    with ScriptedServer(lambda _r: words(2, gap_ms=150.0)) as server:
        load(server.url, requests=30, rate_per_s=60.0, arrivals="constant", concurrency=2, processes=4)
        assert server.max_in_flight == 2


def test_a_server_that_refuses_is_no_schedule_of_ours(load: Any) -> None:
    """Requests that found no connection when they were due failed; they are none that was never sent."""
    with ScriptedServer(lambda _r: words(2)) as server:
        killer = threading.Timer(0.5, server.kill)
        killer.start()
        outcome = load(server.url, duration_s=1.5, rate_per_s=20.0, arrivals="constant", concurrency=0)
        killer.join()
    assert outcome.client["requests"]["failed"] > 5
    assert outcome.client["screens"]["schedule_kept"]["measured"]["never_sent"] == 0
    assert outcome.client["reasons"] == []


_STOPPED = """
import sys
from pathlib import Path
from assay.load import LoadSpec, Prompt, run_load
spec = LoadSpec(url=sys.argv[1], model="m", rate_per_s=40.0, arrivals="constant", concurrency=1, duration_s=60.0)
run_load(spec, [Prompt("p", prompt="x")], Path(sys.argv[2]))
"""


def test_what_was_due_when_a_load_is_stopped_is_on_record(tmp_path: Path) -> None:
    """A stopped open loop behind a slow server: what was due and waited is there as never sent."""
    with ScriptedServer(lambda _r: words(2, gap_ms=400.0)) as server:
        run = subprocess.Popen([sys.executable, "-c", _STOPPED, server.url, str(tmp_path / "out")])
        limit = time.monotonic() + 30
        while len(server.requests) < 4 and time.monotonic() < limit:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        assert run.wait(15) == 143
        n_sent = len(server.requests)
    recover(tmp_path / "out")
    table = read_requests(tmp_path / "out" / "requests.parquet")
    never_sent = table.column("t_send_ns").null_count
    assert table.num_rows - never_sent == n_sent
    # 16 arrivals in each answer's 400 ms, of which one is sent
    assert never_sent >= 10 * (n_sent - 1)
    assert set(table.column("status").to_pylist()) == {"ok", "incomplete"}
