"""Replicas behind the real router: balanced, summed, and a death among them is seen and told apart."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from assay.image import build_image, load_image
from checkout import PROJECT, Checkout

pytestmark = pytest.mark.e2e
POINTS: dict[str, Any] = {
    "p1": {"kind": "finite", "workload": "chat", "concurrency": 4, "requests": 8, "repeats": 1, "max_tokens": 8},
    "w1": {
        "kind": "sustained", "workload": "chat", "concurrency": 4, "windows": 1, "issue_s": 4, "drain_limit_s": 5,
        "max_tokens": 40, "timeout_s": 20,
    },
}  # fmt: skip


@pytest.fixture
def routed(checkout: Checkout) -> Checkout:
    """The small campaign with two replicas of one arm behind vllm-router, from the image of this project."""
    name = "config/images/vllm_router.yaml"
    image = load_image(PROJECT / name, PROJECT)
    store = Path(os.environ.get("ASSAY_IMAGE_STORE") or PROJECT / ".images")
    record = build_image(image, store, PROJECT)
    assert record["state"] == "completed", record["log_tail"]
    built = store / record["path"]
    (checkout.root / name).write_text((PROJECT / name).read_text())
    (checkout.root / image["lock"]).write_text((PROJECT / image["lock"]).read_text())
    (checkout.shared / "images").mkdir(exist_ok=True)
    link = checkout.shared / "images" / built.name
    if not link.exists():
        link.symlink_to(built.resolve())
    checkout.campaign["arms"] = {
        "two": {
            **checkout.campaign["arms"]["a"],
            "replicas": 2,
            "router": {
                "image": "vllm_router",
                "flags": {"queue_size": 16, "worker_startup_check_interval": 1},
            },
        }
    }
    checkout.campaign |= {"order": ["two"], "points": json.loads(json.dumps(POINTS))}
    del checkout.campaign["comparisons"]
    checkout.write_campaign()
    run = checkout.snakemake(
        "results/campaign_tiny/receipts/images/fake_llama_cpp.json",
        "results/campaign_tiny/receipts/images/vllm_router.json",
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    checkout.forget_events()
    return checkout


def evidence(checkout: Checkout, name: str) -> list[dict[str, Any]]:
    return [
        json.loads(file.read_text())
        for file in sorted((checkout.root / "results/evidence").glob(f"*/{name}"))
    ]


def test_two_replicas_serve_and_are_read_back(routed: Checkout) -> None:
    """Two servers start, requests are spread over both, counters and capacity are sums, router facts are kept."""
    del routed.campaign["points"]["w1"]
    routed.write_campaign()
    run = routed.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert len(routed.events("start")) == 2
    (readback,) = evidence(routed, "config_readback.json")
    assert readback["mismatches"] == []
    assert readback["read"]["replicas"] == 2
    assert readback["read"]["router.policy"] == "round_robin"
    assert readback["read"]["router.queue_size"] == 16
    assert readback["capacity"]["kv_tokens"] == 2 * 4096
    assert readback["replicas"]["router"]["version"] == "0.1.17"
    assert {"max_concurrent_requests", "queue_timeout_secs", "request_timeout_secs"} <= set(
        readback["replicas"]["router"]["flags"]
    )
    (phase,) = evidence(routed, "finite/p1/r1/replicas.json")
    assert [member["routed"] for member in phase["members"].values()] == [4.0, 4.0]
    (counters,) = evidence(routed, "finite/p1/r1/counters.json")
    each = [member["delta"]["generation_tokens"] for member in phase["members"].values()]
    assert counters["delta"]["generation_tokens"] == sum(each) == 8 * 8
    assert routed.processes() == []


def test_a_replica_that_cannot_start_is_a_failed_start(routed: Checkout) -> None:
    """No server of the arm runs, nothing is left behind, and the member's log is in the evidence."""
    routed.script(fail_if_ctx=4096)
    run = routed.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert routed.receipt("two/finite/p1/r1.json")["state"] == "not_run"
    logs = sorted((routed.root / "results/evidence").glob("*/replica_r*.log"))
    assert any("cannot load the model: scripted failure" in log.read_text() for log in logs)
    assert "before it was ready" in routed.sessions()[0]["log_tail"]
    assert routed.processes() == []


def test_a_replica_killed_in_a_window(routed: Checkout) -> None:
    """Its failures are counted as its own, the other's are none, the row is not publishable, all is kept."""
    del routed.campaign["points"]["p1"]
    routed.write_campaign()
    routed.script(itl_s=0.02)
    process = routed.start_snakemake()
    deadline = time.monotonic() + 120
    folder = None
    while folder is None and time.monotonic() < deadline:
        found = list((routed.root / "results/evidence").glob("*/sustained/w1/w1"))
        folder = found[0] if found else None
        time.sleep(0.05)
    assert folder is not None
    time.sleep(1.5)
    session = folder.parents[2]
    victim = json.loads((session / "replicas.json").read_text())["members"]["r1"]["process"]["pid"]
    os.kill(victim, signal.SIGKILL)
    assert process.wait(timeout=120) == 0, (routed.root / "snakemake.log").read_text()[-3000:]

    receipt = routed.receipt("two/sustained/w1.json")
    assert receipt["state"] == "failed"
    assert {"requests_failed", "replica_lost"} <= set(receipt["reasons"])
    counts = receipt["measured"]["counts"]
    assert counts["ok"] > 0
    assert counts["failed"] > 0
    phase = json.loads((folder / "replicas.json").read_text())
    assert phase["died"] == ["r1"]
    failed = {name: sum(member["failed_requests"].values()) for name, member in phase["members"].items()}
    assert failed == {"r0": 0, "r1": counts["failed"]}
    assert phase["failed_unattributed"] == 0
    assert phase["members"]["r1"]["failed_requests"]["named"] > 0, "refused ones are named by the router"
    assert phase["members"]["r1"]["returncode"] in (-9, None)
    assert phase["members"]["r0"]["delta"]["generation_tokens"] > 0
    counters = json.loads((folder / "counters.json").read_text())
    assert counters["delta"]["generation_tokens"] is None, "a sum without one of its servers is unknown"
    with (routed.root / "results/campaign_tiny/extracts/rows.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows
    assert {row["publishable"].lower() for row in rows} == {"false"}
    assert {row["failure_rate"] for row in rows} == {"fail"}
    assert (session / "MANIFEST.sha256").exists()
    assert "replicas.json" in (session / "MANIFEST.sha256").read_text()
    assert routed.processes() == []
