"""A campaign on the simulated node, through the whole chain: Snakemake, lease, gates, load, extracts, verdicts."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from assay.digest import sha256_of_file
from checkout import Checkout
from engines.rehearsal_process import write_profile

pytestmark = pytest.mark.e2e


def rehearsed(checkout: Checkout, arms: dict[str, dict[str, Any]], points: dict[str, Any]) -> None:
    """Make the checkout's campaign one of the rehearsal engine: ``arms`` are flags by name."""
    profile = write_profile(checkout.root)
    checkout.write(
        "config/models/rehearsed.yaml",
        {
            "schema": "assay/model/1",
            "name": "rehearsed",
            "source": {"path": str(profile)},
            "sha256": sha256_of_file(profile),
            "license": "CC0-1.0",
            "vocab_size": 100_000,
            "first_plain_token": 16,
        },
    )
    campaign = checkout.campaign
    campaign["arms"] = {
        name: {"engine": "rehearsal", "image": "fake_llama_cpp", "model": "rehearsed", "flags": flags}
        for name, flags in arms.items()
    }
    campaign["order"] = list(arms)
    campaign["points"] = points
    first, *others = arms
    campaign["comparisons"] = [
        {"name": f"{other}_over_{first}", "numerator": other, "denominator": first, "declared_factor": None}
        for other in others
    ]
    checkout.write_campaign()


def rows_of(checkout: Checkout) -> list[dict[str, str]]:
    with (checkout.root / "results/campaign_tiny/extracts/rows.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def extract(checkout: Checkout, name: str) -> Any:
    return json.loads((checkout.root / f"results/campaign_tiny/extracts/{name}.json").read_text())


SOAK = {
    "soak": {
        "kind": "sustained",
        "workload": "chat",
        "concurrency": 8,
        "windows": 1,
        "issue_s": 2.5,
        "drain_limit_s": 20,
        "max_tokens": 48,
    }
}


def test_faster_soak_that_fails_its_after_gate(checkout: Checkout) -> None:
    """Two recipes soak without a failed request, and the faster one answers HTTP 500 to one JSON task after
    it: its run is `fail` with its throughput kept, the slower one's gates pass, and the comparison is a recipe
    comparison that lists slots and memory target."""
    shared = {"time_scale": 4, "seed": 3}
    rehearsed(
        checkout,
        {
            "base": {**shared, "max_num_seqs": 2, "gpu_memory_utilization": 0.95},
            "fast": {
                **shared,
                "max_num_seqs": 8,
                "gpu_memory_utilization": 0.9,
                "num_speculative_tokens": 3,
                "faults": [{"kind": "http_500"}],
            },
        },
        SOAK,
    )
    run = checkout.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    before, after = (
        {arm: checkout.receipt(f"{arm}/{stage}.json")["measured"]["verdict"] for arm in ("base", "fast")}
        for stage in ("gate_before", "gate_after")
    )
    assert before == {"base": "pass", "fast": "pass"}
    assert after == {"base": "pass", "fast": "fail"}
    soaks = {row["arm"]: row for row in rows_of(checkout) if row["row_id"].endswith("/soak/w1")}
    rates = {arm: float(row["output_tok_s"]) for arm, row in soaks.items()}
    assert rates["fast"] > 1.5 * rates["base"]
    assert {arm: row["n_failed"] for arm, row in soaks.items()} == {"base": "0", "fast": "0"}
    runs = {run["arm"]: run for run in extract(checkout, "verdicts")["runs"]}
    found = {arm: {f["name"]: f for f in run["findings"]} for arm, run in runs.items()}
    assert found["base"]["gate_after:json"]["verdict"] == "pass"
    assert found["fast"]["gate_after:json"]["verdict"] == "fail"
    load = found["fast"]["load:fast/soak/w1"]
    assert load["measured"]["output_tok_s"] == pytest.approx(rates["fast"])
    # A machine that starves the client makes the load itself invalid, whatever the server did.
    assert runs["fast"]["verdict"] == "fail" or "client_bound:fail" in load["reasons"]
    (comparison,) = extract(checkout, "comparisons")["comparisons"]
    assert comparison["kind"] == "recipe comparison"
    listed = json.dumps(comparison)
    assert "max_num_seqs" in listed
    assert "gpu_memory_utilization" in listed
    ttft = {arm: float(row["ttft_ms_p50"]) for arm, row in soaks.items()}
    assert ttft["base"] > 3 * ttft["fast"]


def test_crash_at_a_concurrency_and_readback(checkout: Checkout) -> None:
    """The server tells every flag that was asked; the point that reaches the scripted concurrency fails as a
    server crash with the log kept, and the smaller point stays measured."""
    fault = {"kind": "crash_at_concurrency", "concurrency": 6, "after_load_requests": 20}
    flags = {
        "time_scale": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "kv_cache_dtype": "fp8",
        "faults": [fault],
    }
    shape = {"kind": "finite", "workload": "chat", "requests": 12, "repeats": 1, "max_tokens": 16}
    points = {"big": {**shape, "concurrency": 6}, "small": {**shape, "concurrency": 2}}
    rehearsed(checkout, {"one": flags}, dict(reversed(points.items())))
    run = checkout.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    started = checkout.receipt("one/start_server.json")
    assert (started["reasons"], started["measured"]["mismatches"], started["measured"]["unread"]) == (
        [],
        [],
        [],
    )
    assert started["measured"]["capacity"]["slots"] == 8
    # 2 + 6 warm-up requests and the small point's 12 came before
    small, big = (checkout.receipt(f"one/finite/{point}/r1.json") for point in ("small", "big"))
    assert (small["state"], small["measured"]["counts"]["ok"]) == ("completed", 12)
    assert big["state"] == "failed"
    assert "server_crashed" in big["reasons"]
    assert any("6 requests in flight" in session["log_tail"] for session in checkout.sessions())
