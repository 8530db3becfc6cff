"""Row screens: pass, fail and missing evidence of each, on records made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.verdict.facts import RequestFacts, read_facts
from assay.verdict.findings import Finding
from assay.verdict.publication import judge_row, run_screens
from assay.verdict.record import LoadRecord
from assay.vocab import Screen, ScreenResult, StageState, Verdict
from make_requests import Shape, client_record, request_rows, write_table

POLICY = yaml.safe_load((Path(__file__).parents[3] / "config/publication/default.yaml").read_text())
POINT = {"kind": "finite", "workload_kind": "chat", "concurrency": 2, "requests": 8, "ignore_eos": False}
PASS, FAIL, UNKNOWN = ScreenResult.PASS, ScreenResult.FAIL, ScreenResult.NOT_CHECKED


def facts_of(tmp_path: Path, shape: Shape, session: str = "s1") -> RequestFacts:
    path = tmp_path / "requests.parquet"
    write_table(path, request_rows(shape, session, "p"), row_group_size=3)
    return read_facts([path])


def kinds(**counts: dict[str, int]) -> dict[str, Any]:
    return {
        "kinds": {
            kind: {
                "n": sum(c.values()),
                "counts": c,
                "threshold": 1.0,
                "verdict": "pass" if c.get("pass") == sum(c.values()) else "fail",
            }
            for kind, c in counts.items()
        }
    }


GATES = kinds(json={"pass": 24}, tool={"pass": 8}, needle={"pass": 6}, code={"pass": 1})


def record(facts: RequestFacts | None, **changes: Any) -> LoadRecord:
    base = LoadRecord(
        facts=facts,
        point=POINT,
        arm={"gpus": 0, "flags": {}},
        session_id="s1",
        client=client_record(Shape()),
        counters={"delta": {"prompt_tokens": 320, "cached_prompt_tokens": 0}},
        readback={"asked": {"parallel": 2}, "read": {"parallel": 2}, "mismatches": [], "unread": []},
        gates={"before": GATES, "after": GATES},
    )
    return replace(base, **changes)


def result(one: LoadRecord, screen: Screen) -> Finding:
    return {str(f.name): f for f in run_screens(one, POLICY["limits"])}[screen]


def test_a_sound_row_is_publishable(tmp_path: Path) -> None:
    """A record with complete, good evidence passes every required screen and is publishable."""
    one = record(facts_of(tmp_path, Shape()))
    findings = run_screens(one, POLICY["limits"])
    verdict = judge_row(one, findings, POLICY, state=StageState.COMPLETED)
    assert verdict.publishable
    assert not verdict.invalid
    assert verdict.reasons == ()


def test_every_screen_answers_once_and_in_order(tmp_path: Path) -> None:
    """Each screen of the vocabulary gives exactly one finding, with or without evidence."""
    for one in (record(facts_of(tmp_path, Shape())), LoadRecord(facts=None, point=POINT, arm={})):
        assert [f.name for f in run_screens(one, POLICY["limits"])] == list(Screen)


def test_no_evidence_is_never_a_pass() -> None:
    """Without any evidence no screen passes, and the row is not publishable."""
    one = LoadRecord(facts=None, point=POINT, arm={})
    findings = run_screens(one, POLICY["limits"])
    assert {f.verdict for f in findings} == {UNKNOWN}
    verdict = judge_row(one, findings, POLICY, state=StageState.COMPLETED)
    assert not verdict.publishable
    assert "nothing_checked" in verdict.reasons


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ({"before": GATES, "after": kinds(json={"pass": 23, "unavailable": 1})}, FAIL),
        ({"before": kinds(json={"pass": 24}), "after": None}, UNKNOWN),
        ({"before": None, "after": None}, UNKNOWN),
        ({"before": kinds(json={}), "after": kinds(json={"pass": 24})}, FAIL),
        ({"before": kinds(json={"wrong_value": 24}), "after": None}, FAIL),
        ({"before": GATES, "after": GATES}, PASS),
    ],
)
def test_gate_screen(gates: dict[str, Any], expected: ScreenResult) -> None:
    """A gate passes only on both sides; a failing or an empty side fails it, a missing side leaves it open."""
    assert result(record(None, gates=gates), Screen.JSON_GATE).verdict == expected


def test_gate_screen_tells_score_and_outcome() -> None:
    """The finding of 23/24 with one HTTP 500 says 23 of 24 and unavailable, not a wrong value."""
    finding = result(
        record(None, gates={"before": GATES, "after": kinds(json={"pass": 23, "unavailable": 1})}),
        Screen.JSON_GATE,
    )
    assert finding.measured["after"] == {"pass": 23, "n": 24, "outcomes": {"pass": 23, "unavailable": 1}}
    assert "unavailable" in str(finding.detail)
    assert "wrong_value" not in str(finding.detail)


def test_cache_that_is_wanted(tmp_path: Path) -> None:
    """A point that wants the prefix cache passes with known hits, and with unknown ones it was not accounted for."""
    facts = facts_of(tmp_path, Shape(changes={"n_cached": None}))
    warm = {"delta": {"prompt_tokens": 320, "cached_prompt_tokens": 200}}
    absent = {"delta": {"cached_prompt_tokens": None}}
    wanted = POINT | {"prefix_cache_wanted": True}
    for counters, verdict in ((warm, PASS), (absent, UNKNOWN)):
        findings = run_screens(record(facts, point=wanted, counters=counters), POLICY["limits"])
        assert {f.name: f.verdict for f in findings}[Screen.CACHE_SCREEN] == verdict


def test_cache_screen(tmp_path: Path) -> None:
    """Warm by the server's counters fails; too fast a prefill fails; unknown counters leave it open."""
    facts = facts_of(tmp_path, Shape())
    warm = {"delta": {"prompt_tokens": 320, "cached_prompt_tokens": 200}}
    assert result(record(facts, counters=warm), Screen.CACHE_SCREEN).verdict == FAIL
    assert result(record(facts), Screen.CACHE_SCREEN).verdict == PASS
    # 10,000 tokens in 100 ms are 100,000 tokens/s
    fast = facts_of(tmp_path, Shape(n_prompt=10_000))
    assert fast.ok_prefill_tok_s_max == pytest.approx(100_000)
    assert result(record(fast), Screen.CACHE_SCREEN).verdict == FAIL
    blind = facts_of(tmp_path, Shape(changes={"n_cached": None}))
    absent = {"delta": {"cached_prompt_tokens": None}}
    assert result(record(blind, counters=absent), Screen.CACHE_SCREEN).verdict == UNKNOWN


