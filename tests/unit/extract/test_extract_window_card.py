"""The card of a campaign that has window sets only."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from assay.config.campaign import campaign_files
from assay.extract import everything
from assay.stage.rehearse import Options
from assay.stage.workflow import Workflow
from make_results import ROOT, Scene


def test_a_campaign_without_finite_points_has_its_pooled_windows_on_the_card(tmp_path: Path) -> None:
    """Each bar of the card is the pooled row of that arm's windows, and the comparison's ratio stands with it."""
    scene = Scene(tmp_path)
    del scene.points["chat_c2"]
    folder = scene.build()
    everything.write(folder)
    card = json.loads((folder / "extracts" / "chart_data.json").read_text())["charts"]["arms"]
    with (folder / "extracts" / "rows.csv").open() as stream:
        pooled = {row["row_id"]: row for row in csv.DictReader(stream) if row["kind"] == "pooled"}
    (group,) = card["groups"]
    assert group["point_id"] == "soak_c2"
    metric = next(one for one in group["metrics"] if one["metric"] == "output_tok_s")
    assert {arm["arm"] for arm in metric["arms"]} == {"base", "fast"}
    for arm in metric["arms"]:
        (dot,) = arm["dots"]
        assert dot["row_id"] == f"{arm['arm']}/soak_c2/pooled"
        assert dot["value"] == float(pooled[dot["row_id"]]["output_tok_s"])
    assert [ratio["point_id"] for ratio in card["comparisons"][0]["ratios"]]


def test_only_charts_that_can_show_something_are_asked_for() -> None:
    """Curves want finite points, window charts window sets, and every campaign has a card."""
    flow = Workflow(ROOT, campaign_files(ROOT), Options(rehearse=True))

    def kinds(name: str) -> set[str]:
        return {Path(path).stem for path in flow.charts(f"{name}_rehearsal")}

    assert kinds("campaign_reliability") == {"arms", "sustained"}
    assert kinds("campaign_256k") == {"arms", "sustained", "throughput", "ttft"}
    assert kinds("campaign_conversation_ramp") == {"arms", "throughput", "ttft"}
