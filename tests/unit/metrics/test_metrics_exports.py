"""Exports: the records in other tools' shapes, against values written out by hand."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from assay.metrics import exports
from assay.records.requests import REQUEST_SCHEMA

PHASE = {"anchor": {"monotonic_ns": 1_000, "realtime_ns": 1_700_000_000_000_001_000}, "t_start_ns": 1_000}
CLIENT = {
    "spec": {"model": "m", "concurrency": 2, "rate_per_s": None, "burstiness": 1.0},
    "in_flight": {"max": 2},
}
MS = 1_000_000


def row(**values: Any) -> dict[str, Any]:
    base = dict.fromkeys(REQUEST_SCHEMA.names)
    base |= {"point_id": "x", "worker": 0, "terminal_seen": True, "prompt_id": "p0", "t_scheduled_ns": 1_000}
    return base | values


@pytest.fixture
def table() -> pa.Table:
    good = row(
        request_id="r000000",
        status="ok",
        http_status=200,
        t_send_ns=1_000,
        t_headers_ns=1_000 + MS,
        t_first_token_ns=1_000 + 100 * MS,
        t_first_answer_ns=1_000 + 100 * MS,
        t_last_token_ns=1_000 + 160 * MS,
        t_end_ns=1_000 + 200 * MS,
        chunk_offsets_ns=[100 * MS, 120 * MS, 160 * MS],
        n_prompt=7,
        n_output=4,
        n_output_source="usage",
    )
    bad = row(
        request_id="r000001",
        status="failed",
        error_class="http_status",
        error_text="HTTP status 503",
        http_status=503,
        t_send_ns=1_000,
        t_end_ns=1_000 + 5 * MS,
        chunk_offsets_ns=[],
    )
    late = row(
        request_id="r000002",
        status="incomplete",
        t_send_ns=1_000,
        t_end_ns=1_000 + 400 * MS,
        chunk_offsets_ns=[],
    )
    return pa.Table.from_pylist([good, bad, late], schema=REQUEST_SCHEMA)


def test_vllm(table: pa.Table) -> None:
    """Seconds in the lists, milliseconds in the aggregates, failures as that tool writes them."""
    result = exports.to_vllm(table, PHASE, CLIENT)
    assert (result["completed"], result["failed"], result["num_prompts"]) == (1, 2, 3)
    assert (result["total_input_tokens"], result["total_output_tokens"], result["output_lens"]) == (
        7,
        4,
        [4, 0, 0],
    )
    assert result["duration"] == pytest.approx(0.4)
    assert result["output_throughput"] == pytest.approx(10.0)
    assert result["ttfts"] == pytest.approx([0.1, 0.0, 0.0])
    assert result["itls"] == [pytest.approx([0.02, 0.04]), [], []]
    assert (result["median_ttft_ms"], result["mean_itl_ms"], result["p99_e2el_ms"]) == pytest.approx(
        (100, 30, 160)
    )
    assert result["median_tpot_ms"] == pytest.approx(20.0)
    assert result["errors"] == ["", "http_status: HTTP status 503", "incomplete: None"]
    json.dumps(result, allow_nan=False)


def test_aiperf(table: pa.Table) -> None:
    """One line a request, epoch times by the anchor, inter_token_latency our tpot, an error for each that is not ok."""
    lines = [json.loads(line) for line in exports.to_aiperf(table, PHASE)]
    good, bad, late = lines
    assert good["metadata"]["request_start_ns"] == 1_700_000_000_000_001_000
    assert good["metadata"]["request_end_ns"] - good["metadata"]["request_start_ns"] == 200 * MS
    assert good["metrics"]["inter_chunk_latency"] == {"value": [20.0, 40.0], "unit": "ms"}
    assert good["metrics"]["inter_token_latency"]["value"] == pytest.approx(20.0)
    assert good["metrics"]["output_sequence_length"] == {"value": 4, "unit": "tokens"}
    assert good["error"] is None
    assert bad["error"] == {"code": 503, "type": "http_status", "message": "http_status: HTTP status 503"}
    assert (late["metadata"]["was_cancelled"], late["error"]["code"]) == (True, 499)


LLMD_KEYS = {
    "": {"version", "run", "scenario", "results"},
    "run": {"uid", "time"},
    "results": {"request_performance"},
    "results.request_performance.aggregate": {"requests", "latency", "throughput"},
}
STATISTICS = {"units", "mean", "stddev", "min", "max", "p0p1", "p1", "p5", "p10", "p25", "p50", "p75", "p90"}
STATISTICS |= {"p95", "p99", "p99p9"}


def test_llmd(table: pa.Table) -> None:
    """The report has the schema's keys and no others, its units, and counts each kind of end."""
    report = exports.to_llmd(table, PHASE, CLIENT, "u", "1")
    assert report["version"] == "0.2"
    for path, keys in LLMD_KEYS.items():
        place = report
        for part in path.split(".") if path else ():
            place = place[part]
        assert set(place) == keys
    found = report["results"]["request_performance"]["aggregate"]
    assert {name: found["requests"][name] for name in ("total", "failures", "incomplete")} == {
        "total": 3,
        "failures": 1,
        "incomplete": 1,
    }
    units = {name: value["units"] for name, value in found["latency"].items()}
    assert units["time_to_first_token"] == units["request_latency"] == "ms"
    assert units["time_per_output_token"] == units["inter_token_latency"] == "ms/token"
    assert found["latency"]["normalized_time_per_output_token"]["mean"] == pytest.approx(40.0)
    assert all(set(value) <= STATISTICS for value in found["latency"].values())
    assert found["throughput"]["output_token_rate"] == {"units": "tokens/s", "mean": pytest.approx(10.0)}
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_ok_is_still_a_file(table: pa.Table, n: int) -> None:
    """Without an ok request every format is still valid JSON without NaN, and invents no latency."""
    few = table.slice(1, n)
    json.dumps(exports.to_vllm(few, PHASE, {}), allow_nan=False)
    assert len(list(exports.to_aiperf(few, PHASE))) == n
    report = exports.to_llmd(few, {}, {}, "u", "1")
    assert report["results"]["request_performance"]["aggregate"]["latency"] == {}
    assert "input_seq_len" not in report["scenario"]["load"]["standardized"], "unknown is not zero"


