"""Whatever ends snakemake, no server stays, completed points stand, and the next run goes on."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checkout import Checkout

pytestmark = pytest.mark.e2e
GONE_WITHIN_S = 15.0
EXTRACTS = "results/campaign_tiny/extracts/rows.csv"  # charts and digests are other tests' business


def wait_for(condition: Callable[[], object], timeout_s: float = 90.0, poll_s: float = 0.05) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(poll_s)


def send(process: subprocess.Popen[str], how: str) -> None:
    """`INT-group` is what Ctrl-C at a terminal does; `-main` goes to snakemake alone."""
    name, whom = how.rstrip("2").split("-")
    number = getattr(signal, f"SIG{name}")
    for _ in range(2 if how.endswith("2") else 1):
        try:
            os.killpg(process.pid, number) if whom == "group" else process.send_signal(number)
        except ProcessLookupError:
            return
        time.sleep(1.0)


HOWS = ["INT-group", "INT-group2", "INT-main", "TERM-main", "HUP-group", "KILL-main"]


@pytest.fixture
def long_point(checkout: Checkout) -> Checkout:
    """One arm; p1 is done in an instant, p2 takes minutes unless the engine's script is changed."""
    del checkout.campaign["arms"]["b"], checkout.campaign["comparisons"]
    checkout.campaign["order"] = ["a"]
    checkout.campaign["points"]["p2"] |= {"repeats": 1, "requests": 60}
    del checkout.campaign["points"]["w1"]
    checkout.write_campaign()
    checkout.target = EXTRACTS
    checkout.build_image()
    return checkout


@pytest.mark.parametrize("how", HOWS)
def test_during_a_point(long_point: Checkout, how: str) -> None:
    """Ended in the middle of a point: no server within 15 s, p1 stands, the next run measures p2 alone."""
    long_point.script(slow_after_chat_streams=3 + 3 + 4, slow_ttft_s=30)
    process = long_point.start_snakemake()
    folder = long_point.root / "results/evidence"
    wait_for(lambda: list(folder.glob("*/finite/p2/r1/stage.json")))
    wait_for(lambda: long_point.events("slow"))
    send(process, how)
    started = time.monotonic()
    wait_for(lambda: not long_point.processes(), GONE_WITHIN_S)
    process.wait(timeout=60)
    assert process.returncode != 0
    assert time.monotonic() - started < 60
    kept = long_point.receipt_digests()
    assert "a/finite/p1/r1.json" in kept
    assert "a/finite/p2/r1.json" not in kept
    session = long_point.sessions()[0]
    assert session["state"] == "stopped"
    assert session["why_stopped"] in ("interrupted", "owner gone", "released")
    long_point.script()
    if how in ("HUP-group", "KILL-main"):
        assert long_point.snakemake("--unlock").returncode == 0
    run = long_point.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    now = long_point.receipt_digests()
    assert now["a/finite/p1/r1.json"] == kept["a/finite/p1/r1.json"], "what was completed stands"
    assert long_point.receipt("a/finite/p2/r1.json")["state"] == "completed"
    assert long_point.plan() == {}


@pytest.mark.parametrize("how", ["INT-group", "INT-group2", "TERM-main", "HUP-group", "KILL-main"])
def test_during_server_start(long_point: Checkout, how: str) -> None:
    """Ended while the server loads: no process within 15 s, nothing on record as measured, the next run can go on."""
    long_point.script(startup_s=60)
    process = long_point.start_snakemake()
    wait_for(lambda: long_point.events("start"))
    send(process, how)
    wait_for(lambda: not long_point.processes(), GONE_WITHIN_S)
    process.wait(timeout=60)
    assert not list(long_point.receipts.glob("a/**/*.json"))
    long_point.snakemake("--unlock")
    assert "start_server a" in long_point.plan()


def test_between_a_receipt_and_the_note_of_it(long_point: Checkout) -> None:
    """Snakemake killed the moment a stage's receipt appears: the receipt stands as it is, nothing is measured again."""
    long_point.script()
    process = long_point.start_snakemake()
    wait_for((long_point.receipts / "a/finite/p2/r1.json").exists, poll_s=0.001)
    process.kill()
    wait_for(lambda: not long_point.processes(), GONE_WITHIN_S)
    process.wait(timeout=60)
    kept = long_point.receipt_digests()
    long_point.snakemake("--unlock")
    run = long_point.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    now = long_point.receipt_digests()
    assert {name: now[name] for name in kept} == kept
    assert len(list((long_point.root / "results/evidence").glob("*/finite/p2/*/stage.json"))) == 1
    assert long_point.plan() == {}


KILLS = int(os.environ.get("ASSAY_TEST_KILLS", "1"))
"""Ten where there is time: `ASSAY_TEST_KILLS=10 pytest tests/e2e/test_interrupts.py -k random`."""
ROWS = {"a/p1/r1": "3", "a/p2/r1": "6", "a/p2/r2": "6"}
"""Each row of the campaign below, and the requests it has in an undisturbed run."""


