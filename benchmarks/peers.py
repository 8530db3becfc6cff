"""The load clients that are compared: the command line of each, and how its own report is read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from watched import Run, written_ns

from assay.records.columns import numbers_of
from assay.records.requests import read_requests

TOKENS = 128
"""Tokens of each response."""
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


@dataclass(frozen=True)
class Target:
    """The server's URL, the file that assay's prompts are written to, and the peers that are installed."""

    url: str
    prompts: Path
    sglang_so: str | None = None
    aiperf: str | None = None
    vllm: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True)
class Client:
    """One client.

    ``command(target, concurrency, requests)`` is None when the client is not installed. ``reported(run)`` is what it
    says of itself: ``events_s`` (events a second), and the first token's ``ttft_p50_ms`` and ``ttft_p99_ms``.
    """

    name: str
    command: Callable[[Target, int, int], list[str] | None]
    reported: Callable[[Run], dict[str, float]]


def write_prompts(path: Path, n: int) -> None:
    """Each prompt has a seed of its own, by which the server's log knows it."""
    text = " ".join(f"w{i:03d}" for i in range(64))
    lines = (
        json.dumps(
            {"id": f"p{i}", "messages": [{"role": "user", "content": text}], "extra_body": {"seed": i}}
        )
        for i in range(n)
    )
    path.write_text("\n".join(lines) + "\n")


def assay_command(target: Target, concurrency: int, requests: int, duration_s: float = 0.0) -> list[str]:
    """A load of ``requests``, or, with none of them, of ``duration_s`` seconds; writes its prompts first."""
    write_prompts(target.prompts, requests or concurrency)
    options = [target.url, target.prompts, concurrency, requests, duration_s, TOKENS]
    return [sys.executable, "-c", ASSAY, *map(str, options)]


def assay_reported(run: Run) -> dict[str, float]:
    """Its own records; the rate runs from the first send until they are on disk."""
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


def sglang_rust_command(target: Target, concurrency: int, requests: int) -> list[str] | None:
    if not target.sglang_so or not target.tokenizer:
        return None
    command = f"--backend vllm-chat --base-url {target.url} --model mock-model --tokenizer {target.tokenizer}"
    command += f" --dataset-name random-ids --random-input-len 64 --random-output-len {TOKENS}"
    command += f" --random-range-ratio 1 --num-prompts {requests} --max-concurrency {concurrency}"
    command += " --output-file r.jsonl --output-details --disable-tqdm --disable-retokenize"
    return [sys.executable, "-c", RUST, target.sglang_so, *command.split()]


def sglang_rust_reported(run: Run) -> dict[str, float]:
    return serving_report(json.loads((run.folder / "r.jsonl").read_text().splitlines()[-1]))


def aiperf_command(target: Target, concurrency: int, requests: int) -> list[str] | None:
    if not target.aiperf or not target.tokenizer:
        return None
    command = f"profile -m mock-model --tokenizer {target.tokenizer} --url {target.url} --endpoint-type chat"
    command += f" --streaming --concurrency {concurrency} --request-count {requests} --isl 64 --osl {TOKENS}"
    command += " --isl-stddev 0 --osl-stddev 0 --ui none --artifact-dir . --no-gpu-telemetry"
    return [target.aiperf, *command.split(), "--no-server-metrics"]


def aiperf_reported(run: Run) -> dict[str, float]:
    result = json.loads(next(run.folder.rglob("profile_export_aiperf.json")).read_text())
    first = result["time_to_first_token"]
    return {
        "events_s": result["output_token_throughput"]["avg"],
        "ttft_p50_ms": first["p50"],
        "ttft_p99_ms": first["p99"],
    }


def vllm_command(target: Target, concurrency: int, requests: int) -> list[str] | None:
    if not target.vllm or not target.tokenizer:
        return None
    command = f"bench serve --backend openai-chat --endpoint /v1/chat/completions --base-url {target.url}"
    command += f" --model mock-model --tokenizer {target.tokenizer} --dataset-name random"
    command += f" --random-input-len 64 --random-output-len {TOKENS} --num-prompts {requests}"
    command += f" --max-concurrency {concurrency} --ignore-eos --percentile-metrics ttft,itl"
    command += " --metric-percentiles 50,99 --save-result --result-dir . --result-filename r.json"
    return [target.vllm, *command.split()]


def vllm_reported(run: Run) -> dict[str, float]:
    return serving_report(json.loads((run.folder / "r.json").read_text().splitlines()[-1]))


def serving_report(result: dict[str, Any]) -> dict[str, float]:
    """SGLang's client and vLLM's have one ancestor, and their reports the same keys but for the median's."""
    median = "median_ttft_ms" if "median_ttft_ms" in result else "p50_ttft_ms"
    return {
        "events_s": result["output_throughput"],
        "ttft_p50_ms": result[median],
        "ttft_p99_ms": result["p99_ttft_ms"],
    }


CLIENTS = (
    Client("assay", assay_command, assay_reported),
    Client("sglang_rust", sglang_rust_command, sglang_rust_reported),
    Client("aiperf", aiperf_command, aiperf_reported),
    Client("vllm", vllm_command, vllm_reported),
)
SLOW = ("aiperf", "vllm")
"""Peers that take half a minute a run: one event a write only, once, and never before other work."""
