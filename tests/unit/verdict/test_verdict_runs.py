"""Whole runs, comparisons and what repeats can say, each against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from assay.verdict.compare import (
    NOT_SEPARATED,
    classify,
    compare_point,
    compute_differences,
    read_settings,
    resolved_settings,
    run_order,
)
from assay.verdict.findings import Finding, combine, conclude
from assay.verdict.runs import judge_client, judge_gates, judge_server, judge_stage
from assay.verdict.spread import bootstrap_ratio, drift, ranges_overlap, summarise_repeats
from assay.vocab import ComparisonKind, RunOrder, Verdict


def test_zero_checks_fail() -> None:
    """No verdict at all combines to a failure."""
    assert combine([]) == Verdict.FAIL
    assert conclude([], [])[0] == Verdict.FAIL


def test_an_expected_check_without_finding_counts() -> None:
    """A planned check that has no finding makes the verdict not_run, and says which."""
    verdict, findings = conclude([Finding("a", 1, 1, Verdict.PASS)], ["a", "b"])
    assert verdict == Verdict.NOT_RUN
    assert [f.name for f in findings if f.verdict == Verdict.NOT_RUN] == ["b"]


def test_a_client_failure_and_a_server_failure_stay_two_facts() -> None:
    """Refused threads make the load invalid; the GPU fault of the same attempt is a finding of its own."""
    row = {
        "row_id": "k5/soak/w1",
        "reasons": ["client_refused", "server_crashed", "concurrency_reached:fail"],
        "concurrency_reached": "fail",
        "client_bound": "pass",
    }
    client = judge_client([row])
    server = judge_server({"state": "stopped", "why_stopped": "server exited by itself"}, row["reasons"], ())
    assert client.verdict == Verdict.INVALID
    assert client.measured["guilty"] == {"k5/soak/w1": ["client_refused", "concurrency_reached:fail"]}
    assert server.verdict == Verdict.FAIL
    assert "exited" in str(server.detail)


def test_a_stage_that_could_not_run_because_the_server_failed_is_a_failure() -> None:
    """not_run for want of a server is a failure of the server; not_run for another reason is not_run."""
    body = {"state": "not_run", "reasons": ["server_start_failed"]}
    assert judge_stage("run_finite", body).verdict == Verdict.FAIL
    assert (
        judge_stage("run_finite", {"state": "not_run", "reasons": ["bracket_open"]}).verdict
        == Verdict.NOT_RUN
    )
    assert judge_stage("run_finite", None).verdict == Verdict.NOT_RUN


def test_ignored_thinking_toggle_invalidates_a_gate() -> None:
    """A toggle that the template ignored makes the gate invalid; the model is not graded wrong for it."""
    summary = {
        "kinds": {"json": {"n": 1, "counts": {"pass": 1}, "verdict": "pass"}},
        "thinking": {"verdict": "fail"},
    }
    findings = judge_gates({"before": summary}, {"before": ["json"]}, {})
    assert {f.name: f.verdict for f in findings} == {
        "gate_before:json": Verdict.PASS,
        "gate_before:thinking": Verdict.INVALID,
    }


BASE = {"engine": "vllm", "gpus": 8, "flags": {"max_num_seqs": 32, "gpu_memory_utilization": 0.95}}
K3 = {
    "engine": "vllm",
    "gpus": 8,
    "title": "K3",
    "factors": {"x": 1},
    "flags": {"max_num_seqs": 64, "gpu_memory_utilization": 0.9, "speculative_config": "dspark:3"},
}


def test_three_differing_settings_are_listed_and_nothing_else() -> None:
    """Slots, memory target and drafting differ: exactly these three keys, asked and read, are the differences."""
    read = [read_settings({"read": arm["flags"]}) for arm in (K3, BASE)]
    differences = compute_differences(resolved_settings(K3), resolved_settings(BASE), *read)
    assert [d["key"] for d in differences] == ["gpu_memory_utilization", "max_num_seqs", "speculative_config"]
    slots = differences[1]
    assert slots["seen_in"] == ["resolved", "readback"]
    assert (slots["numerator"]["read"], slots["denominator"]["read"]) == (64, 32)
    kind, why = classify(differences, "flags.speculative_config", read_back=True)
    assert kind == ComparisonKind.RECIPE
    assert "max_num_seqs" in why[0]


def test_a_difference_that_only_the_servers_know_is_found() -> None:
    """A default that differs between two servers is a difference, though both were asked the same."""
    differences = compute_differences({"a": 1}, {"a": 1}, {"a": 1, "eager": True}, {"a": 1, "eager": False})
    assert [(d["key"], d["seen_in"]) for d in differences] == [("eager", ["readback"])]


@pytest.mark.parametrize(
    ("differences", "declared", "read_back", "mismatches", "kind"),
    [
        (["spec"], "flags.spec", True, [], ComparisonKind.MATCHED),
        (["spec.type", "spec.n"], ["flags.spec.type", "flags.spec.n"], True, [], ComparisonKind.MATCHED),
        (["spec.type"], "spec", True, [], ComparisonKind.MATCHED),
        (["spec", "slots"], "flags.spec", True, [], ComparisonKind.RECIPE),
        (["spec"], None, True, [], ComparisonKind.RECIPE),
        ([], "flags.spec", True, [], ComparisonKind.RECIPE),
        ([], None, True, [], ComparisonKind.MATCHED),
        (["spec"], "flags.spec", False, [], ComparisonKind.RECIPE),
        (["spec"], "flags.spec", True, ["fast: spec"], ComparisonKind.RECIPE),
    ],
)
def test_matched_or_recipe(
    differences: list[str], declared: Any, read_back: bool, mismatches: list[str], kind: ComparisonKind
) -> None:
    """Matched: the declared factor differs, nothing else does, and both servers confirmed what they run."""
    found, why = classify(
        [{"key": key} for key in differences], declared, read_back=read_back, mismatches=mismatches
    )
    assert found == kind
    assert bool(why) == (kind == ComparisonKind.RECIPE)


@pytest.mark.parametrize(
    ("sequence", "order"),
    [
        ("AB", RunOrder.FIXED),
        ("ABAB", RunOrder.INTERLEAVED),
        ("ABBA", RunOrder.CROSSOVER),
        ("ABBAABBA", RunOrder.CROSSOVER),
        ("ACBC", RunOrder.FIXED),
        ("AABB", RunOrder.OTHER),
        ("A", RunOrder.OTHER),
    ],
)
def test_run_order(sequence: str, order: RunOrder) -> None:
    """The design is read off the order of the sessions; other arms between them do not matter."""
    assert run_order(sequence, "A", "B") == order


def rows(*values: float, **changes: Any) -> list[dict[str, Any]]:
    return [
        {"row_id": f"r{k}", "run_id": "run", "kind": "repeat", "population": "ok requests of one repeat",
         "output_tok_s": value, "invalid": False, "publishable": True, "reasons": []} | changes
        for k, value in enumerate(values)
    ]  # fmt: skip


def test_ratio_keeps_its_operands() -> None:
    """278.3 over 119.1 is 2.34; both medians, their n and their populations stand beside it."""
    one = compare_point(rows(270.0, 278.3, 280.0), rows(118.0, 119.1, 120.0), "output_tok_s")
    assert round(one["ratio"], 2) == 2.34
    assert (one["numerator"]["median"], one["denominator"]["median"]) == (278.3, 119.1)
    assert one["numerator"]["n"] == 3
    assert one["separated"] is True
    assert one["interval"]["low"] is None
    assert "5 are needed" in one["interval"]["why_null"]


def test_overlapping_ranges_are_not_separated() -> None:
    """Repeats whose ranges overlap are `not separated by the data`; single runs have no range to compare."""
    one = compare_point(rows(10.0, 13.0), rows(12.0, 9.0), "output_tok_s")
    assert one["separation"] == NOT_SEPARATED
    assert compare_point(rows(10.0), rows(9.0), "output_tok_s")["separation"] is None
    assert ranges_overlap([1, 2], [2, 3]) is True
    assert ranges_overlap([1, 2], [3, 4]) is False


def test_an_invalid_row_is_no_operand() -> None:
    """An invalid repeat is left out of the median and listed with its reasons."""
    bad = rows(999.0, row_id="bad", invalid=True, publishable=False, reasons=["client_bound:fail"])
    one = compare_point(rows(10.0, 12.0) + bad, rows(5.0), "output_tok_s")
    assert one["numerator"]["median"] == 11.0
    assert one["numerator"]["excluded_rows"] == {"bad": ["client_bound:fail"]}
    alone = compare_point(bad, rows(5.0), "output_tok_s")
    assert alone["ratio"] is None
    assert not alone["publishable"]


def test_bootstrap_is_seeded_and_holds_the_truth() -> None:
    """Five repeats carry an interval: the same each time, around the ratio of the medians, inside the extremes."""
    tops, bases = [20.0, 21.0, 22.0, 23.0, 24.0], [10.0, 10.5, 11.0, 11.5, 12.0]
    one, again = bootstrap_ratio(tops, bases), bootstrap_ratio(tops, bases)
    assert one == again
    assert 20 / 12 <= one["low"] <= 2.0 <= one["high"] <= 24 / 10


def test_repeats_and_drift() -> None:
    """Median, spread ratio max/min, and the last repeat against the first."""
    assert summarise_repeats([17.7, 20.0, 23.364]) == {
        "n": 3, "median": 20.0, "min": 17.7, "max": 23.364, "spread_ratio": 23.364 / 17.7
    }  # fmt: skip
    assert drift([10.0, 30.0, 9.0]) == {"first": 10.0, "last": 9.0, "ratio": 0.9}
    assert summarise_repeats([])["median"] is None