def test_failure_rate(tmp_path: Path) -> None:
    """One failed or incomplete request fails; so do no requests at all, and a client that issued more."""
    for shape in (Shape(failed=(3,)), Shape(incomplete=(7,))):
        finding = result(record(facts_of(tmp_path, shape)), Screen.FAILURE_RATE)
        assert finding.verdict == FAIL
        assert finding.measured["not_ok_share"] == pytest.approx(1 / 8)
    assert result(record(RequestFacts()), Screen.FAILURE_RATE).verdict == FAIL
    told = client_record(Shape(), requests={"issued": 9})
    assert result(record(facts_of(tmp_path, Shape()), client=told), Screen.FAILURE_RATE).verdict == FAIL
    assert result(record(None), Screen.FAILURE_RATE).verdict == UNKNOWN


def client_with(screen: str, result_word: str, **measured: Any) -> dict[str, Any]:
    client = client_record(Shape())
    client["screens"][screen] |= {"result": result_word}
    client["screens"][screen]["measured"] |= measured
    return client


def test_concurrency_reached() -> None:
    """Fewer in flight than asked fails; the client's own fail counts; no record leaves it open."""
    few = client_with("concurrency_reached", "pass", max=1)
    assert result(record(None, client=few), Screen.CONCURRENCY_REACHED).verdict == FAIL
    own = client_with("concurrency_reached", "fail")
    assert result(record(None, client=own), Screen.CONCURRENCY_REACHED).verdict == FAIL
    refused = client_record(Shape(), reasons=["client_refused"])
    assert result(record(None, client=refused), Screen.CONCURRENCY_REACHED).verdict == FAIL
    assert result(record(None, client=None), Screen.CONCURRENCY_REACHED).verdict == UNKNOWN
    assert result(record(None), Screen.CONCURRENCY_REACHED).verdict == PASS


def test_client_bound() -> None:
    """95 % of a core or a loop that lags over the limit makes the client the bottleneck."""
    busy = client_with("client_bound", "pass", cpu_share_max=0.95)
    late = client_with("client_bound", "pass", lag_p99_ms=80.0)
    blind = client_with("client_bound", "not_checked", cpu_share_max=None)
    assert result(record(None, client=busy), Screen.CLIENT_BOUND).verdict == FAIL
    assert result(record(None, client=late), Screen.CLIENT_BOUND).verdict == FAIL
    assert result(record(None, client=blind), Screen.CLIENT_BOUND).verdict == UNKNOWN
    assert result(record(None), Screen.CLIENT_BOUND).verdict == PASS


