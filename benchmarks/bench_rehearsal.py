"""Is the rehearsal server fast enough? 128 streams from the load client, the server alone on one core.

    python benchmarks/bench_rehearsal.py [--streams 128] [--scales 10 20 40 80]

For each time scale: events a second, the CPU share of server and client, how late the server woke, and the
output rate in simulated time beside the exact one of the same load without clock and sockets.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

from assay.load import LoadSpec, Prompt, run_load, summarise
from assay.metrics import prometheus
from assay.rehearsal.offline import Ask, ClosedLoop, output_tok_s
from assay.rehearsal.profile import read_profile
from assay.rehearsal.recipe import recipe_of

ROOT = Path(__file__).resolve().parents[1]
PROFILE = ROOT / "config/rehearsal/profiles/dsv41_native_tp4.yaml"
FLAGS = {"max_num_seqs": 64, "replicas": 2, "tensor_parallel_size": 4}
MODEL = "rehearsed"
MAX_TOKENS, PROMPT_IDS = 256, list(range(100, 228))


def start(scale: int, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A server on the last core; (process, base URL)."""
    config = {"profile": str(PROFILE), "served_name": MODEL, "flags": FLAGS, "time_scale": scale,
              "parameters": {"ready_s": 0.0}}  # fmt: skip
    log = folder / "server.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [sys.executable, "-m", "assay.rehearsal.server", "--config", json.dumps(config), "--port", "0"],
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    os.sched_setaffinity(server.pid, {max(os.sched_getaffinity(0))})
    while not (found := re.search(r"listening on (\S+)", log.read_text())):
        if server.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(0.02)
    return server, f"http://{found.group(1)}"


def measure(scale: int, streams: int, exact_tok_s: float) -> str:
    """One line of the table."""
    prompts = [Prompt(id=f"p{n}", token_ids=[n + 20, *PROMPT_IDS[1:]]) for n in range(streams * 4)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, url = start(scale, folder)
        try:
            spec = LoadSpec(url=url, model=MODEL, concurrency=streams, requests=len(prompts),
                            max_tokens=MAX_TOKENS, ignore_eos=True, processes=1)  # fmt: skip
            before, began = psutil.Process(server.pid).cpu_times(), time.monotonic()
            record = run_load(spec, prompts, folder / "load")
            after, wall_s = psutil.Process(server.pid).cpu_times(), time.monotonic() - began
            own = prometheus.parse(httpx.get(f"{url}/metrics", trust_env=False).text)
            rate = summarise(folder / "load")["throughput"]
        finally:
            server.terminate()
            server.wait()
    cpu_s = after.user + after.system - before.user - before.system
    client = record["screens"]["client_bound"]
    return (
        f"| {scale} | {rate['output_tok_s']:,.0f} | {cpu_s / wall_s:.0%} | {cpu_s * 1e6 / rate['output_tokens']:.1f} "
        f"| {client['measured']['cpu_share_max']:.0%} {client['result']} "
        f"| {own['rehearsal:late_mean_seconds'] * 1e3:.2f} / {own['rehearsal:late_max_seconds'] * 1e3:.1f} "
        f"| {rate['output_tok_s'] / scale:,.0f} | {rate['output_tok_s'] / scale / exact_tok_s:.3f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--scales", type=int, nargs="+", default=[1, 10, 20, 40])
    options = parser.parse_args()
    asks = [Ask(len(PROMPT_IDS), MAX_TOKENS, n, is_random=True) for n in range(options.streams * 4)]
    recipe = recipe_of("rehearsal", FLAGS)
    exact = output_tok_s(ClosedLoop(read_profile(PROFILE), recipe).run(asks, options.streams))
    print(
        f"{options.streams} streams, {len(asks)} requests of {MAX_TOKENS} tokens, an event a token; "
        f"without a clock {exact:,.0f} tokens/s"
    )
    print(
        "| scale | events/s | server CPU | server us/event | client CPU "
        "| server late mean / max, ms | simulated tokens/s | of exact |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for scale in options.scales:
        print(measure(scale, options.streams, exact), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
