"""The load client beside its peers, on one machine in one run; writes docs/benchmarks.md.

    python benchmarks/load_client.py [--repeats 5] [--soak-s 600] [--favoured | --realtime]
        [--sglang-so FILE] [--aiperf BIN] [--vllm BIN] [--tokenizer FOLDER] [--only full,paced,soak]

A C server (sse_server.c, compiled here) logs what it sent when. The server has one core, the client another.
Peers are run where they are installed: SGLang's Rust client is the `_bench` extension module of its wheel,
AIPerf and vLLM are commands of environments of their own. What is not there is skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from assay.metrics.latency import chunk_offsets
from assay.records.columns import numbers_of
from assay.records.requests import read_requests

HERE = Path(__file__).resolve().parent
TOKENS = 128
SLOW = ("aiperf", "vllm")
"""Peers that take half a minute a run: one event a write only, once, and never before other work."""
ASSAY = """
import sys
from pathlib import Path
import pyarrow
from assay.load import LoadSpec, read_prompts, run_load, summarise
from assay.records.files import write_json
pyarrow.set_memory_pool(pyarrow.system_memory_pool())
url, prompts, concurrency, requests, duration, tokens = sys.argv[1:]
spec = LoadSpec(
    url=url,
    model="mock-model",
    concurrency=int(concurrency),
    requests=int(requests) or None,
    duration_s=float(duration) or None,
    max_tokens=int(tokens),
)
run_load(spec, read_prompts(Path(prompts)), Path("records"))
write_json(Path("records/summary.json"), summarise(Path("records")))
"""
RUST = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_bench", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run_argv(["bench_serving", *sys.argv[2:]])
"""


@dataclass
class Sample:
    """CPU and memory of a process tree over time."""

    t_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)

    def cpu_between(self, start_ns: int, end_ns: int) -> float:
        """CPU seconds between two moments, interpolated between samples."""
        spent = np.interp([start_ns, end_ns], self.t_ns, self.cpu_ns)
        return float(spent[1] - spent[0]) / 1e9


@dataclass
class Run:
    """One run of one client."""

    log: list[tuple[int, int, np.ndarray]]  # tag, received, times of the tokens
    stats: dict[str, Any]
    sample: Sample
    folder: Path
    t_start_ns: int
    wall_s: float

    @property
    def t_first_ns(self) -> int:
        """The first request of the load: a client's own test request before it is left out."""
        received = sorted(entry[1] for entry in self.log)
        return received[1] if len(received) > 1 and received[1] - received[0] > 50_000_000 else received[0]

    @property
    def t_last_ns(self) -> int:
        return max(int(entry[2][-1]) for entry in self.log if len(entry[2]))


