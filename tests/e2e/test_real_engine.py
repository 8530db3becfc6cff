"""The chain on a real engine: llama.cpp with a real model, campaign_local cut short."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml

from checkout import PROJECT, Checkout

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.slow, pytest.mark.serial]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """campaign_local as campaign_tiny: fewer requests, shorter answers, one window; the same engine and model."""
    root = tmp_path_factory.mktemp("real") / "checkout"
    made = Checkout.make(root, tmp_path_factory.mktemp("shared"), PROJECT / ".images")
    for name in (
        "config/images/llama_cpp_cpu.yaml",
        "config/models/smollm2_135m_q4_1.yaml",
        "envs/llama_cpp_cpu.lock.txt",
    ):
        shutil.copy2(PROJECT / name, root / name)
    shutil.copy2(PROJECT / "tests/data/gates_short.yaml", root / "config/gates/tiny.yaml")
    local = yaml.safe_load((PROJECT / "config/campaigns/campaign_local.yaml").read_text())
    local |= {"name": "campaign_tiny", "gates": {"policy": "tiny"}}
    for point in local["points"].values():
        point |= {"max_tokens": 12}
        point |= {"requests": 4, "repeats": 1} if point["kind"] == "finite" else {"windows": 1, "issue_s": 3}
    made.campaign = local
    made.write_campaign()
    run = made.snakemake(timeout_s=480)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return made


def rows_of(campaign: Checkout) -> list[dict[str, str]]:
    path = campaign.root / "results/campaign_tiny/extracts/rows.csv"
    return list(csv.DictReader(path.read_text().splitlines()))


def test_every_request_succeeds(campaign: Checkout) -> None:
    """All requests of all rows end ok on a healthy server, with token counts from the server's usage."""
    rows = rows_of(campaign)
    assert len(rows) == 2 * (3 + 2)  # three finite points, one window and its pool, in two arms
    for row in rows:
        assert row["n_ok"] == row["n_issued"] != "0", row["row_id"]
        assert float(row["output_tok_s"]) > 0


def test_forced_length_is_exact(campaign: Checkout) -> None:
    """The synthetic point has exactly its planned prompt tokens and exactly the forced output length."""
    import pyarrow.parquet as pq

    files = list((campaign.root / "results/evidence").glob("*/finite/synthetic_c4/r1/requests.parquet"))
    assert len(files) == 2
    for file in files:
        for request in pq.read_table(file, columns=["n_prompt", "n_output", "finish_reason"]).to_pylist():
            assert request == {"n_prompt": 96, "n_output": 12, "finish_reason": "length"}


def test_the_server_runs_what_was_asked(campaign: Checkout) -> None:
    """Each asked flag is read back from the server, and only the lookup arm speculates."""
    for leg, kind in (("base", "none"), ("lookup", "ngram_mod")):
        session_id = campaign.receipt(f"{leg}/start_server.json")["session_id"]
        path = campaign.root / "results/evidence" / session_id / "config_readback.json"
        readback = json.loads(path.read_text())
        assert (readback["mismatches"], readback["unread"]) == ([], [])
        assert readback["read"]["spec_type"] == kind


def test_counters_agree_with_the_client(campaign: Checkout) -> None:
    """The server's own count of generated tokens equals what the client summed, and nothing came from a cache."""
    for row in rows_of(campaign):
        if row["kind"] == "repeat":
            folder = campaign.root / "results" / Path(row["requests_path"]).parent
            delta = json.loads((folder / "counters.json").read_text())["delta"]
            assert delta["generation_tokens"] == float(row["output_tokens"]), row["row_id"]
            assert delta["cached_prompt_tokens"] == 0


def test_the_charts_are_audited(campaign: Checkout) -> None:
    """Every chart is recomputed from its requests and verified."""
    charts = sorted((campaign.root / "results/campaign_tiny/charts").glob("*.svg"))
    assert len(charts) == 4
    for chart in charts:
        run = campaign.assay("audit", str(chart))
        assert (run.returncode, run.stdout.strip().splitlines()[-1]) == (0, "VERIFIED"), run.stdout[-2000:]
