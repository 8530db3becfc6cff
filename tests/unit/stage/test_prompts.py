"""Prompts are drawn once: the same spec gives the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.stage.prompts import draw_prompts, prepare_prompts

CHAT = {"kind": "chat", "file": "p.jsonl", "use": "measured", "name": "chat"}
SYNTHETIC = {"kind": "synthetic", "name": "s", "prompt_tokens": 12}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "config" / "workloads"
    folder.mkdir(parents=True)
    lines = [
        {
            "id": f"p{i}",
            "use": "measured" if i < 5 else "warm_up",
            "messages": [{"role": "user", "content": str(i)}],
        }
        for i in range(7)
    ]
    (folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def spec(workload: dict[str, Any], count: int | None, seed: int = 1, point: str = "x") -> dict[str, Any]:
    more = {"token_ids_from": 10, "token_ids_below": 20} if workload["kind"] == "synthetic" else {}
    return {"point_id": point, "seed": seed, "workload": workload, "count": count, **more}


def test_a_draw_is_a_function_of_its_spec(root: Path) -> None:
    """Equal specs give equal prompts; another seed or another point gives another order."""
    ids = [
        [line["id"] for line in draw_prompts(root, one)[0]]
        for one in (spec(CHAT, 5), spec(CHAT, 5), spec(CHAT, 5, seed=2), spec(CHAT, 5, point="y"))
    ]
    assert ids[0] == ids[1]
    assert sorted(ids[0]) == ["p0", "p1", "p2", "p3", "p4"]
    assert len({tuple(order) for order in ids}) >= 2


def test_a_pool_that_is_too_small_says_so(root: Path) -> None:
    """More requests than prompts: the pool is cycled, and the facts say it; prompts of another use stay out."""
    lines, facts = draw_prompts(root, spec(CHAT, 9))
    assert (len(lines), facts) == (5, {"n_pool": 5, "n_distinct": 5, "cycled": True})
    assert draw_prompts(root, spec(CHAT, 3))[1]["cycled"] is False


def test_synthetic_prompts_have_exactly_the_length(root: Path) -> None:
    """Every synthetic prompt has the declared number of token ids, all inside the vocabulary's plain part."""
    lines, _ = draw_prompts(root, spec(SYNTHETIC, 6))
    assert len({tuple(line["token_ids"]) for line in lines}) == 6
    for line in lines:
        assert len(line["token_ids"]) == 12
        assert all(10 <= token < 20 for token in line["token_ids"])


def test_the_receipt_is_the_same_file_for_the_same_draw(root: Path, tmp_path: Path) -> None:
    """Preparing the same prompts again writes the same bytes, so that nothing after it reruns."""
    asked = {"stage": "prepare_prompts", "campaign": "campaign_x", "prompts": spec(CHAT, 4)}
    digests = []
    for name in ("one", "two"):
        folder = tmp_path / name
        prepare_prompts(root, asked, folder / "x.jsonl", folder / "x.json")
        digests.append(((folder / "x.jsonl").read_bytes(), (folder / "x.json").read_bytes()))
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    "line", ['{"id": 1, "messages": []}', '{"id": "a"}', "not json", '{"messages": [], "id": null}']
)
def test_a_bad_line_is_named(root: Path, line: str) -> None:
    """A line that is no prompt is refused with its file and number."""
    path = root / "config/workloads/p.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BadInput, match=r"p\.jsonl: line 8"):
        draw_prompts(root, spec(CHAT, 2))
