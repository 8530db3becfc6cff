"""Removing evidence or adding a failing finding never improves a verdict; aggregates do not depend on order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.verdict.facts import RequestFacts
from assay.verdict.findings import Finding, combine, conclude, rank
from assay.verdict.publication import judge_row, run_screens
from assay.verdict.record import LoadRecord
from assay.verdict.spread import summarise_repeats
from assay.vocab import ScreenResult, Verdict
from make_requests import Shape, client_record

POLICY = yaml.safe_load((Path(__file__).parents[2] / "config/publication/default.yaml").read_text())
NAMES = ["server", "client", "load", "gate_before", "gate_after"]
findings_of = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(list(Verdict))).map(
    lambda chosen: [Finding(name, None, None, verdict) for name, verdict in chosen.items()]
)
RESULT_ORDER = [ScreenResult.PASS, ScreenResult.NOT_CHECKED, ScreenResult.FAIL]


@given(findings_of, st.data())
def test_removing_findings_never_improves_a_verdict(findings: list[Finding], data: st.DataObject) -> None:
    """With the expected checks known, any subset of the findings is at least as far from a pass."""
    kept = data.draw(st.lists(st.sampled_from(findings), unique_by=lambda f: f.name)) if findings else []
    assert rank(conclude(kept, NAMES)[0]) >= rank(conclude(findings, NAMES)[0])


@given(findings_of, st.sampled_from([Verdict.FAIL, Verdict.INVALID, Verdict.NOT_RUN]))
def test_adding_a_bad_finding_never_improves_a_verdict(findings: list[Finding], bad: Verdict) -> None:
    """One more failing finding leaves the verdict where it was or makes it worse, and never leaves a pass."""
    before = conclude(findings, NAMES)[0]
    after = conclude([*findings, Finding("more", None, None, bad)], NAMES)[0]
    assert rank(after) >= rank(before)
    assert after != Verdict.PASS


@given(st.lists(st.sampled_from(list(Verdict))), st.randoms())
def test_order_of_findings_does_not_matter(verdicts: list[Verdict], random: Any) -> None:
    """Any permutation combines to the same verdict."""
    shuffled = list(verdicts)
    random.shuffle(shuffled)
    assert combine(shuffled) == combine(verdicts)


def gates(n_pass: int, n: int) -> dict[str, Any]:
    verdict = "pass" if n and n_pass == n else "fail"
    kind = {
        "n": n,
        "counts": {"pass": n_pass, "wrong_value": n - n_pass},
        "threshold": 1.0,
        "verdict": verdict,
    }
    return {"kinds": {"json": kind, "tool": kind, "needle": kind}}


@st.composite
def records(draw: st.DrawFn) -> LoadRecord:
    """Records in every state of health."""
    bad = draw(st.integers(0, 2))
    facts = RequestFacts(issued=8, ok=8 - bad, failed=bad)
    facts.sessions.update({draw(st.sampled_from(["s1", "s2"])): 8})
    facts.ok_prefill_tok_s_max = draw(st.sampled_from([None, 400.0, 70_000.0]))
    facts.ok_output_known = facts.ok
    facts.ok_output_over_requested = draw(st.integers(0, 1))
    client = client_record(Shape())
    client["screens"]["client_bound"]["measured"]["cpu_share_max"] = draw(st.sampled_from([0.1, 0.99, None]))
    client["screens"]["concurrency_reached"]["measured"]["max"] = draw(st.sampled_from([1, 2, None]))
    hits = draw(st.sampled_from([0, 200, None]))
    key = draw(st.sampled_from([1, 2]))
    mismatches = [] if key == 1 else [{"key": "a", "asked": 1, "read": 2}]
    return LoadRecord(
        facts=facts,
        point={"kind": "finite", "workload_kind": "chat", "concurrency": 2},
        arm={"gpus": 0},
        session_id="s1",
        client=client,
        counters={"delta": {"prompt_tokens": 320, "cached_prompt_tokens": hits}},
        readback={"asked": {"a": 1}, "read": {"a": key}, "mismatches": mismatches},
        gates={when: gates(draw(st.integers(22, 24)), 24) for when in ("before", "after")},
    )


PIECES = ["facts", "client", "counters", "readback", "before", "after"]


def without(record: LoadRecord, pieces: list[str]) -> LoadRecord:
    gone: dict[str, Any] = {piece: None for piece in pieces if piece not in ("before", "after")}
    sides = {when: None if when in pieces else side for when, side in record.gates.items()}
    return replace(record, gates=sides, **gone)


@settings(max_examples=150)
@given(records(), st.lists(st.sampled_from(PIECES), min_size=1, unique=True))
def test_removing_evidence_never_improves_a_row(record: LoadRecord, pieces: list[str]) -> None:
    """A row without some of its evidence is never publishable when it was not with it, and no screen turns to pass."""
    less = without(record, pieces)
    full_findings, less_findings = (run_screens(one, POLICY["limits"]) for one in (record, less))
    full = judge_row(record, full_findings, POLICY, state="completed")
    rest = judge_row(less, less_findings, POLICY, state="completed")
    assert full.publishable or not rest.publishable
    for with_all, with_less in zip(full_findings, less_findings, strict=True):
        if with_less.verdict == ScreenResult.PASS:
            assert with_all.verdict == ScreenResult.PASS
    # What the extracts add: a file that a receipt names and that is gone makes the row invalid.
    gone = judge_row(less, less_findings, POLICY, state="completed", faults=["evidence_missing"])
    assert gone.invalid
    assert not gone.publishable


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=12), st.randoms())
def test_repeats_do_not_depend_on_their_order(values: list[float], random: Any) -> None:
    """Median, range and spread ratio are the same for any order of the repeats, and bracket each other."""
    shuffled = list(values)
    random.shuffle(shuffled)
    one = summarise_repeats(values)
    assert one == summarise_repeats(shuffled)
    assert one["min"] <= one["median"] <= one["max"]
    assert one["spread_ratio"] >= 1
