"""What a change reruns: exactly what docs/campaigns.md says, seen by `snakemake -n`, in one invocation."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkout import Checkout

pytestmark = pytest.mark.e2e

EXTRACTS = {"extract_rows", "write_evidence"}
CHARTS = {f"plot_chart {chart}" for chart in ("throughput", "ttft", "arms", "sustained")}
DERIVED = EXTRACTS | CHARTS


def after(leg: str) -> set[str]:
    return {f"gate_after {leg}", f"stop_server {leg}"}


def measured_of(leg: str) -> set[str]:
    return {
        f"start_server {leg}",
        f"gate_before {leg}",
        f"warm_up {leg}",
        f"run_finite {leg} p1 r1",
        f"run_finite {leg} p2 r1",
        f"run_finite {leg} p2 r2",
        f"run_sustained {leg} w1",
    } | after(leg)


def test_a_finished_campaign_has_nothing_to_do(finished: Checkout) -> None:
    """After a run `snakemake -n` plans no job, and running again starts no server."""
    assert finished.plan() == {}
    run = finished.snakemake()
    assert run.returncode == 0
    assert finished.events() == []


def test_one_server_per_arm_in_order(finished_checkout: Checkout) -> None:
    """A run starts one server an arm, the first arm's stages all before the second's, gates around the load."""
    sessions = finished_checkout.sessions()
    assert [session["leg"] for session in sessions] == ["a", "b"]
    assert [session["why_stopped"] for session in sessions] == ["released", "released"]
    assert sessions[0]["t_stop_utc"] <= sessions[1]["t_start_utc"]
    for leg, session in zip("ab", sessions, strict=True):
        times = [
            finished_checkout.receipt(f"{leg}/{name}.json")["t_start_utc"]
            for name in (
                "gate_before",
                "warm_up",
                "finite/p1/r1",
                "finite/p2/r1",
                "finite/p2/r2",
                "sustained/w1",
                "gate_after",
            )
        ]
        assert times == sorted(times)
        assert finished_checkout.receipt(f"{leg}/finite/p1/r1.json")["session_id"] == session["session_id"]
    assert finished_checkout.processes() == []


def test_changed_request_count_reruns_that_point(finished: Checkout) -> None:
    """A point's request count: its prompts, its repeats in every arm, the after-gates, nothing else measured."""
    finished.campaign["points"]["p2"]["requests"] = 5
    finished.write_campaign()
    plan = finished.plan()
    points = {f"run_finite {leg} p2 r{r}" for leg in "ab" for r in (1, 2)}
    expected = points | after("a") | after("b") | DERIVED | {"prepare_prompts p2", "write_plan"}
    assert set(plan) == expected
    assert '"count":6' in plan["prepare_prompts p2"], "-n says what it was before"
    before = finished.receipt_digests()
    run = finished.snakemake()
    assert run.returncode == 0, run.stderr[-3000:]
    assert finished.plan() == {}, "one invocation is enough"
    now = finished.receipt_digests()
    changed = {name for name in before if before[name] != now[name]}
    redone = {f"{leg}/finite/p2/r{r}.json" for leg in "ab" for r in (1, 2)}
    closing = {f"{leg}/{stage}.json" for leg in "ab" for stage in ("gate_after", "stop_server")}
    assert changed == redone | closing | {"prompts/p2.json"}


def test_swapped_settings_rerun_the_point(finished: Checkout) -> None:
    """Two settings of one point that trade values are seen, though the set of values is the same."""
    point = finished.campaign["points"]["p2"]
    point["max_tokens"], point["requests"] = point["requests"], point["max_tokens"]
    finished.write_campaign()
    plan = finished.plan()
    assert "run_finite a p2 r1" in plan
    assert not {name for name in plan if " p1 " in name or "w1" in name}