class Bench:
    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.server = work / "sse_server"
        subprocess.run(["cc", "-O2", "-o", self.server, HERE / "sse_server.c"], check=True)
        cores = sorted(os.sched_getaffinity(0))
        self.cores = (cores[0], cores[-1])
        self.prompts = work / "prompts.jsonl"
        self.url = f"http://127.0.0.1:{options.port}"

    def pinned(self, core: int, slow: bool = False) -> list[str]:
        realtime = ["chrt", "-f", "20"] if self.options.realtime and not slow else []
        return [*realtime, "taskset", "-c", str(core)]

    def favour(self, process: subprocess.Popen[bytes]) -> None:
        """Put a session of its own before other work on the machine: the highest weight of the scheduler."""
        if self.options.favoured:
            Path(f"/proc/{process.pid}/autogroup").write_text("-20")

    @contextmanager
    def serving(self, *flags: str) -> Iterator[tuple[Path, Path]]:
        log, stats = self.work / "server.log", self.work / "server.json"
        log.unlink(missing_ok=True)
        command = [
            *self.pinned(self.cores[0]),
            str(self.server),
            "--port",
            str(self.options.port),
            "--log",
            str(log),
        ]
        process = subprocess.Popen([*command, "--stats", str(stats), *flags], start_new_session=True)
        self.favour(process)
        time.sleep(0.3)
        try:
            yield log, stats
        finally:
            process.terminate()
            process.wait()

    def run(self, command: list[str], *flags: str, timeout_s: float = 900.0, slow: bool = False) -> Run:
        """Run a client against a fresh server; its output goes to a file."""
        folder = self.work / "out"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        sample = Sample()
        with self.serving(*flags) as (log, stats):
            t_start_ns = time.monotonic_ns()
            with (self.work / "client.txt").open("w") as output:
                environment = os.environ | {"OPENAI_API_KEY": "x", "TOKENIZERS_PARALLELISM": "false"}
                process = subprocess.Popen(
                    [*self.pinned(self.cores[1], slow), *command],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                )
                self.favour(process)
                watcher = threading.Thread(target=watch, args=(process.pid, sample, process.poll))
                watcher.start()
                process.wait(timeout_s)
                watcher.join()
            wall_s = (time.monotonic_ns() - t_start_ns) / 1e9
        return Run(read_log(log), json.loads(stats.read_text()), sample, folder, t_start_ns, wall_s)

    def write_prompts(self, n: int) -> None:
        """Each prompt has a seed of its own, by which the server's log knows it."""
        text = " ".join(f"w{i:03d}" for i in range(64))
        lines = (
            json.dumps(
                {"id": f"p{i}", "messages": [{"role": "user", "content": text}], "extra_body": {"seed": i}}
            )
            for i in range(n)
        )
        self.prompts.write_text("\n".join(lines) + "\n")

    def assay(self, concurrency: int, requests: int, duration_s: float = 0.0) -> list[str]:
        self.write_prompts(requests or concurrency)
        options = [self.url, self.prompts, concurrency, requests, duration_s, TOKENS]
        return [sys.executable, "-c", ASSAY, *map(str, options)]

    def sglang_rust(self, concurrency: int, requests: int) -> list[str] | None:
        if not self.options.sglang_so or not self.options.tokenizer:
            return None
        command = f"--backend vllm-chat --base-url {self.url} --model mock-model --tokenizer {self.options.tokenizer}"
        command += f" --dataset-name random-ids --random-input-len 64 --random-output-len {TOKENS}"
        command += f" --random-range-ratio 1 --num-prompts {requests} --max-concurrency {concurrency}"
        command += " --output-file r.jsonl --output-details --disable-tqdm --disable-retokenize"
        return [sys.executable, "-c", RUST, self.options.sglang_so, *command.split()]

    def aiperf(self, concurrency: int, requests: int) -> list[str] | None:
        if not self.options.aiperf or not self.options.tokenizer:
            return None
        command = f"profile -m mock-model --tokenizer {self.options.tokenizer} --url {self.url} --endpoint-type chat"
        command += (
            f" --streaming --concurrency {concurrency} --request-count {requests} --isl 64 --osl {TOKENS}"
        )
        command += " --isl-stddev 0 --osl-stddev 0 --ui none --artifact-dir . --no-gpu-telemetry"
        return [self.options.aiperf, *command.split(), "--no-server-metrics"]

    def vllm(self, concurrency: int, requests: int) -> list[str] | None:
        if not self.options.vllm or not self.options.tokenizer:
            return None
        command = f"bench serve --backend openai-chat --endpoint /v1/chat/completions --base-url {self.url}"
        command += f" --model mock-model --tokenizer {self.options.tokenizer} --dataset-name random"
        command += f" --random-input-len 64 --random-output-len {TOKENS} --num-prompts {requests}"
        command += f" --max-concurrency {concurrency} --ignore-eos --percentile-metrics ttft,itl"
        command += " --metric-percentiles 50,99 --save-result --result-dir . --result-filename r.json"
        return [self.options.vllm, *command.split()]


def watch(pid: int, sample: Sample, ended: Callable[[], int | None]) -> None:
    """Sample CPU (scheduler nanoseconds) and memory of the tree under ``pid`` until it ends."""
    spent: dict[Path, int] = {}
    while ended() is None:
        rss = 0
        for one in tree(pid):
            try:
                for task in Path(f"/proc/{one}/task").iterdir():
                    spent[task] = int((task / "schedstat").read_text().split()[0])
                rss += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * 4_096
            except (OSError, ValueError, IndexError):
                continue  # it ended between two looks
        sample.t_ns.append(time.monotonic_ns())
        sample.cpu_ns.append(sum(spent.values()))
        sample.rss_bytes.append(rss)
        time.sleep(0.02)


def tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it ended
    return found


def read_log(path: Path) -> list[tuple[int, int, np.ndarray]]:
    numbers = np.fromfile(path, dtype=np.uint64)
    entries, at = [], 0
    while at < len(numbers):
        n = int(numbers[at + 2])
        entries.append(
            (int(numbers[at]), int(numbers[at + 1]), numbers[at + 3 : at + 3 + n].astype(np.int64))
        )
        at += 3 + n
    return entries


def written_ns(path: Path) -> int:
    """When a file was last written, on the monotonic clock."""
    return path.stat().st_mtime_ns - (time.time_ns() - time.monotonic_ns())


def true_ttft_ms(run: Run) -> np.ndarray:
    return np.array([entry[2][0] - entry[1] for entry in run.log if len(entry[2])]) / 1e6


