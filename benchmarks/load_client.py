"""The load client beside its peers, on one machine in one run; writes docs/benchmarks.md.

    python benchmarks/load_client.py [--repeats 5] [--soak-s 600] [--favoured | --realtime]
        [--sglang-so FILE] [--aiperf BIN] [--vllm BIN] [--tokenizer FOLDER] [--only full,paced,soak]

A C server (sse_server.c, compiled here) logs what it sent when. The server has one core, the client another.
Peers are run where they are installed: SGLang's Rust client is the `_bench` extension module of its wheel,
AIPerf and vLLM are commands of environments of their own. What is not there is skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from page import machine, update
from peers import CLIENTS, SLOW, TOKENS, Client, Target, assay_command
from quiet import noise
from watched import Bench, Run, written_ns

from assay.metrics.latency import chunk_offsets
from assay.records.requests import read_requests

PAGE = Path(__file__).resolve().parents[1] / "docs/benchmarks.md"


def true_ttft_ms(run: Run) -> NDArray[np.float64]:
    """First-token times as the server saw them."""
    return np.array([entry[2][0] - entry[1] for entry in run.log if len(entry[2])]) / 1e6


def measure(
    bench: Bench, target: Target, client: Client, concurrency: int, requests: int, *flags: str
) -> dict[str, float] | None:
    """One run of one client; None when it is not installed or did not do its work."""
    name = client.name
    command = client.command(target, concurrency, requests)
    if command is None:
        return None
    run = bench.run(command, *flags, slow=name in SLOW)
    if len(run.log) < requests:
        said = (bench.work / "client.txt").read_text()[-500:]
        print(f"{name} sent {len(run.log)} of {requests} requests: {said}", file=sys.stderr, flush=True)
        if name == "assay":
            raise SystemExit(1)
        return None
    events = requests * TOKENS
    result = client.reported(run)
    end_ns = written_ns(run.folder / "records/client.json") if name == "assay" else run.t_last_ns
    result["cpu_s_per_m"] = run.sample.cpu_between(run.t_first_ns, end_ns) / events * 1e6
    result["log_events_s"] = events / ((run.t_last_ns - run.t_first_ns) / 1e9)
    result["cpu_s_start"] = run.sample.cpu_between(run.t_start_ns, run.t_first_ns)
    result["cpu_s_all"] = run.sample.cpu_ns[-1] / 1e9
    result["rss_mib"] = max(run.sample.rss_bytes) / (1 << 20)
    result["in_flight_max"] = run.stats["max_in_flight"]
    true = true_ttft_ms(run)
    result["true_p50_ms"], result["true_p99_ms"] = (float(np.percentile(true, q)) for q in (50, 99))
    result["delivered"] = delivered(run, concurrency)
    if name == "assay":
        result |= timing_errors(run)
    return result


def delivered(run: Run, concurrency: int) -> float:
    """In flight at the server over N, from the first request to the last that was sent."""
    received = np.array(sorted(entry[1] for entry in run.log))
    ended = np.array(sorted(int(entry[2][-1]) for entry in run.log))
    t0, t1 = run.t_first_ns, int(received[-1])
    if t1 <= t0:
        return 1.0
    total = np.sum(np.minimum(ended, t1).clip(t0)) - np.sum(np.minimum(received, t1).clip(t0))
    return float(total / (t1 - t0) / concurrency)


def timing_errors(run: Run) -> dict[str, float]:
    """p99 of |gap at the client - gap at the server| and of the same for the first token, in ms."""
    table = read_requests(run.folder / "records/requests.parquet")
    offsets, bounds = chunk_offsets(table)
    prompts = table.column("prompt_id").to_pylist()
    by_tag = {tag: (received, times) for tag, received, times in run.log}
    gaps, first = [], []
    for prompt, start, end in zip(prompts, bounds[:-1], bounds[1:], strict=True):
        received, times = by_tag[int(prompt[1:])]
        mine = offsets[start:end]
        gaps.append(np.abs(np.diff(mine) - np.diff(times)))
        first.append(abs(int(mine[0]) - (int(times[0]) - received)))
    return {
        "gap_error_p99_ms": float(np.percentile(np.concatenate(gaps), 99)) / 1e6,
        "ttft_error_p99_ms": float(np.percentile(first, 99)) / 1e6,
    }


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median over the runs, key by key."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def full_speed(bench: Bench, target: Target, repeats: int) -> list[str]:
    """Events/s and CPU with 1, 4 and 16 events a write; clients take turns inside each repeat."""
    lines = []
    for burst in (1, 4, 16):
        requests = 2_000 if burst == 1 else 4_000
        results: dict[str, list[dict[str, float]]] = {client.name: [] for client in CLIENTS}
        for repeat in range(repeats):
            for client in CLIENTS:
                if client.name in SLOW and (repeat or burst > 1):
                    continue
                result = measure(bench, target, client, 128, requests, "--burst", str(burst))
                if result is not None:
                    results[client.name].append(result)
                    print(f"full speed, burst {burst}, {client.name}: {result}", flush=True)
        mine = medians(results["assay"])["events_s"]
        for name, runs in results.items():
            if not runs and burst > 1 and name in SLOW:
                continue
            if not runs:
                lines.append(f"| {burst} | {name} | not installed, or it did not run |" + " |" * 9)
                continue
            m = medians(runs)
            low, high = min(r["events_s"] for r in runs), max(r["events_s"] for r in runs)
            ratio = f"{mine / m['log_events_s']:.2f}" if name != "assay" else ""
            lines.append(
                f"| {burst} | {name} | {m['events_s']:,.0f} ({low:,.0f}-{high:,.0f}) "
                f"| {m['log_events_s']:,.0f} | {ratio} "
                f"| {m['cpu_s_per_m']:.2f} | {m['cpu_s_start']:.2f} | {m['rss_mib']:.0f} | {m['in_flight_max']:.0f} "
                f"| {m['ttft_p50_ms']:.2f} / {m['true_p50_ms']:.2f} | {m['ttft_p99_ms']:.2f} / {m['true_p99_ms']:.2f} "
                f"| {len(runs)} |"
            )
    return lines


def paced(bench: Bench, target: Target, repeats: int) -> list[str]:
    """Timing against the server's log at 200 ms / 20 ms: concurrency 128, 512 and 1,024, the last also for longer."""
    lines = []
    for concurrency, rounds in ((128, 4), (512, 2), (1_024, 2), (1_024, 12)):
        requests = concurrency * rounds
        results: dict[str, list[dict[str, float]]] = {client.name: [] for client in CLIENTS}
        for _ in range(repeats):
            for client in CLIENTS:
                if client.name in SLOW:
                    continue
                result = measure(bench, target, client, concurrency, requests, "--ttft", "200", "--itl", "20")
                if result is not None:
                    results[client.name].append(result)
                    print(f"paced {concurrency} x {rounds}, {client.name}: {result}", flush=True)
        for name, runs in results.items():
            if not runs:
                continue
            m = medians(runs)
            errors = (
                f"{m['gap_error_p99_ms']:.4f} | {m['ttft_error_p99_ms']:.3f}" if name == "assay" else "- | -"
            )
            lines.append(
                f"| {concurrency} | {requests:,} | {name} | {errors} | {m['ttft_p50_ms']:.2f} / {m['true_p50_ms']:.2f} "
                f"| {m['ttft_p99_ms']:.2f} / {m['true_p99_ms']:.2f} | {m['delivered']:.1%} | {m['cpu_s_per_m']:.1f} "
                f"| {m['rss_mib']:.0f} | {len(runs)} |"
            )
    return lines


