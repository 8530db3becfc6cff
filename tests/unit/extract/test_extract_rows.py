"""Extracts of a campaign whose times are known by hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest

from assay.audit.recompute import read_rows_csv
from assay.extract import everything, extract_attempts, extract_comparisons, extract_rows, extract_verdicts
from assay.extract.columns import NAMES, json_schema
from make_requests import Shape, request_rows
from make_results import ROOT, Scene


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["row_id"]: row for row in extract_rows(folder).to_pylist()}


def test_rates_are_what_the_times_say(tmp_path: Path) -> None:
    """8 requests of 11 tokens at concurrency 2, 200 ms each, are 88 tokens in 0.8 s: 110 tokens/s."""
    rows = rows_of(Scene(tmp_path).build())
    row = rows["base/chat_c2/r1"]
    assert row["elapsed_s"] == pytest.approx(0.8)
    assert row["output_tokens"] == 88
    assert row["output_tok_s"] == pytest.approx(110.0)
    assert (row["ttft_ms_p50"], row["tpot_ms_p50"], row["e2e_ms_p50"]) == (100.0, 10.0, 200.0)
    assert row["icl_ms_p50"] == pytest.approx(10.0)
    assert row["served_rate_tok_s_p50"] == pytest.approx(55.0)
    assert (row["ttft_ms_n"], row["ttft_ms_p90"], row["ttft_ms_p99"]) == (8, None, None)
    assert (row["n_issued"], row["n_ok"], row["n_failed"], row["n_incomplete"]) == (8, 8, 0, 0)
    assert row["publishable"]


def test_one_row_per_repeat_and_window_and_one_pooled(tmp_path: Path) -> None:
    """Two arms with three repeats and two windows give ten rows and two pooled ones, in the plan's order."""
    table = extract_rows(Scene(tmp_path).build())
    assert table.column("row_id").to_pylist() == [
        f"{leg}/{tail}"
        for leg in ("base", "fast")
        for tail in ("chat_c2/r1", "chat_c2/r2", "chat_c2/r3", "soak_c2/w1", "soak_c2/w2", "soak_c2/pooled")
    ]


def test_windows_pool_tokens_over_time_not_rates(tmp_path: Path) -> None:
    """Windows of 88 tokens in 0.8 s and 88 in 1.6 s pool to 176/2.4 tokens/s, not to the mean of the rates."""
    scene = Scene(tmp_path)
    scene.shapes["base/soak_c2/w2"] = Shape(ttft_ms=300)
    rows = rows_of(scene.build())
    assert rows["base/soak_c2/w2"]["output_tok_s"] == pytest.approx(55.0)
    assert rows["base/soak_c2/pooled"]["output_tok_s"] == pytest.approx(176 / 2.4)
    assert rows["base/soak_c2/pooled"]["population"] == "ok requests of 2 windows pooled"


def test_window_rate_counts_only_tokens_inside_the_window(tmp_path: Path) -> None:
    """Of 88 tokens, those in the 0.7 s of issuing are 3 whole requests of both workers: 66 in 0.7 s."""
    row = rows_of(Scene(tmp_path).build())["base/soak_c2/w1"]
    assert row["window_tok_s"] == pytest.approx(66 / 0.7)
    assert row["output_tok_s"] == pytest.approx(110.0)


def test_failed_requests_are_in_no_rate_and_make_the_adjusted_percentile_infinite(tmp_path: Path) -> None:
    """Five of eight failed: the rate has the tokens of three, the adjusted median is infinite, the row is flagged."""
    scene = Scene(tmp_path)
    scene.shapes["base/chat_c2/r1"] = Shape(failed=(0, 1, 2, 3, 4))
    row = rows_of(scene.build())["base/chat_c2/r1"]
    assert row["output_tokens"] == 33
    assert math.isinf(row["adj_ttft_ms_p50"])
    assert row["ttft_ms_p50"] == 100.0
    assert json.loads(row["error_classes"]) == {"http_status": 5}
    assert not row["publishable"]
    assert "failure_rate:fail" in row["reasons"]