def test_output_length(tmp_path: Path) -> None:
    """A forced length of 128 that stops at 40 fails and makes the row invalid; free lengths may vary."""
    forced = POINT | {"ignore_eos": True}
    short = facts_of(
        tmp_path, Shape(n_output=40, n_requested=128, changes={"ignore_eos": True, "finish_reason": "stop"})
    )
    one = record(short, point=forced)
    assert result(one, Screen.OUTPUT_LENGTH).verdict == FAIL
    assert (
        judge_row(one, run_screens(one, POLICY["limits"]), POLICY, state="completed").verdict
        == Verdict.INVALID
    )
    exact = facts_of(tmp_path, Shape(n_output=32, changes={"ignore_eos": True, "finish_reason": "length"}))
    assert result(record(exact, point=forced), Screen.OUTPUT_LENGTH).verdict == PASS
    assert result(record(facts_of(tmp_path, Shape()), point=forced), Screen.OUTPUT_LENGTH).verdict == FAIL
    over = facts_of(tmp_path, Shape(n_output=40, n_requested=32))
    assert result(record(over), Screen.OUTPUT_LENGTH).verdict == FAIL
    blind = facts_of(tmp_path, Shape(changes={"n_output": None}))
    assert result(record(blind), Screen.OUTPUT_LENGTH).verdict == UNKNOWN


def test_input_length(tmp_path: Path) -> None:
    """Planned 1,000 prompt tokens, served 5,000: fail and invalid; within a template's few tokens: pass."""
    synthetic = POINT | {"workload_kind": "synthetic"}
    far = facts_of(tmp_path, Shape(n_prompt=5_000, changes={"n_planned_prompt": 1_000}))
    one = record(far, point=synthetic)
    assert result(one, Screen.INPUT_LENGTH).verdict == FAIL
    assert judge_row(one, run_screens(one, POLICY["limits"]), POLICY, state="completed").invalid
    near = facts_of(tmp_path, Shape(n_prompt=1_008, changes={"n_planned_prompt": 1_000}))
    assert result(record(near), Screen.INPUT_LENGTH).verdict == PASS
    unplanned = record(facts_of(tmp_path, Shape()), point=synthetic)
    assert result(unplanned, Screen.INPUT_LENGTH).verdict == UNKNOWN
    reasons = judge_row(
        unplanned, run_screens(unplanned, POLICY["limits"]), POLICY, state="completed"
    ).reasons
    assert "input_length:not_checked" in reasons


def test_token_count_agreement(tmp_path: Path) -> None:
    """Usage 16 and tokenizer 7 disagree; equal counts agree; one count alone is unknown."""
    off = facts_of(tmp_path, Shape(n_output=16, changes={"n_output_tokenizer": 7}))
    assert result(record(off), Screen.TOKEN_COUNT_AGREEMENT).verdict == FAIL
    assert result(record(facts_of(tmp_path, Shape())), Screen.TOKEN_COUNT_AGREEMENT).verdict == PASS
    single = facts_of(tmp_path, Shape(changes={"n_output_tokenizer": None}))
    assert result(record(single), Screen.TOKEN_COUNT_AGREEMENT).verdict == UNKNOWN


