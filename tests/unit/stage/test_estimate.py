"""What a campaign will take, told from its file and its receipts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from assay.cli.plan import summary
from assay.config.campaign import Campaign, load_campaign
from assay.digest import sha256_of_value
from assay.stage.estimate import FRESH_SESSION, Estimate, state_of
from assay.stage.specs import Specs
from assay.vocab import AROUND_LOAD, Stage

PROJECT = Path(__file__).resolve().parents[3]


def loaded() -> Campaign:
    return load_campaign(PROJECT / "config" / "campaigns" / "campaign_local.yaml", PROJECT)


def test_done_and_would_rerun(tmp_path: Path) -> None:
    """A receipt counts as done only under the specification that it was made with."""
    campaign = loaded()
    spec = Specs(campaign).stage(Stage.START_SERVER, "base")
    path = tmp_path / "start_server.json"
    assert state_of(path, spec) == "to do"
    receipt = {"state": "completed", "spec_sha256": sha256_of_value(spec)}
    path.write_text(json.dumps(receipt))
    assert state_of(path, spec) == "done"
    path.write_text(json.dumps(receipt | {"state": "failed"}))
    assert state_of(path, spec) == "failed"
    assert state_of(path, spec | {"leg": "other"}) == "would rerun"


def write_receipts(results: Path, campaign: Campaign, leg: str) -> Path:
    """A completed receipt of each stage of a leg: its start took 2 s, and each stage after it 10 s."""
    specs, folder = Specs(campaign), results / campaign.name / "receipts" / leg
    paths: dict[Path, tuple[Stage, str | None, int | None]] = {
        folder / f"{stage}.json": (stage, None, None) for stage in AROUND_LOAD
    }
    for name, point in campaign.points.items():
        if point["kind"] == "sustained":
            paths[folder / "sustained" / f"{name}.json"] = (Stage.RUN_SUSTAINED, name, None)
        for repeat in range(1, point.get("repeats", 0) + 1):
            paths[folder / "finite" / name / f"r{repeat}.json"] = (Stage.RUN_FINITE, name, repeat)
    for path, (stage, name, repeat) in paths.items():
        receipt = {
            "state": "completed",
            "session_id": "s1",
            "spec_sha256": sha256_of_value(specs.stage(stage, leg, name, repeat)),
            "t_start_utc": "2026-11-30T15:00:00.000Z",
            "t_end_utc": "2026-11-30T15:00:10.000Z",
            "measured": {"ready_after_s": 2.0} if stage is Stage.START_SERVER else {},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(receipt))
    return folder


def test_a_rerun_is_told_with_the_session_that_it_needs(tmp_path: Path) -> None:
    """One repeat to do, and its server gone: start, gates and warm-up again by what they took, and gates after."""
    campaign = loaded()
    folder = write_receipts(tmp_path, campaign, "base")
    session = tmp_path / "evidence" / "s1" / "session.json"
    session.parent.mkdir(parents=True)
    session.write_text(json.dumps({"state": "stopped"}))
    leg = campaign.legs()[0]
    chat_c4 = next(one for one in Estimate(campaign, tmp_path).of_leg(leg) if one.point_id == "chat_c4")
    assert (chat_c4.n_jobs, chat_c4.wall_s, chat_c4.source) == (3, 30.0, "measured")

    def told() -> dict[str, tuple[float | None, str | None, dict[str, int]]]:
        lines = Estimate(campaign, tmp_path).of_leg(leg)
        return {line.stage: (line.wall_s, line.source, dict(line.states)) for line in lines}

    before = told()
    assert before["start_server"] == (2.0, "measured", {"done": 1})
    assert (
        before["gate_before"] == before["warm_up"] == before["gate_after"] == (10.0, "measured", {"done": 1})
    )
    assert before["run_sustained"] == (10.0, "measured", {"done": 1})
    assert FRESH_SESSION not in before
    (folder / "finite" / "chat_c4" / "r2.json").unlink()
    after = told()
    assert after[FRESH_SESSION] == (22.0, "measured", {"to do": 1})
    assert after["gate_after"] == (10.0, "measured", {"would rerun": 1})
    session.write_text(json.dumps({"state": "ready"}))
    assert FRESH_SESSION not in told()
    (folder / "warm_up.json").write_text(json.dumps({"state": "completed", "t_start_utc": 7}))
    assert told()["warm_up"] == (None, None, {"would rerun": 1})


def test_what_is_left_has_the_fresh_session_in_it(tmp_path: Path) -> None:
    """The fresh session adds to what is left to do, and to no total of the campaign."""
    campaign = loaded()
    folder = write_receipts(tmp_path, campaign, "base")
    lines = Estimate(campaign, tmp_path).of_leg(campaign.legs()[0])
    assert [json.loads(json.dumps(asdict(line)))["states"] for line in lines] == [
        line.states for line in lines
    ]
    whole = summary(lines, 0, 0, 1)
    (folder / "finite" / "chat_c4" / "r2.json").unlink()
    left = summary(Estimate(campaign, tmp_path).of_leg(campaign.legs()[0]), 0, 0, 1)
    assert (left["wall_s"], left["jobs"]) == (whole["wall_s"], whole["jobs"])
    assert (whole["wall_s_left"], whole["jobs_left"]) == (0.0, 0)
    assert (left["wall_s_left"], left["jobs_left"]) == (pytest.approx(22.0 + 10.0 + 10.0), 2)