def test_nothing_is_dropped(tmp_path: Path) -> None:
    """A stage that was not run has its row, without figures and with its reason."""
    scene = Scene(tmp_path)
    folder = scene.build()
    receipt = folder / "receipts" / "base" / "finite" / "chat_c2" / "r2.json"
    body = json.loads(receipt.read_text())
    body |= {"state": "not_run", "reasons": ["server_start_failed"], "evidence": [], "session_id": None,
             "run_id": None, "attempt_id": None, "stage_record": None}  # fmt: skip
    receipt.write_text(json.dumps(body))
    row = rows_of(folder)["base/chat_c2/r2"]
    assert row["verdict"] == "not_run"
    assert row["output_tok_s"] is None
    assert row["n_issued"] is None
    assert "server_start_failed" in row["reasons"]


def test_a_session_without_gates_after_publishes_nothing(tmp_path: Path) -> None:
    """A row whose session has no gates after the load says bracket_open and is not publishable."""
    scene = Scene(tmp_path)
    scene.why_open["base"] = "no gates after the load in this session; it ended: owner gone"
    rows = rows_of(scene.build())
    assert not rows["base/chat_c2/r1"]["publishable"]
    assert "bracket_open" in rows["base/chat_c2/r1"]["reasons"]
    assert rows["fast/chat_c2/r1"]["publishable"]


@pytest.mark.parametrize("name", ["requests.parquet", "client.json", "counters.json"])
def test_missing_or_changed_evidence_makes_a_row_invalid(tmp_path: Path, name: str) -> None:
    """A file that a receipt names and that is gone, or is another one, makes its row invalid, with the reason."""
    scene = Scene(tmp_path)
    folder = scene.build()
    base = scene.results / "evidence" / scene.session_id("base") / "finite" / "chat_c2"
    (base / "r1" / name).unlink()
    changed = base / "r2" / name
    changed.write_bytes(changed.read_bytes() + b" ")
    rows = rows_of(folder)
    assert rows["base/chat_c2/r1"]["invalid"]
    assert "evidence_missing" in rows["base/chat_c2/r1"]["reasons"]
    assert "evidence_changed" in rows["base/chat_c2/r2"]["reasons"]
    assert rows["base/chat_c2/r3"]["publishable"]


@pytest.mark.parametrize(
    ("section", "key"), [("points", "max_tokens"), ("points", "seed"), ("arms", "flags")]
)
def test_a_receipt_of_another_plan_is_an_invalid_row(tmp_path: Path, section: str, key: str) -> None:
    """A plan that changed after a point was measured: its row does not stand for the plan's point."""
    folder = Scene(tmp_path).build()
    plan = json.loads((folder / "plan.json").read_text())
    plan[section][{"points": "chat_c2", "arms": "base"}[section]][key] = (
        {"parallel": 9} if key == "flags" else 9
    )
    (folder / "plan.json").write_text(json.dumps(plan))
    row = rows_of(folder)["base/chat_c2/r1"]
    assert row["invalid"]
    assert "not_as_planned" in row["reasons"]
    assert f"{section[:-1].replace('arm', 'server')}.{key}" in row["detail"]


def test_a_repeat_past_those_of_the_plan_is_no_row(tmp_path: Path) -> None:
    """A point that was planned with fewer repeats since: the ones too many are in no median."""
    folder = Scene(tmp_path).build()
    plan = json.loads((folder / "plan.json").read_text())
    plan["points"]["chat_c2"]["repeats"] = 2
    (folder / "plan.json").write_text(json.dumps(plan))
    assert not {"base/chat_c2/r3", "fast/chat_c2/r3"} & rows_of(folder).keys()


def test_only_the_window_that_failed_is_invalid(tmp_path: Path) -> None:
    """A set of windows of which one did not reach its concurrency: that window and the pool are invalid."""
    scene = Scene(tmp_path)
    scene.states["base/soak_c2"] = ("invalid", ["concurrency_not_reached"])
    scene.clients["base/soak_c2/w2"] = {"reasons": ["concurrency_not_reached"], "screens": {}}
    rows = rows_of(scene.build())
    assert not rows["base/soak_c2/w1"]["invalid"]
    assert rows["base/soak_c2/w2"]["invalid"]
    assert rows["base/soak_c2/pooled"]["invalid"]