@pytest.mark.parametrize("changes", [{"n_reasoning": 5}, {"reasoning_seen": True}, {"think_tag_seen": True}])
def test_thinking_toggle(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Thinking off, but reasoning in the stream: fail and invalid. Nothing asked: nothing checked."""
    off = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    one = record(facts_of(tmp_path, Shape(changes=changes)), spec_point=off)
    assert result(one, Screen.THINKING_TOGGLE).verdict == FAIL
    assert judge_row(one, run_screens(one, POLICY["limits"]), POLICY, state="completed").invalid
    quiet = record(facts_of(tmp_path, Shape()), spec_point=off)
    assert result(quiet, Screen.THINKING_TOGGLE).verdict == PASS
    assert result(record(facts_of(tmp_path, Shape())), Screen.THINKING_TOGGLE).verdict == UNKNOWN


def gpu_samples(slow_mhz: float, reasons: int = 0) -> list[dict[str, Any]]:
    clocks = {"GPU-a": 1980.0, "GPU-b": 1980.0, "GPU-c": slow_mhz}
    return [
        {"t_ns": t, "uuid": uuid, "sm_clock_mhz": mhz, "throttle_reasons": reasons if uuid == "GPU-c" else 0}
        for t in range(3)
        for uuid, mhz in clocks.items()
    ]


def test_clock_screen() -> None:
    """A GPU 19 % under its peers, or with a throttle reason, fails and is named; idle is no reason."""
    slow = result(record(None, gpu_samples=gpu_samples(1980 * 0.81)), Screen.CLOCK_SCREEN)
    assert slow.verdict == FAIL
    assert "GPU-c" in str(slow.detail)
    assert slow.measured["GPU-c"]["drop_share"] == pytest.approx(0.19)
    hot = result(record(None, gpu_samples=gpu_samples(1980, reasons=0x40)), Screen.CLOCK_SCREEN)
    assert hot.verdict == FAIL
    assert "hw_thermal_slowdown" in str(hot.detail)
    assert (
        result(record(None, gpu_samples=gpu_samples(1980, reasons=0x1)), Screen.CLOCK_SCREEN).verdict == PASS
    )
    assert result(record(None), Screen.CLOCK_SCREEN).verdict == UNKNOWN


def test_config_readback() -> None:
    """A mismatch fails and names the key; a server that tells nothing leaves it open."""
    wrong = {"asked": {"a": 1}, "read": {"a": 2}, "mismatches": [{"key": "a", "asked": 1, "read": 2}]}
    finding = result(record(None, readback=wrong), Screen.CONFIG_READBACK)
    assert finding.verdict == FAIL
    assert "a" in str(finding.detail)
    silent = {"asked": {"a": 1}, "read": {"a": None}, "mismatches": [], "unread": ["a"]}
    assert result(record(None, readback=silent), Screen.CONFIG_READBACK).verdict == UNKNOWN
    assert result(record(None, readback=None), Screen.CONFIG_READBACK).verdict == UNKNOWN


def test_placement() -> None:
    """Ranks outside the declared island fail; nothing declared is nothing checked."""
    wrong = {"declared": {"island": 0}, "observed": {"island": 1}, "mismatches": ["rank 3"]}
    assert result(record(None, placement=wrong), Screen.PLACEMENT).verdict == FAIL
    right = {"declared": {"island": 0}, "observed": {"island": 0}, "mismatches": []}
    assert result(record(None, placement=right), Screen.PLACEMENT).verdict == PASS
    assert result(record(None), Screen.PLACEMENT).verdict == UNKNOWN


def test_mixed_session(tmp_path: Path) -> None:
    """Requests of another session in the table fail and make the row invalid."""
    foreign = record(facts_of(tmp_path, Shape(), session="s2"))
    assert result(foreign, Screen.MIXED_SESSION).verdict == FAIL
    assert judge_row(foreign, run_screens(foreign, POLICY["limits"]), POLICY, state="completed").invalid
    assert result(record(facts_of(tmp_path, Shape())), Screen.MIXED_SESSION).verdict == PASS


def test_flags_of_a_row_are_separate(tmp_path: Path) -> None:
    """A failed gate makes a row unpublishable, but not invalid: it is neither."""
    one = record(
        facts_of(tmp_path, Shape()),
        gates={"before": GATES, "after": kinds(json={"pass": 23, "unavailable": 1})},
    )
    verdict = judge_row(one, run_screens(one, POLICY["limits"]), POLICY, state="completed")
    assert (verdict.publishable, verdict.invalid, verdict.verdict) == (False, False, Verdict.FAIL)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"why_open": "killed"}, "bracket_open"),
        ({"rehearsal": True}, "rehearsal"),
        ({"faults": ("evidence_changed",)}, "evidence_changed"),
        ({"state": "failed"}, "stage:failed"),
    ],
)
def test_what_no_screen_sees(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """An open bracket, a rehearsal, changed evidence or a failed stage is never publishable."""
    one = record(facts_of(tmp_path, Shape()))
    arguments = {"state": "completed"} | changes
    verdict = judge_row(one, run_screens(one, POLICY["limits"]), POLICY, **arguments)
    assert not verdict.publishable
    assert reason in verdict.reasons


def test_a_policy_without_requirements_publishes_nothing(tmp_path: Path) -> None:
    """Zero checks is a failure, not a pass."""
    one = record(facts_of(tmp_path, Shape()))
    verdict = judge_row(one, run_screens(one, POLICY["limits"]), {"required": []}, state="completed")
    assert not verdict.publishable