def reported(name: str, run: Run) -> dict[str, float]:
    """events/s, and first-token p50 and p99 in ms, as the client reports them."""
    if name == "assay":
        summary = json.loads((run.folder / "records/summary.json").read_text())
        table = read_requests(run.folder / "records/requests.parquet")
        first, _ = numbers_of(table.column("t_first_token_ns"))
        send, _ = numbers_of(table.column("t_send_ns"))
        ttft = (first - send) / 1e6
        t_end_ns = written_ns(run.folder / "records/client.json")
        events = summary["output"]["chunks"]
        return {
            "events_s": events / ((t_end_ns - int(send.min())) / 1e9),
            "ttft_p50_ms": float(np.percentile(ttft, 50)),
            "ttft_p99_ms": float(np.percentile(ttft, 99)),
        }
    if name == "aiperf":
        result = json.loads(next(run.folder.rglob("profile_export_aiperf.json")).read_text())
        first = result["time_to_first_token"]
        return {
            "events_s": result["output_token_throughput"]["avg"],
            "ttft_p50_ms": first["p50"],
            "ttft_p99_ms": first["p99"],
        }
    path = run.folder / ("r.json" if name == "vllm" else "r.jsonl")
    result = json.loads(path.read_text().splitlines()[-1])
    median = "median_ttft_ms" if "median_ttft_ms" in result else "p50_ttft_ms"
    return {
        "events_s": result["output_throughput"],
        "ttft_p50_ms": result[median],
        "ttft_p99_ms": result["p99_ttft_ms"],
    }


def measure(bench: Bench, name: str, concurrency: int, requests: int, *flags: str) -> dict[str, float] | None:
    """One run of one client; None when it is not installed or did not do its work."""
    command = getattr(bench, name)(concurrency, requests)
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
    result = reported(name, run)
    end_ns = written_ns(run.folder / "records/client.json") if name == "assay" else run.t_last_ns
    result["cpu_s_per_m"] = run.sample.cpu_between(run.t_first_ns, end_ns) / events * 1e6
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
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def full_speed(bench: Bench, clients: list[str]) -> list[str]:
    """Events/s and CPU with 1, 4 and 16 events a write; clients take turns inside each repeat."""
    lines = []
    for burst in (1, 4, 16):
        requests = 2_000 if burst == 1 else 4_000
        results: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
        for repeat in range(bench.options.repeats):
            for name in clients:
                if name in SLOW and (repeat or burst > 1):
                    continue
                result = measure(bench, name, 128, requests, "--burst", str(burst))
                if result is not None:
                    results[name].append(result)
                    print(f"full speed, burst {burst}, {name}: {result}", flush=True)
        best = max((medians(r)["events_s"] for n, r in results.items() if r and n != "assay"), default=None)
        for name, runs in results.items():
            if not runs and burst > 1 and name in SLOW:
                continue
            if not runs:
                lines.append(f"| {burst} | {name} | not installed, or it did not run |" + " |" * 8)
                continue
            m = medians(runs)
            low, high = min(r["events_s"] for r in runs), max(r["events_s"] for r in runs)
            ratio = f"{m['events_s'] / best:.2f}" if best and name == "assay" else ""
            lines.append(
                f"| {burst} | {name} | {m['events_s']:,.0f} ({low:,.0f}-{high:,.0f}) | {ratio} "
                f"| {m['cpu_s_per_m']:.2f} | {m['cpu_s_start']:.2f} | {m['rss_mib']:.0f} | {m['in_flight_max']:.0f} "
                f"| {m['ttft_p50_ms']:.2f} / {m['true_p50_ms']:.2f} | {m['ttft_p99_ms']:.2f} / {m['true_p99_ms']:.2f} "
                f"| {len(runs)} |"
            )
    return lines


def paced(bench: Bench, clients: list[str]) -> list[str]:
    """Timing against the server's log at 200 ms / 20 ms, concurrency 128, 512 and 1,024."""
    lines = []
    for concurrency in (128, 512, 1_024):
        requests = 512 if concurrency == 128 else 2 * concurrency
        results: dict[str, list[dict[str, float]]] = {name: [] for name in clients}
        for _ in range(bench.options.paced_repeats):
            for name in clients:
                if name in SLOW:
                    continue
                result = measure(bench, name, concurrency, requests, "--ttft", "200", "--itl", "20")
                if result is not None:
                    results[name].append(result)
                    print(f"paced {concurrency}, {name}: {result}", flush=True)
        for name, runs in results.items():
            if not runs:
                continue
            m = medians(runs)
            errors = (
                f"{m['gap_error_p99_ms']:.4f} | {m['ttft_error_p99_ms']:.3f}" if name == "assay" else "- | -"
            )
            lines.append(
                f"| {concurrency} | {name} | {errors} | {m['ttft_p50_ms']:.2f} / {m['true_p50_ms']:.2f} "
                f"| {m['ttft_p99_ms']:.2f} / {m['true_p99_ms']:.2f} | {m['delivered']:.1%} | {m['cpu_s_per_m']:.1f} "
                f"| {m['rss_mib']:.0f} | {len(runs)} |"
            )
    return lines