def test_csv_and_parquet_hold_the_same(tmp_path: Path) -> None:
    """Both forms of the rows read back to the same values, floats exact, null as empty."""
    scene = Scene(tmp_path)
    scene.shapes["base/chat_c2/r1"] = Shape(ttft_ms=137, failed=(0, 1, 2, 3, 4))
    folder = scene.build()
    everything.write(folder)
    from_csv = read_rows_csv(folder / "extracts" / "rows.csv")
    from_parquet = pq.read_table(folder / "extracts" / "rows.parquet").to_pylist()
    assert from_csv == from_parquet
    with (folder / "extracts" / "rows.csv").open(newline="") as stream:
        assert tuple(next(csv.reader(stream))) == NAMES


def test_extracts_are_pure(tmp_path: Path) -> None:
    """Written twice, every extract has the same bytes."""
    folder = Scene(tmp_path).build()
    first = {path.name: path.read_bytes() for path in everything.write(folder)}
    assert set(first) == set(everything.FILES)
    assert {path.name: path.read_bytes() for path in everything.write(folder, tmp_path / "again")} == first


def test_outputs_meet_their_schemas(tmp_path: Path) -> None:
    """Rows, verdicts, comparisons and chart data are what their published schemas say."""
    folder = Scene(tmp_path).build()
    everything.write(folder)
    for name in ("verdicts", "comparisons", "chart_data"):
        schema = json.loads((ROOT / f"workflow/schemas/record/{name}.schema.json").read_text())
        jsonschema.validate(json.loads((folder / "extracts" / f"{name}.json").read_text()), schema)
    row_schema = json.loads((ROOT / "workflow/schemas/record/rows.schema.json").read_text())
    assert row_schema == json_schema()
    for row in extract_rows(folder).to_pylist():
        jsonschema.validate(row, row_schema)


def test_after_gate_decides_the_run(tmp_path: Path) -> None:
    """2,000 requests without failure, then one HTTP 500 in the after-gate: fail, with the throughput kept."""
    scene = Scene(tmp_path)
    scene.order = ["base"]
    del scene.arms["fast"]
    scene.comparisons = []
    scene.points = {"soak_c2": scene.points["soak_c2"] | {"windows": 1}}
    scene.shapes["base"] = Shape(requests=2_000)
    scene.gates["base", "after"] = {"unavailable": 1}
    folder = scene.build()
    verdicts = extract_verdicts(folder)
    (run,) = verdicts["runs"]
    assert run["verdict"] == "fail"
    assert (run["load"]["n_issued"], run["load"]["n_ok"], run["load"]["n_failed"]) == (2_000, 2_000, 0)
    assert run["load"]["rows"]["base/soak_c2/w1"]["output_tok_s"] == pytest.approx(110.0)
    assert run["gates"]["before"]["json"]["pass"] == 24
    after = run["gates"]["after"]["json"]
    assert (after["pass"], after["n"], after["outcomes"]) == (23, 24, {"pass": 23, "unavailable": 1})
    bad = {finding["name"]: finding for finding in run["findings"] if finding["verdict"] != "pass"}
    assert set(bad) == {"gate_after:json"}
    assert bad["gate_after:json"]["detail"] == "23/24, unavailable"
    assert verdicts["verdict"] == "fail"
    row = rows_of(folder)["base/soak_c2/w1"]
    assert (row["publishable"], row["invalid"]) == (False, False)
    assert row["output_tok_s"] == pytest.approx(110.0)


def test_three_differing_settings_and_a_server_that_ignores_one(tmp_path: Path) -> None:
    """Three settings differ: exactly these are listed. One that the server ignored is caught by its read-back."""
    scene = Scene(tmp_path)
    scene.arms["fast"]["flags"] = {
        "parallel": 64,
        "gpu_memory_utilization": 0.9,
        "spec": "dspark",
        "ctx_size": 4096,
    }
    scene.arms["base"]["flags"] = {
        "parallel": 32,
        "gpu_memory_utilization": 0.95,
        "spec": "none",
        "ctx_size": 4096,
    }
    scene.comparisons[0]["declared_factor"] = ["flags.spec"]
    (one,) = extract_comparisons(scene.build())["comparisons"]
    assert [d["key"] for d in one["differences"]] == ["gpu_memory_utilization", "parallel", "spec"]
    assert all(d["seen_in"] == ["resolved", "readback"] for d in one["differences"])
    assert one["kind"] == "recipe comparison"
    deaf = Scene(tmp_path / "deaf")
    deaf.readbacks["fast"] = {"parallel": 2, "ctx_size": 4096}
    folder = deaf.build()
    (one,) = extract_comparisons(folder)["comparisons"]
    (difference,) = one["differences"]
    assert (difference["key"], difference["seen_in"]) == ("parallel", ["resolved"])
    assert difference["numerator"] == {"asked": 4, "read": 2}
    assert one["kind"] == "recipe comparison"
    assert "fast: parallel" in one["why_not_matched"][0]
    assert rows_of(folder)["fast/chat_c2/r1"]["config_readback"] == "fail"
    assert extract_verdicts(folder)["verdict"] == "fail"


