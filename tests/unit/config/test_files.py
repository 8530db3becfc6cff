"""Configuration files: what is wrong is named by file and key, with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.config.campaign import campaign_files, load_campaign
from assay.config.files import read_yaml, validate
from assay.errors import BadInput
from assay.stage.preflight import check_campaign
from assay.stage.specs import Specs

PROJECT = Path(__file__).resolve().parents[3]


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """YAML would keep the last of two equal keys in silence; we name the line."""
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb: 2\na: 3\n")
    with pytest.raises(BadInput, match=r"x\.yaml: line 3: .*'a' stands twice"):
        read_yaml(path)


def test_broken_yaml_names_the_line(tmp_path: Path) -> None:
    """A file that is not YAML is one message with its line."""
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb: [2\n")
    with pytest.raises(BadInput, match=r"x\.yaml: line \d: not YAML"):
        read_yaml(path)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"n": 1, "nme": "x"}, ["nme", "unknown key", "did you mean 'name'"]),
        ({"name": "x"}, ["'n' is missing"]),
        ({"n": "one"}, ["n:", "wrong type", "integer"]),
        ({"n": True}, ["n:", "wrong type"]),
        ({"n": 1, "kind": "fast"}, ["kind", "fast", "one of first, last"]),
        ({"n": 1, "list": [1, "b"]}, ["list[1]", "integer"]),
    ],
)
def test_messages_of_the_schema(value: dict[str, object], words: list[str]) -> None:
    """Each kind of violation says key, fault and remedy in one line."""
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": ["n"],
        "properties": {
            "n": {"type": "integer"},
            "name": {"type": "string"},
            "kind": {"enum": ["first", "last"]},
            "list": {"type": "array", "items": {"type": "integer"}},
        },
    }
    with pytest.raises(BadInput) as caught:
        validate(value, schema, Path("c.yaml"))
    text = str(caught.value)
    assert text.startswith("c.yaml: ")
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize("name", sorted(campaign_files(PROJECT)))
def test_shipped_campaigns_are_valid(name: str) -> None:
    """Every campaign that ships validates, and each of its stages has a spec."""
    campaign = load_campaign(campaign_files(PROJECT)[name], PROJECT)
    check_campaign(campaign)
    assert Specs(campaign).plan()["name"] == name


def test_the_spec_of_a_point_holds_names_not_titles() -> None:
    """Swapping two settings changes a point's spec; a title changes no spec."""
    from assay.digest import canonical_json
    from assay.vocab import Stage

    campaign = load_campaign(campaign_files(PROJECT)["campaign_local"], PROJECT)
    before = canonical_json(Specs(campaign).stage(Stage.RUN_FINITE, "base", "chat_c4", 1))
    campaign.config["arms"]["base"]["title"] = "another title"
    campaign.config["title"] = "another title"
    assert canonical_json(Specs(campaign).stage(Stage.RUN_FINITE, "base", "chat_c4", 1)) == before
    point = campaign.config["points"]["chat_c4"]
    point["requests"], point["concurrency"] = point["concurrency"], point["requests"]
    assert canonical_json(Specs(campaign).stage(Stage.RUN_FINITE, "base", "chat_c4", 1)) != before


def test_enough_prompts_ship() -> None:
    """At least 64 distinct chat prompts to measure with, none of them used for warming up."""
    from assay.stage.prompts import read_pool

    campaign = load_campaign(campaign_files(PROJECT)["campaign_local"], PROJECT)
    pools = {name: read_pool(PROJECT, campaign.workloads[name]) for name in ("chat", "chat_warm_up")}
    texts = {name: {str(prompt.messages) for prompt in pool} for name, pool in pools.items()}
    assert len(texts["chat"]) >= 64
    assert not texts["chat"] & texts["chat_warm_up"]