def summary_time(bench: Bench, target: Target) -> str:
    """Seconds from the last response to summary.json for a million events."""
    run = bench.run(assay_command(target, 128, 8_000), "--burst", "16")
    seconds = (written_ns(run.folder / "records/summary.json") - run.t_last_ns) / 1e9
    return f"`summary.json` was there {seconds:.2f} s after the last event of {8_000 * TOKENS:,}."


def soak(bench: Bench, target: Target, duration_s: float) -> str:
    """Memory over a long load at concurrency 1,024: slope of the resident memory of the whole tree."""
    run = bench.run(
        assay_command(target, 1_024, 0, duration_s),
        "--ttft",
        "400",
        "--itl",
        "80",
        timeout_s=duration_s + 300,
    )
    t_s = (np.array(run.sample.t_ns) - run.t_first_ns) / 1e9
    rss = np.array(run.sample.rss_bytes) / (1 << 20)
    steady = (t_s > duration_s * 0.2) & (t_s < duration_s)
    slope = float(np.polyfit(t_s[steady] / 60, rss[steady], 1)[0])
    events = sum(len(entry[2]) for entry in run.log)
    during = rss[(t_s > 0) & (t_s < duration_s)]
    return (
        f"{duration_s:.0f} s at concurrency 1,024, {events:,} events: resident memory of all client processes at most "
        f"{during.max():.0f} MiB, its slope over the last four fifths {slope:+.2f} MiB a minute."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--paced-repeats", type=int, default=3)
    parser.add_argument("--port", type=int, default=9_127)
    parser.add_argument("--soak-s", type=float, default=600.0)
    parser.add_argument("--realtime", action="store_true", help="server and clients under SCHED_FIFO (root)")
    parser.add_argument(
        "--favoured", action="store_true", help="before other work on the machine (root, autogroups)"
    )
    parser.add_argument("--sglang-so", help="_bench extension module of the sglang wheel")
    parser.add_argument("--aiperf", help="aiperf command")
    parser.add_argument("--vllm", help="vllm command")
    parser.add_argument("--tokenizer", help="folder of a tokenizer for the peers")
    parser.add_argument("--only", default="full,paced,summary,soak")
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    # As Ctrl-C does: the server and the client of the run end with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parts = set(options.only.split(","))
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
        work = Path(folder)
        bench = Bench(work, options.port, favoured=options.favoured, realtime=options.realtime)
        target = Target(
            url=bench.url,
            prompts=work / "prompts.jsonl",
            sglang_so=options.sglang_so,
            aiperf=options.aiperf,
            vllm=options.vllm,
            tokenizer=options.tokenizer,
        )
        before = noise(bench.cores)
        if "full" in parts:
            found["full"] = full_speed(bench, target, options.repeats)
        if "paced" in parts:
            found["paced"] = paced(bench, target, options.paced_repeats)
        if "summary" in parts:
            found["summary"] = [summary_time(bench, target)]
        if "soak" in parts:
            found["soak"] = [soak(bench, target, options.soak_s)]
        after = noise(bench.cores)
    lost = f"Processes spinning on the two cores lost {before} before the runs; {after} after them."
    found["machine"] = [machine(favoured=options.favoured, realtime=options.realtime), lost]
    update(options.out, found)
    print(options.out)


if __name__ == "__main__":
    main()
