"""The chain on vLLM itself, built for CPUs: campaign_vllm_cpu cut short. Runs where its images are built."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.image import image_digest, load_image
from checkout import PROJECT, Checkout

pytestmark = [pytest.mark.e2e, pytest.mark.vllm_cpu, pytest.mark.slow]
IGNORED = "disable_custom_all_reduce"
"""vLLM's CPU platform sets it to true, whatever was asked."""


def files_of(image: str) -> list[str]:
    """The files of the project that an image is built from."""
    declared = load_image(PROJECT / f"config/images/{image}.yaml", PROJECT)
    steps = [step["script"] for step in declared.get("prepare", [])]
    return [
        f"config/images/{image}.yaml",
        declared["lock"],
        *steps,
        *(patch["path"] for patch in declared.get("patches", [])),
    ]


def built(store: Path, image: str) -> Path | None:
    digest = image_digest(load_image(PROJECT / f"config/images/{image}.yaml", PROJECT), PROJECT)[:12]
    folder = store / f"{image}-{digest}"
    return folder if (folder / ".complete").is_file() else None


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Two replicas with a window, then one server with a flag that it ignores."""
    store = Path(os.environ.get("ASSAY_IMAGE_STORE") or PROJECT / ".images")
    missing = [image for image in ("vllm_cpu", "vllm_router") if built(store, image) is None]
    if missing:
        pytest.skip(
            f"not built here: {', '.join(missing)} (snakemake --cores all campaign_vllm_cpu builds them)"
        )
    root = tmp_path_factory.mktemp("vllm") / "checkout"
    made = Checkout.make(root, tmp_path_factory.mktemp("shared"), store)
    for name in [
        *files_of("vllm_cpu"), *files_of("vllm_router"), "config/models/smollm2_135m_bf16.yaml"
    ]:  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT / name, root / name)
    declared = yaml.safe_load((PROJECT / "config/campaigns/campaign_vllm_cpu.yaml").read_text())
    declared |= {"name": "campaign_tiny", "order": ["two", "one"]}
    declared["arms"]["one"]["flags"] = {**declared["arms"]["one"]["flags"], IGNORED: False}
    del declared["points"]["chat_c1"]
    for point in declared["points"].values():
        point |= {"requests": 4, "repeats": 1} if point["kind"] == "finite" else {"issue_s": 4}
    made.campaign = declared
    made.write_campaign()
    run = made.snakemake(timeout_s=900)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return made


def evidence(campaign: Checkout, leg: str, name: str) -> dict[str, Any]:
    session_id = campaign.receipt(f"{leg}/start_server.json")["session_id"]
    found: dict[str, Any] = json.loads((campaign.root / "results/evidence" / session_id / name).read_text())
    return found


def test_two_replicas_run_what_was_asked(campaign: Checkout) -> None:
    """Flags and variables are read back from both servers, and both servers got requests."""
    readback = evidence(campaign, "two", "config_readback.json")
    assert readback["mismatches"] == []
    assert not [key for key in readback["unread"] if not key.startswith("router.")]
    assert (readback["read"]["replicas"], readback["read"]["environment.OMP_NUM_THREADS"]) == (2, "1")
    assert set(readback["replicas"]["by_replica"]) == {"r0", "r1"}
    folder = campaign.root / "results/evidence" / campaign.receipt("two/start_server.json")["session_id"]
    routed = json.loads((folder / "sustained/soak_c4/w1/replicas.json").read_text())
    assert all(member["routed"] > 0 for member in routed["members"].values()), routed


def test_a_flag_that_vllm_ignores_is_caught(campaign: Checkout) -> None:
    """The engine's own configuration says otherwise than the campaign asked: a mismatch, and no row is publishable."""
    readback = evidence(campaign, "one", "config_readback.json")
    assert readback["mismatches"] == [{"key": IGNORED, "asked": False, "read": True}]
    with (campaign.root / "results/campaign_tiny/extracts/rows.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["leg"] == "one"]
    assert rows
    for row in rows:
        assert row["publishable"] == "false"
        assert "config_readback:fail" in json.loads(row["reasons"])


def test_requests_gates_and_charts(campaign: Checkout) -> None:
    """Every request ends ok, every gate task has an outcome that is no failure to run, every chart is verified."""
    with (campaign.root / "results/campaign_tiny/extracts/rows.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * (1 + 2)
    for row in rows:
        assert row["n_ok"] == row["n_issued"] != "0", row["row_id"]
    for leg in ("one", "two"):
        for when in ("gates_before", "gates_after"):
            kinds = evidence(campaign, leg, f"{when}/summary.json")["kinds"]
            for kind in kinds.values():
                assert kind["counts"]["could_not_run"] == kind["counts"]["unavailable"] == 0
            assert sum(kind["n"] for kind in kinds.values()) == 7
    charts = sorted((campaign.root / "results/campaign_tiny/charts").glob("*.svg"))
    assert len(charts) == 4
    for chart in charts:
        audit = campaign.assay("audit", str(chart))
        assert (audit.returncode, audit.stdout.strip().splitlines()[-1]) == (0, "VERIFIED"), audit.stdout
