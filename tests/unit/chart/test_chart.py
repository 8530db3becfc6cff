"""Charts: stable bytes, nothing dropped, hostile text harmless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from assay.chart import render_chart
from assay.chart.render import draw_bytes, read_identity
from assay.chart.style import clean, number
from assay.errors import BadInput, Incomplete
from assay.extract import chart_ids, extract_chart_data
from make_requests import Shape
from make_results import Scene


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scene = Scene(tmp_path_factory.mktemp("chart"))
    scene.shapes["base/chat_c2/r2"] = Shape(failed=(1,))
    scene.states["base/chat_c2/r3"] = ("invalid", ["client_bound"])
    return extract_chart_data(scene.build())


@pytest.mark.parametrize("form", ["svg", "png"])
@pytest.mark.parametrize("chart_id", ["throughput", "ttft", "arms", "sustained"])
def test_the_same_entry_gives_the_same_bytes(data: dict[str, Any], chart_id: str, form: str) -> None:
    """Drawn twice, and under a user's own matplotlib settings, a chart has the same bytes and no date."""
    entry = data["charts"][chart_id]
    first = draw_bytes(entry, form)
    with mpl.rc_context({"font.size": 30, "axes.grid": True, "svg.hashsalt": "other"}):
        assert draw_bytes(entry, form) == first
    assert b"<dc:date>" not in first


def test_dots_keep_flagged_rows(data: dict[str, Any]) -> None:
    """A failing and an invalid repeat stay in the entry as dots; the invalid one is no part of the median."""
    point = data["charts"]["throughput"]["panels"][0]["series"][0]["points"][0]
    flags = {dot["row_id"]: (dot["publishable"], dot["invalid"]) for dot in point["dots"]}
    assert flags == {
        "base/chat_c2/r1": (True, False),
        "base/chat_c2/r2": (False, False),
        "base/chat_c2/r3": (False, True),
    }
    assert point["n"] == 2
    notes = " ".join(data["charts"]["throughput"]["notes"])
    assert "2 of 6 rows are not publishable" in notes
    assert "client_bound" in notes


def test_hostile_text_stays_text(data: dict[str, Any], tmp_path: Path) -> None:
    """A title with markup, math and control characters is drawn as plain bounded text in well-formed XML."""
    hostile = "<script>alert(1)</script> $\\frac{1}{$ \x1b[31m\u202e" + "x" * 10_000
    entry = json.loads(json.dumps(data["charts"]["throughput"]))
    entry |= {"title": hostile, "subtitle": hostile, "notes": [hostile]}
    entry["panels"][0]["series"][0]["label"] = hostile
    out = tmp_path / "chart.svg"
    render_chart({"charts": {"throughput": entry}}, "throughput", out)
    tree = ElementTree.fromstring(out.read_bytes())
    assert not [element for element in tree.iter() if element.tag.endswith("script")]
    assert "\u202e" not in clean(hostile)
    assert len(clean(hostile)) <= 160


def test_an_empty_campaign_still_draws(data: dict[str, Any]) -> None:
    """A chart without any value says that nothing was measured instead of failing."""
    entry = json.loads(json.dumps(data["charts"]["throughput"]))
    for series in entry["panels"][0]["series"]:
        series["points"] = []
    assert draw_bytes(entry, "svg")
    windows = data["charts"]["sustained"] | {"groups": []}
    card = data["charts"]["arms"] | {"groups": [], "comparisons": []}
    assert draw_bytes(windows, "png")
    assert draw_bytes(card, "png")


def test_unknown_chart_and_foreign_file(data: dict[str, Any], tmp_path: Path) -> None:
    """An unknown chart id is bad input; a picture that is not ours carries no identity."""
    with pytest.raises(BadInput, match="throughput"):
        render_chart(data, "nothing", tmp_path / "x.svg")
    for name, content in (("a.svg", b"<svg><metadata></metadata></svg>"), ("a.png", b"\x89PNG\r\n\x1a\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(Incomplete):
            read_identity(tmp_path / name)


def test_chart_ids_follow_the_plan() -> None:
    """A campaign without sustained points has no chart of windows."""
    assert chart_ids({"points": {"a": {"kind": "finite"}}}) == ["throughput", "ttft", "arms"]
    assert chart_ids({"points": {"a": {"kind": "finite"}, "b": {"kind": "sustained"}}})[-1] == "sustained"


def test_numbers_for_people() -> None:
    """Figures are printed with about four digits, and none as a dash."""
    assert [number(v) for v in (3809.2, 278.34, 16.9, 0.794, None)] == [
        "3,809",
        "278.3",
        "16.90",
        "0.794",
        "—",
    ]
