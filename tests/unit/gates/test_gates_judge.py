"""The judge: verdicts from the disk alone; nothing that is taken away makes one better."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import Incomplete
from assay.gates import Endpoint, Policy, judge, load_policy, read_tasks, run_gates
from assay.vocab import GateOutcome
from engines.gate_server import GateServer, Reply

ROOT = Path(__file__).resolve().parents[3]
ORDER = {"fail": 0, "invalid": 0, "pass": 1}


@pytest.fixture(scope="module")
def local_policy() -> Policy:
    return load_policy(ROOT / "config" / "gates" / "local.yaml")


@pytest.fixture(scope="module")
def passed(local_policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("passed")
    with GateServer(local_policy) as server:
        return out, run_gates(Endpoint(server.url, "m"), local_policy, out, when="before")


@pytest.fixture(scope="module")
def failed(local_policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("failed")
    script = {"json-small_plain": Reply('{"answer": 8}'), "tool-small_auto": Reply(status=500)}
    with GateServer(local_policy, script) as server:
        run_gates(Endpoint(server.url, "m"), local_policy, out, when="before")
    return read_tasks(out / "tasks.jsonl")


def test_the_judge_needs_no_server(passed: tuple[Path, dict[str, Any]], local_policy: Policy) -> None:
    """From tasks.jsonl, from its lines in any order and from the summary the same verdict is reached."""
    out, summary = passed
    lines = read_tasks(out / "tasks.jsonl")
    for given_ in (out / "tasks.jsonl", lines, list(reversed(lines)), summary):
        again = judge(given_, local_policy)
        assert again["verdict"] == summary["verdict"] == "pass"
        assert again["disagreements"] == []
        assert {k: v["counts"] for k, v in again["kinds"].items()} == {
            k: v["counts"] for k, v in summary["kinds"].items()
        }


def test_taking_any_record_away_fails(passed: tuple[Path, dict[str, Any]], local_policy: Policy) -> None:
    """Each record that is missing turns the pass into a fail and is named."""
    lines = read_tasks(passed[0] / "tasks.jsonl")
    for number, line in enumerate(lines):
        again = judge(lines[:number] + lines[number + 1 :], local_policy)
        assert again["verdict"] == "fail"
        assert {"task_id": line["task_id"], "what": "no record"} in again["disagreements"]


@given(data=st.data())
def test_no_removal_improves_a_verdict(
    failed: list[dict[str, Any]], local_policy: Policy, data: st.DataObject
) -> None:
    """Whatever subset of records or doubles is given, a failed run never passes."""
    chosen = data.draw(st.lists(st.sampled_from(failed), max_size=len(failed) + 3))
    assert judge(chosen, local_policy)["verdict"] == "fail"


@given(data=st.data())
def test_the_order_of_records_does_not_matter(
    failed: list[dict[str, Any]], local_policy: Policy, data: st.DataObject
) -> None:
    """Verdicts and counts are the same for every order of the lines."""
    shuffled = data.draw(st.permutations(failed))
    one, other = judge(failed, local_policy), judge(shuffled, local_policy)
    assert one["kinds"] == other["kinds"]
    assert one["verdict"] == other["verdict"]


FORGERIES: list[tuple[str, Any]] = [
    ("outcome", "pass"),
    ("reason", None),
    ("before_sending", {"outcome": "pass", "reason": "value"}),
]


@pytest.mark.parametrize(("key", "value"), FORGERIES)
def test_a_forged_outcome_is_seen(
    key: str, value: Any, failed: list[dict[str, Any]], local_policy: Policy
) -> None:
    """A record that claims more than its answer holds is graded by its answer, and named."""
    lines = copy.deepcopy(failed)
    line = next(line for line in lines if line["task_id"] == "json-small_plain")
    line[key] = value
    again = judge(lines, local_policy)
    assert again["verdict"] == "fail"
    assert again["kinds"]["json"]["counts"]["pass"] == 5
    if key != "before_sending":
        assert any(entry["task_id"] == "json-small_plain" for entry in again["disagreements"])


def test_another_question_is_seen(passed: tuple[Path, dict[str, Any]], local_policy: Policy) -> None:
    """An answer to an easier question than the policy asks does not count."""
    lines = read_tasks(passed[0] / "tasks.jsonl")
    for change in (
        {"temperature": 1},
        {"max_tokens": 5000},
        {"messages": [{"role": "user", "content": "Say yes"}]},
    ):
        changed = copy.deepcopy(lines)
        changed[0]["request"]["body"] |= change
        again = judge(changed, local_policy)
        assert again["verdict"] == "fail"
        assert again["kinds"]["json"]["reasons"] == {"could_not_run/request_differs": 1}


def test_an_easier_needle_is_seen(passed: tuple[Path, dict[str, Any]], local_policy: Policy) -> None:
    """A needle in less hay than its record claims is another question."""
    lines = read_tasks(passed[0] / "tasks.jsonl")
    number = next(n for n, line in enumerate(lines) if line["kind"] == "needle")
    for change in (lambda line: line["needle"].update(n_words=20), _shorten):
        changed = copy.deepcopy(lines)
        change(changed[number])
        again = judge(changed, local_policy)
        assert again["kinds"]["needle"]["reasons"] == {"could_not_run/request_differs": 1}
        assert again["verdict"] == "fail"


def _shorten(line: dict[str, Any]) -> None:
    message = line["request"]["body"]["messages"][0]
    message["content"] = message["content"].partition(". ")[2]


def test_a_summary_that_does_not_add_up_is_seen(
    passed: tuple[Path, dict[str, Any]], local_policy: Policy
) -> None:
    """Counts that are missing, too few or more than their sum make the kind fail."""
    summary = passed[1]
    for change in ({"n": 5}, {"counts": {"pass": 5}}, {"counts": {"pass": 2}, "n": 2}):
        forged = copy.deepcopy(summary)
        forged["kinds"]["json"] |= change
        again = judge(forged, local_policy)
        assert again["verdict"] == "fail"
        assert again["disagreements"]
    forged = copy.deepcopy(summary)
    del forged["kinds"]["needle"]
    assert judge(forged, local_policy)["verdict"] == "fail"


@given(
    n_pass=st.integers(0, 24),
    others=st.lists(st.sampled_from(list(GateOutcome)[1:]), max_size=10),
    share=st.floats(0.01, 1.0),
)
def test_a_kind_passes_by_its_share_alone(n_pass: int, others: list[GateOutcome], share: float) -> None:
    """pass needs n >= 1 and the share of passes over all tasks, unavailable and unrun ones included."""
    from assay.gates.judge import _meets

    counts = {"pass": n_pass}
    for outcome in others:
        counts[outcome.value] = counts.get(outcome.value, 0) + 1
    n = n_pass + len(others)
    verdict = _meets({"n": n, "counts": counts, "threshold": share})
    assert verdict == ("pass" if n and n_pass and n_pass / n >= share - 1e-9 else "fail")


def test_missing_and_broken_records_are_incomplete(tmp_path: Path, local_policy: Policy) -> None:
    """A tasks.jsonl that is not there or is cut cannot be judged, and says so."""
    with pytest.raises(Incomplete, match="not there"):
        judge(tmp_path / "tasks.jsonl", local_policy)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"task_id": "json-x"}) + '\n{"task_')
    with pytest.raises(Incomplete, match=r"tasks\.jsonl"):
        judge(tmp_path / "tasks.jsonl", local_policy)