def measured(made: Checkout) -> dict[str, str]:
    """Digests of the receipts of measured stages."""
    return {name: digest for name, digest in made.receipt_digests().items() if "/finite/" in name}


def rows_of(made: Checkout) -> dict[str, dict[str, str]]:
    """The rows by name; a name that is there twice is an error."""
    with (made.root / EXTRACTS).open() as stream:
        rows = list(csv.DictReader(stream))
    named = {row["row_id"]: row for row in rows}
    assert len(named) == len(rows)
    return named


def test_killed_at_random_moments(checkout: Checkout) -> None:
    """Killed at random moments and resumed, then unclosed brackets measured again: every row of an undisturbed
    run, each once and as valid; what was complete at a kill is not changed by the next run."""
    seed = int(os.environ.get("ASSAY_TEST_SEED", time.time_ns() % 1_000_000))
    draw = random.Random(seed)
    del checkout.campaign["arms"]["b"], checkout.campaign["comparisons"], checkout.campaign["points"]["w1"]
    checkout.campaign["order"] = ["a"]
    checkout.write_campaign()
    checkout.build_image()
    kept: dict[str, str] = {}
    killed = 0
    while killed < KILLS:
        process = checkout.start_snakemake()
        how = draw.choice(HOWS)
        try:
            process.wait(timeout=draw.uniform(1.0, 14.0))
        except subprocess.TimeoutExpired:
            send(process, how)
            killed += 1
        else:  # it came to its end before: a repeat is asked again
            assert process.returncode == 0, (checkout.root / "snakemake.log").read_text()[-3000:]
            (checkout.receipts / "a/finite/p2/r1.json").unlink()
            kept.pop("a/finite/p2/r1.json", None)
        wait_for(lambda: not checkout.processes(), GONE_WITHIN_S)
        process.wait(timeout=60)
        checkout.snakemake("--unlock")
        now = measured(checkout)
        assert kept.items() <= now.items(), f"seed {seed}: {how} changed what was complete"
        kept = now
    run = checkout.snakemake()
    assert run.returncode == 0, f"seed {seed}: " + run.stdout[-3000:] + run.stderr[-3000:]
    assert kept.items() <= measured(checkout).items(), f"seed {seed}"
    assert rows_of(checkout).keys() == ROWS.keys(), f"seed {seed}: nothing lost, nothing doubled"
    assert checkout.assay("retry", "--failed").returncode == 0
    run = checkout.snakemake()
    assert run.returncode == 0, f"seed {seed}: " + run.stdout[-3000:] + run.stderr[-3000:]
    for name, row in rows_of(checkout).items():
        assert (row["n_ok"], row["n_failed"], row["n_incomplete"]) == (ROWS[name], "0", "0"), f"seed {seed}"
        assert "bracket_open" not in row["reasons"], f"seed {seed}: {name} {row['reasons']}"
    assert checkout.receipt("a/gate_after.json")["state"] == "completed"
    assert checkout.plan() == {}


def overlap(checkouts: list[Checkout]) -> int:
    """The most servers that lived at one time, by the engines' own log."""
    lives = []
    for made in checkouts:
        for session in made.sessions():
            lives += [(session["t_start_utc"], 1), (session["t_stop_utc"], -1)]
    now = most = 0
    for _, change in sorted(lives):
        now += change
        most = max(most, now)
    return most


def test_two_campaigns_on_one_host(
    checkout: Checkout, tmp_path: Path, shared_folder: Path, common_folder: Path
) -> None:
    """Two checkouts started at once share the device one after the other: never two servers at a time."""
    other = Checkout.make(tmp_path / "other", shared_folder, wheels=common_folder)
    (other.root / "locks").symlink_to(checkout.root / "locks")
    (checkout.root / "locks").mkdir()
    for made in (checkout, other):
        made.campaign["points"] = {"p1": made.campaign["points"]["p1"]}
        made.write_campaign()
    processes = [made.start_snakemake() for made in (checkout, other)]
    try:
        for process, made in zip(processes, (checkout, other), strict=True):
            assert process.wait(timeout=200) == 0, (made.root / "snakemake.log").read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert overlap([checkout, other]) == 1
    logs = "".join(
        path.read_text() for made in (checkout, other) for path in (made.root / "logs").rglob("*.log")
    )
    assert "is held by campaign 'campaign_tiny'" in logs


def test_two_runs_in_one_checkout(long_point: Checkout) -> None:
    """A second snakemake in the same folder is refused while the first one runs, and disturbs nothing."""
    process = long_point.start_snakemake()
    wait_for(lambda: long_point.events("ready"))
    second = long_point.snakemake()
    assert second.returncode != 0
    assert "lock" in (second.stdout + second.stderr).lower()
    assert process.wait(timeout=120) == 0
    assert len(long_point.sessions()) == 1