def summary_time(bench: Bench) -> str:
    """Seconds from the last response to summary.json for a million events."""
    run = bench.run(bench.assay(128, 8_000), "--burst", "16")
    seconds = (written_ns(run.folder / "records/summary.json") - run.t_last_ns) / 1e9
    return f"`summary.json` was there {seconds:.2f} s after the last event of {8_000 * TOKENS:,}."


def soak(bench: Bench, duration_s: float) -> str:
    """Memory over a long load at concurrency 1,024: slope of the resident memory of the whole tree."""
    run = bench.run(
        bench.assay(1_024, 0, duration_s), "--ttft", "400", "--itl", "80", timeout_s=duration_s + 300
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
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs/benchmarks.md")
    options = parser.parse_args()
    parts = set(options.only.split(","))
    clients = ["assay", "sglang_rust", "aiperf", "vllm"]
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as work:
        bench = Bench(options, Path(work))
        found = {"full": full_speed(bench, clients)} if "full" in parts else {}
        if "paced" in parts:
            found["paced"] = paced(bench, clients)
        if "summary" in parts:
            found["summary"] = [summary_time(bench)]
        if "soak" in parts:
            found["soak"] = [soak(bench, options.soak_s)]
    state = options.out.with_suffix(".json")
    known = json.loads(state.read_text()) if state.is_file() else {}
    known |= found | {"machine": [machine(options)]}
    state.write_text(json.dumps(known, indent=1) + "\n")
    options.out.write_text(page(known))
    print(options.out)


def machine(options: argparse.Namespace) -> str:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown CPU",
    )
    scheduling = (
        "put before other work by the scheduler's weights" if options.favoured else "with normal weights"
    )
    scheduling = "under SCHED_FIFO, since other work ran beside" if options.realtime else scheduling
    return (
        f"{model}, {os.cpu_count()} cores, Linux {os.uname().release}, Python {sys.version.split()[0]}; server on one "
        f"core, client on another, both {scheduling}; load average at the end {os.getloadavg()[0]:.1f}."
    )


def page(found: dict[str, list[str]]) -> str:
    """docs/benchmarks.md out of what was measured."""

    def part(name: str) -> str:
        return "\n".join(found.get(name, ["not run"]))

    return f"""# Benchmarks of the load client

Written by `benchmarks/load_client.py`; do not edit. Machine: {part("machine")}
Cells are medians over the runs given; ratios hold inside one table, since the machine is shared.

## Full speed
2,000 requests (4,000 with bursts) of 128 tokens, concurrency 128, against `benchmarks/sse_server.c`. *events/s* of
assay runs from its first send until `requests.parquet` and `client.json` are on disk; of the others it is what they
report, their own evaluation left out. *CPU* is that of all processes of the client in the measured phase (assay: until
its records are written); start-up and imports stand apart. First-token times are as reported / as the server's log has
them. A server this fast saturates every client: assay marks such a phase `client_bound`. AIPerf and vLLM are run
once, with one event a write, and with normal weights.

| events a write | client | events/s (min-max) | of the fastest peer | CPU s per million events | CPU s before | peak RSS MiB | most in flight | TTFT p50 ms | TTFT p99 ms | runs |
|---|---|---|---|---|---|---|---|---|---|---|
{part("full")}

## Paced: 200 ms to the first token, 20 ms between tokens
Errors are absolute differences to the server's log, p99 over all gaps and requests. The send stamp is taken in user
space before the first byte is handed to the kernel; the first-token error therefore has the server's wake-up in it.
*delivered* is what was in flight at the server over what was asked, from the first to the last request.

| concurrency | client | gap error p99 ms | first-token error p99 ms | TTFT p50 ms, reported / true | TTFT p99 ms, reported / true | delivered | CPU s per million events | peak RSS MiB | runs |
|---|---|---|---|---|---|---|---|---|---|
{part("paced")}

## Records and memory
{part("summary")}
{part("soak")}
"""  # noqa: E501 - the tables' headings


if __name__ == "__main__":
    main()