def test_a_deleted_receipt_reruns_that_repeat(finished: Checkout) -> None:
    """Without its receipt one repeat runs again, in a bracketed session of its own; the others stay as they are."""
    lost = finished.receipts / "a/finite/p2/r1.json"
    lost.unlink()
    assert set(finished.plan()) == {"run_finite a p2 r1"} | after("a") | DERIVED
    before = finished.receipt_digests()
    run = finished.snakemake()
    assert run.returncode == 0, run.stderr[-3000:]
    now = finished.receipt_digests()
    assert {name for name in before if before[name] != now[name]} == {
        "a/gate_after.json",
        "a/stop_server.json",
    }
    sessions = finished.sessions()
    assert len(sessions) == 3
    receipt = finished.receipt("a/finite/p2/r1.json")
    assert receipt["session_id"] == sessions[-1]["session_id"]
    folder = finished.root / "results/evidence" / receipt["session_id"]
    done = {path.parent.name for path in folder.rglob("stage.json")}
    assert {"gates_before", "warmup", "r1", "gates_after"} <= done
    brackets = finished.receipt("a/gate_after.json")["measured"]["brackets"]
    assert len(brackets) == 2
    assert all(bracket["why_open"] is None for bracket in brackets.values())
    assert finished.plan() == {}


def test_changed_flag_reruns_that_arm(finished: Checkout) -> None:
    """An arm's flag reruns exactly that arm's stages, in one invocation."""
    finished.campaign["arms"]["b"]["flags"]["parallel"] = 8
    finished.write_campaign()
    assert set(finished.plan()) == measured_of("b") | DERIVED | {"write_plan"}
    assert finished.snakemake().returncode == 0
    assert finished.plan() == {}
    assert [session["leg"] for session in finished.sessions()] == ["a", "b", "b"]


def test_key_order_and_touched_files_rerun_nothing(finished: Checkout) -> None:
    """Reordered keys of the campaign file and new time stamps of every source file change nothing."""
    finished.write_campaign(sort_keys=True)
    for path in finished.root.rglob("*"):
        if path.is_file() and not {"results", ".snakemake", "locks"} & set(
            path.relative_to(finished.root).parts
        ):
            path.touch()
    assert finished.plan() == {}


def edit(path: Path, text: str) -> None:
    assert path.exists(), path
    path.write_text(path.read_text() + text)


def test_chart_style_reruns_the_charts_only(finished: Checkout) -> None:
    """Changed chart code redraws charts and pins them again: no server, no extract."""
    module = next((finished.root / "scripts/assay/chart").glob("[a-z]*.py"))
    edit(module, "\n# another style\n")
    assert set(finished.plan()) == CHARTS | {"write_evidence"}


def test_docstring_of_the_load_client_reruns_nothing(finished: Checkout) -> None:
    """An hour of measuring is not spent for a docstring: load code is recorded, it does not trigger."""
    edit(finished.root / "scripts/assay/load/sse.py", '\n"""Another docstring."""\n')
    assert finished.plan() == {}


def test_extract_code_starts_no_server(finished: Checkout) -> None:
    """Changed extract code rewrites extracts and charts from the evidence."""
    edit(finished.root / "scripts/assay/extract/rows.py", "\n# another line\n")
    plan = set(finished.plan())
    assert plan <= DERIVED
    assert "extract_rows" in plan
    finished.forget_events()
    assert finished.snakemake().returncode == 0
    assert finished.events("start") == []


def test_added_and_removed_points(finished: Checkout) -> None:
    """A new point is measured in each arm, the others stay; a removed one only changes what is derived."""
    points = finished.campaign["points"]
    points["p3"] = points["p1"] | {"concurrency": 4, "requests": 4}
    finished.write_campaign()
    measured = {name for name in finished.plan() if name.startswith("run_")}
    assert measured == {f"run_finite {leg} p3 r1" for leg in "ab"}
    del points["p3"], points["p1"]
    finished.write_campaign()
    plan = set(finished.plan())
    assert not {name for name in plan if name.startswith("run_")}
    assert {"gate_after a", "gate_after b"} <= plan


def test_order_with_two_visits_of_an_arm(checkout: Checkout) -> None:
    """`[a, b, b, a]` gives four sessions in that order, each leg with its own receipts."""
    checkout.campaign["order"] = ["a", "b", "b", "a"]
    checkout.campaign["points"] = {"p1": checkout.campaign["points"]["p1"]}
    checkout.write_campaign()
    run = checkout.snakemake("results/campaign_tiny/extracts/rows.csv")
    assert run.returncode == 0, run.stderr[-3000:]
    assert [session["leg"] for session in checkout.sessions()] == ["a.1", "b.1", "b.2", "a.2"]
    assert (checkout.receipts / "a.2/finite/p1/r1.json").exists()
