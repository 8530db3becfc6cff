"""Gates at the load's own concurrency and beside a load, through the whole chain."""

from __future__ import annotations

import csv
import json

import pytest

from checkout import Checkout

pytestmark = pytest.mark.e2e


def test_gates_at_load_and_mixed(checkout: Checkout) -> None:
    """Both extra runs are recorded, count into the row's gates, are audited, and their loss is no improvement."""
    checkout.campaign["order"] = ["a"]
    del checkout.campaign["arms"]["b"], checkout.campaign["comparisons"], checkout.campaign["points"]["p2"]
    checkout.campaign["gates"]["at_load"] = True
    checkout.campaign["points"]["w1"]["mixed_gates"] = True
    checkout.write_campaign()
    run = checkout.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    (session,) = (checkout.root / "results/evidence").iterdir()
    for side in ("gates_before", "gates_after"):
        alone = json.loads((session / side / "summary.json").read_text())
        loaded = json.loads((session / side / "at_load" / "summary.json").read_text())
        assert (alone["n"], loaded["n"]) == (6, 6)
        assert loaded["concurrency"]["asked"] == 2, "the busiest point has two requests in flight"
    mixed = json.loads((session / "sustained/w1/w1/gates_mixed/summary.json").read_text())
    assert mixed["n"] >= 6
    text = (checkout.root / "results/campaign_tiny/extracts/rows.csv").read_text()
    rows = {row["row_id"]: row for row in csv.DictReader(text.splitlines())}
    assert rows["a/p1/r1"]["json_before_n"] == "12"
    assert int(rows["a/w1/w1"]["json_after_n"]) == 12 + mixed["n"]
    audit = checkout.assay("audit", "results/campaign_tiny/charts/throughput.svg")
    assert (audit.returncode, audit.stdout.strip().splitlines()[-1]) == (0, "VERIFIED"), audit.stdout[-2000:]
    assert "6 gate runs judged again" in audit.stdout