def test_ratio_of_the_arms(tmp_path: Path) -> None:
    """Halving the gap turns 200 ms a request into 150 ms: the ratio is 4/3, matched, with both operands."""
    scene = Scene(tmp_path)
    scene.shapes["fast"] = Shape(gap_ms=5)
    (one,) = extract_comparisons(scene.build())["comparisons"]
    assert one["kind"] == "matched"
    assert one["run_order"] == {"planned": "fixed", "legs": ["base", "fast"]}
    finite, sustained = one["points"]
    ratio = {metric["metric"]: metric for metric in finite["metrics"]}["output_tok_s"]
    assert ratio["ratio"] == pytest.approx(4 / 3)
    assert (ratio["numerator"]["n"], ratio["denominator"]["n"]) == (3, 3)
    assert {metric["metric"]: metric for metric in sustained["metrics"]}["output_tok_s"][
        "ratio"
    ] == pytest.approx(4 / 3)


def test_crossover_order(tmp_path: Path) -> None:
    """Sessions in the order A B B A are a crossover, and all of an arm's repeats are its operand."""
    scene = Scene(tmp_path)
    scene.order = ["base", "fast", "fast", "base"]
    (one,) = extract_comparisons(scene.build())["comparisons"]
    assert one["run_order"] == {"planned": "crossover", "legs": ["base.1", "fast.1", "fast.2", "base.2"]}
    ratio = one["points"][0]["metrics"][0]
    assert ratio["numerator"]["n"] == 6
    assert ratio["interval"]["why_null"] is None


def test_attempts_show_the_killed_and_the_replaced(tmp_path: Path) -> None:
    """A stage killed on its way, an invalid one and a superseded one are listed beside the current one."""
    scene = Scene(tmp_path)
    folder = scene.build()
    place = scene.results / "evidence" / scene.session_id("base") / "finite" / "chat_c2"
    body = json.loads((place / "r1" / "stage.json").read_text())
    old = scene.results / "evidence" / "20261128T080000Z-aaaaaa" / "finite" / "chat_c2"
    scene.put(old / "r1" / "stage.json", body | {"state": "started", "t_end_utc": None, "evidence": []})
    scene.put(
        old / "r2" / "stage.json",
        body | {"state": "invalid", "reasons": ["client_refused", "server_crashed"]},
    )
    scene.put(old / "r3" / "stage.json", body)
    scene.put(old / "r4" / "stage.json", body | {"campaign": "campaign_other"})
    attempts = {one["record_path"]: one for one in extract_attempts(folder)}
    prefix = "evidence/20261128T080000Z-aaaaaa/finite/chat_c2"
    killed, invalid = attempts[f"{prefix}/r1/stage.json"], attempts[f"{prefix}/r2/stage.json"]
    assert (killed["state"], killed["stage_state"], killed["reasons"]) == (
        "failed",
        "started",
        '["interrupted"]',
    )
    assert (invalid["state"], invalid["reasons"]) == ("invalid", '["client_refused","server_crashed"]')
    assert attempts[f"{prefix}/r3/stage.json"]["state"] == "superseded"
    assert f"{prefix}/r4/stage.json" not in attempts
    current = attempts[f"evidence/{scene.session_id('base')}/finite/chat_c2/r1/stage.json"]
    assert (current["state"], current["named_by_receipt"]) == ("current", True)


def test_flags_are_counted_separately(tmp_path: Path) -> None:
    """Rows are counted as publishable, invalid, or neither; pooled rows are not counted twice."""
    scene = Scene(tmp_path)
    scene.gates["fast", "after"] = {"wrong_value": 1}
    scene.requests_override["base/chat_c2/r1"] = request_rows(Shape(), "another-session", "chat_c2")
    counts = extract_verdicts(scene.build())["counts"]
    assert counts == {"rows": 10, "publishable": 4, "invalid": 1, "neither": 5}
