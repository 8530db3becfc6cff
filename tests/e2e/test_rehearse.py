"""`snakemake NAME --config rehearse=true`: the whole DAG on the simulated node, through Snakemake."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from checkout import PROJECT, Checkout
from engines.rehearsal_process import write_profile

pytestmark = pytest.mark.e2e
REHEARSE = ("campaign_tiny", "--config", "rehearse=true", "time_scale=20")
SCALE = 20
ISSUE_S = 20


def arm(**more: Any) -> dict[str, Any]:
    """An arm of two vLLM replicas on eight GPUs, and what stands for it."""
    flags = {
        "tensor_parallel_size": 4,
        "max_num_seqs": 2,
        "max_model_len": 8192,
        "enable_prefix_caching": False,
    }
    return {
        "engine": "vllm",
        "engine_version": "0.33.0",
        "image": "fake_llama_cpp",
        "model": "fake_model",
        "replicas": 2,
        "router": {"image": "fake_llama_cpp"},
        "placement": {"gpus": 4},
        "flags": flags | more,
        "rehearsal": {"profile": "small"},
    }


def make(checkout: Checkout) -> None:
    """A campaign that needs eight GPUs, which no machine of the tests has."""
    profiles = checkout.root / "config" / "rehearsal" / "profiles"
    profiles.mkdir(parents=True)
    write_profile(profiles).rename(profiles / "small.yaml")
    shutil.copy(PROJECT / "config/gates/local.yaml", checkout.root / "config/gates/local.yaml")
    draft = {"method": "mtp", "num_speculative_tokens": 3}
    checkout.campaign |= {
        "needs": {"gpus": 8},
        "arms": {"a": arm(), "b": arm(speculative_config=draft)},
        "points": {
            "p1": {
                "kind": "finite",
                "workload": "sharegpt",
                "concurrency": 2,
                "requests": 4,
                "repeats": 2,
                "max_tokens": 16,
            },
            "w1": {
                "kind": "sustained",
                "workload": "sharegpt",
                "concurrency": 2,
                "windows": 1,
                "issue_s": ISSUE_S,
                "drain_limit_s": 60,
                "max_tokens": 16,
            },
        },
        "comparisons": [
            {
                "name": "b_over_a",
                "numerator": "b",
                "denominator": "a",
                "declared_factor": ["flags.speculative_config"],
            }
        ],
    }
    checkout.write_campaign()


def folder(checkout: Checkout) -> Path:
    return checkout.root / "results" / "campaign_tiny_rehearsal"


def rows(checkout: Checkout) -> list[dict[str, str]]:
    with (folder(checkout) / "extracts" / "rows.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_campaign_without_its_gpus_is_one_message(checkout: Checkout) -> None:
    """Without eight GPUs the campaign ends with exit 2 and one line, before anything is written."""
    make(checkout)
    run = checkout.snakemake("campaign_tiny")
    said = [line for line in (run.stdout + run.stderr).splitlines() if line.startswith("assay:")]
    assert run.returncode == 2
    assert len(said) == 1
    assert "needs 8 GPUs" in said[0]
    assert "--config rehearse=true" in said[0]
    assert not (checkout.root / "results").exists()


def test_the_whole_dag_on_the_simulated_node(checkout: Checkout) -> None:
    """Every stage of the campaign runs without GPU, image or data set; rows are rehearsal rows in simulated time,
    none can be published, the audit verifies, and a second run has nothing to do."""
    make(checkout)
    run = checkout.snakemake(*REHEARSE)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = rows(checkout)
    assert {(row["leg"], row["point_id"], row["kind"]) for row in found if row["kind"] != "window"} == {
        (leg, *point) for leg in "ab" for point in (("p1", "repeat"), ("w1", "pooled"))
    }
    assert {row["rehearsal"] for row in found} == {"true"}
    assert {row["publishable"] for row in found} == {"false"}
    assert {row["stand_in_prompts"] for row in found} == {"true"}
    for row in found:
        assert "rehearsal" in json.loads(row["reasons"])
        if row["kind"] == "window":
            # The client issued for a twentieth of this by the wall clock.
            assert float(row["elapsed_s"]) > 0.9 * ISSUE_S
    clients = list((checkout.root / "results" / "evidence").glob("*/sustained/w1/w1/client.json"))
    assert len(clients) == 2
    for client in clients:
        record = json.loads(client.read_text())
        assert record["simulated_time"]["scale"] == SCALE
        assert record["spec"]["duration_s"] == ISSUE_S
    image = json.loads((folder(checkout) / "receipts/images/fake_llama_cpp.json").read_text())
    assert image["reasons"] == ["rehearsal"]
    readbacks = [
        json.loads(file.read_text()) for file in checkout.root.glob("results/evidence/*/config_readback.json")
    ]
    assert [readback["mismatches"] for readback in readbacks] == [[], []]
    audit = checkout.assay("audit", "results/campaign_tiny_rehearsal/charts/throughput.svg")
    assert (audit.returncode, audit.stdout.rstrip().splitlines()[-1]) == (0, "VERIFIED"), audit.stdout
    planned = checkout.assay("plan", "campaign_tiny", "--rehearse", "--json")
    assert planned.returncode == 0, planned.stderr
    again = checkout.snakemake("-n", *REHEARSE)
    assert "Nothing to be done" in again.stdout + again.stderr
    assert checkout.processes() == []


def test_a_killed_rehearsal_is_resumed(checkout: Checkout) -> None:
    """`kill -9` of snakemake in the middle, then the same command: every row is there once, nothing is doubled."""
    make(checkout)
    process = checkout.start_snakemake(*REHEARSE)
    receipts = folder(checkout) / "receipts" / "a" / "finite" / "p1" / "r1.json"
    while not receipts.exists() and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkout.snakemake("--unlock", *REHEARSE).returncode == 0
    run = checkout.snakemake(*REHEARSE)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    found = [row for row in rows(checkout) if row["kind"] != "window"]
    names = [row["row_id"] for row in found]
    assert sorted(names) == sorted(set(names))
    assert sorted(names) == sorted(
        f"{leg}/{rest}" for leg in "ab" for rest in ("p1/r1", "p1/r2", "w1/pooled")
    )
    assert all(row["n_ok"] == row["n_issued"] != "" for row in found)