def test_vllm_has_null_where_nothing_is_known(table: pa.Table) -> None:
    """An ok request of unknown lengths: null, no total and no throughput of it, and a note; never 0."""
    unknown = table.to_pylist()[0] | {"n_output": None, "n_output_source": None, "n_prompt": None}
    more = pa.Table.from_pylist(
        [*table.to_pylist(), unknown | {"request_id": "r000009"}], schema=REQUEST_SCHEMA
    )
    result = exports.to_vllm(more, PHASE, CLIENT)
    assert (result["output_lens"][-1], result["input_lens"][-1]) == (None, None)
    assert (result["total_output_tokens"], result["output_throughput"], result["total_token_throughput"]) == (
        None,
        None,
        None,
    )
    assert len([note for note in result["assay_notes"] if "completed requests" in note]) == 2
    assert exports.to_vllm(table.slice(1, 1), PHASE, {})["mean_ttft_ms"] is None


@pytest.mark.parametrize(
    ("spec", "endpoint", "burstiness", "rate"),
    [
        (
            {"endpoint": "chat", "rate_per_s": 5.0, "arrivals": "poisson", "burstiness": 3.0},
            "openai-chat",
            1.0,
            5.0,
        ),
        (
            {"endpoint": "completions", "rate_per_s": 5.0, "arrivals": "gamma", "burstiness": 0.5},
            "openai",
            0.5,
            5.0,
        ),
        (
            {"endpoint": "chat", "rate_per_s": 5.0, "arrivals": "constant", "burstiness": 1.0},
            "openai-chat",
            None,
            5.0,
        ),
        ({"endpoint": None, "rate_per_s": None, "arrivals": "poisson", "burstiness": 1.0}, None, None, "inf"),
    ],
)
def test_vllm_says_the_load_that_was(
    table: pa.Table, spec: dict[str, Any], endpoint: str | None, burstiness: float | None, rate: Any
) -> None:
    """The endpoint, and a burstiness only where arrivals have one; what does not apply is null with a note."""
    result = exports.to_vllm(table, PHASE, {"spec": spec})
    assert result["endpoint_type"] == result["backend"] == endpoint
    assert (result["burstiness"], result["request_rate"]) == (burstiness, rate)
    notes = " ".join(result["assay_notes"])
    assert ("burstiness" in notes, "endpoint_type" in notes) == (burstiness is None, endpoint is None)
