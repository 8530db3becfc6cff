"""Evidence cards, summary and findings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from assay.extract import everything
from make_results import Scene

FIELDS = {
    "system", "node_count", "parallelism", "kv_dtype", "context_limit_tokens", "experiment_date", "output_tokens",
    "ignore_eos", "prefix_cache", "warmup", "repetitions", "concurrency", "measurement_denominator", "workload",
    "model", "draft",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scene = Scene(tmp_path_factory.mktemp("cards"))
    scene.arms["fast"]["flags"] |= {"spec_type": "ngram_mod", "cache_prompt": False}
    scene.states["base/chat_c2/r2"] = ("failed", ["server_crashed"])
    scene.states["fast/chat_c2/r1"] = ("invalid", ["client_refused", "server_crashed"])
    scene.gates["fast", "after"] = {"unavailable": 1}
    folder = scene.build()
    everything.write(folder)
    return {
        name: json.loads((folder / "extracts" / f"{name}.json").read_text())
        for name in ("cards", "summary", "findings")
    }


def test_a_card_has_every_condition_and_guesses_none(made: dict[str, Any]) -> None:
    """A card tells the conditions of its figure; what no record tells is `not specified`."""
    cards = {
        (c["claim"]["configuration"], c["claim"]["point_id"], c["claim"]["metric"]): c
        for c in made["cards"]["cards"]
    }
    fast = cards["fast", "chat_c2", "output_tok_s"]
    assert set(fast["conditions"]) >= FIELDS
    assert fast["conditions"]["draft"] == {"spec_type": "ngram_mod"}
    assert fast["conditions"]["prefix_cache"] == {"cache_prompt": False}
    assert fast["conditions"]["system"] == "Test CPU, 2 logical CPUs; 4 GiB memory"
    assert fast["conditions"]["kv_pool_tokens"] == 8192
    assert fast["conditions"]["experiment_date"] == "2026-11-29"
    assert fast["claim"]["statistic"] == "median of 2 repeats"
    assert fast["claim"]["excluded_rows"] == ["fast/chat_c2/r1"]
    base = cards["base", "chat_c2", "output_tok_s"]
    assert base["conditions"]["draft"] == "not specified"
    assert base["conditions"]["kv_dtype"] == "not specified"


def test_summary_has_correctness_beside_measurements(made: dict[str, Any]) -> None:
    """summary.json has each run's gates and each arm's figures, with the flags counted."""
    gates = {run["leg"]: run["gates"]["after"]["json"] for run in made["summary"]["correctness"]}
    assert (gates["base"]["pass"], gates["fast"]["pass"]) == (24, 23)
    point = next(p for p in made["summary"]["points"] if (p["arm"], p["point_id"]) == ("fast", "chat_c2"))
    assert (point["rows"], point["publishable"], point["invalid"]) == (3, 0, 1)
    assert point["metrics"]["output_tok_s"]["n"] == 2
    pooled = next(p for p in made["summary"]["points"] if p["point_id"] == "soak_c2")["pooled"]
    assert pooled[0]["elapsed_s"] == pytest.approx(1.6)


def test_findings_keep_both_facts_of_an_attempt(made: dict[str, Any]) -> None:
    """The attempt whose client was refused and whose server crashed is listed once, with both reasons."""
    failed = made["findings"]["failed_attempts"]
    assert [(one["state"], one["reasons"]) for one in failed] == [
        ("failed", '["server_crashed"]'),
        ("invalid", '["client_refused","server_crashed"]'),
    ]
    run = next(run for run in made["findings"]["runs"] if run["leg"] == "fast")
    verdicts = {finding["name"]: finding["verdict"] for finding in run["findings"]}
    assert (verdicts["client"], verdicts["server"], verdicts["gate_after:json"]) == (
        "invalid",
        "fail",
        "fail",
    )
    assert made["findings"]["screens"]["json_gate"] == {"pass": 5, "fail": 5, "not_checked": 0}
