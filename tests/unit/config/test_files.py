"""Configuration files: what is wrong is named by file and key, with what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.cli.campaigns import validate as validate_file
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
        ({"n": 3.0}, ["n:", "3.0 is of the wrong type", "integer"]),
        ({"n": 1, "list": [1, 2.0]}, ["list[1]", "2.0", "integer"]),
        ({"n": 1, "list": [1, 2, 3, 4]}, ["list:", "4 entries are too many", "at most 3"]),
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
            "list": {"type": "array", "maxItems": 3, "items": {"type": "integer"}},
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: x\x01\n", ["line 2", "not YAML"]),
        ("a: 1\nb: \0\n", ["line 2", "not YAML"]),
        ("a: 2026-13-45\n", ["line 1", "2026-13-45"]),
        ("a: !!int foo\n", ["line 1", "'foo' is no int"]),
        ("a: " + "9" * 5000 + "\n", ["line 1", "is no int"]),
        ("a: 0x" + "f" * 5000 + "\n", ["a:", "too large"]),
        ("[" * 3000, ["nested too deeply"]),
        ("a: &a [*a]\n", ["nested too deeply"]),
        ("a:\n  1: 2\n", ["a:", "key 1", "quote it"]),
        ("a: [1, .nan]\n", ["a[1]", "nan", "finite"]),
        ("a: -.inf\n", ["a:", "inf"]),
        ("a: 1000000000001\n", ["a:", "too large"]),
        ("a: 2026-01-02\n", ["a:", "date", "quote it"]),
        ('a: "\\e[31m"\n', ["a:", "control characters"]),
        ('"b\\n": 1\n', ["no plain text"]),
        ('a: "x\\ud800y"\n', ["a:", "half a character"]),
        ("a: 1\nb: 1:30\n", ["line 2", "'1:30' would be read as 90", "plain decimal"]),
        ("a: 1:30.5\n", ["line 1", "would be read as 90.5", "plain decimal"]),
        ("a:\n- 010\n", ["line 2", "'010' would be read as 8", "plain decimal"]),
    ],
)
def test_what_is_no_plain_yaml_is_one_bounded_line(tmp_path: Path, text: str, words: list[str]) -> None:
    """Whatever YAML's own constructors stumble over is BadInput in one short line that names the place."""
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_yaml(path)
    said = str(caught.value).removeprefix(str(path))
    assert all(word in said for word in words), said
    assert "\n" not in said
    assert len(said) < 250


def test_plain_numbers_are_read_as_they_stand(tmp_path: Path) -> None:
    """Zeros at the front of a fraction and quoted texts are no other base."""
    path = tmp_path / "x.yaml"
    path.write_text('[0, -7, 0.5, 05.5, 1_000, "010", "1:30", 127.0.0.1:80]\n')
    assert read_yaml(path) == [0, -7, 0.5, 5.5, 1000, "010", "1:30", "127.0.0.1:80"]


def test_a_name_longer_than_a_file_system_takes(tmp_path: Path) -> None:
    """A path of more than 255 bytes is no file, and no fault of the program."""
    with pytest.raises(BadInput, match="cannot be read"):
        read_yaml(tmp_path / ("é" * 300))


def written(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The small campaign with one change, in a file of its own."""
    config = read_yaml(campaign_files(PROJECT)["campaign_local"])
    change(config)
    path = tmp_path / "campaign_local.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def set_in(*path: Any) -> Callable[[dict[str, Any]], object]:
    """A change that sets the last of ``path`` at the place that the others lead to."""

    def change(config: dict[str, Any]) -> None:
        place: Any = config
        for part in path[:-2]:
            place = place[part]
        place[path[-2]] = path[-1]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_in("comparisons", 0, "declared_factor", ["flags.nope"]), ["declared_factor[0]", "flags.nope"]),
        (
            lambda config: config["comparisons"][0]["declared_factor"].append("flags.spec_type"),
            ["comparisons[0].declared_factor[4]", "'flags.spec_type' stands twice"],
        ),
        (
            set_in("comparisons", 0, "declared_factor", ["flags.parallel", "flags.threads"]),
            ["comparisons[0].declared_factor:", "'flags.parallel' is the same in both arms"],
        ),
        (
            lambda config: config["comparisons"].append(config["comparisons"][0]),
            ["comparisons[1].name", "'lookup_over_base' stands twice"],
        ),
        (set_in("points", "chat_c4", "repeats", 10**9), ["points.chat_c4.repeats", "maximum of 1000"]),
        (set_in("points", "chat_c4", "concurrency", 10**9), ["points.chat_c4.concurrency", "maximum of"]),
        (set_in("points", "chat_c4", "requests", 10**9), ["points.chat_c4.requests", "maximum of"]),
        (set_in("points", "soak_c4", "windows", 10**9), ["points.soak_c4.windows", "maximum of 1000"]),
        (set_in("points", "soak_c4", "pool", 10**9), ["points.soak_c4.pool", "maximum of"]),
        (set_in("points", "soak_c4", "issue_s", 10**9), ["points.soak_c4.issue_s", "maximum of"]),
        (set_in("points", "chat_c4", "max_tokens", 10**9), ["points.chat_c4.max_tokens", "maximum of"]),
        (set_in("warm_up", "requests_per_slot", 10**9), ["warm_up.requests_per_slot", "maximum of"]),
        (set_in("context_tokens", 10**9), ["context_tokens", "maximum of"]),
        (set_in("order", ["base", "lookup"] * 501), ["order:", "1002 entries are too many", "at most 1000"]),
        (
            lambda config: (
                config.update(order=["base", "lookup"] * 100)
                or config["points"]["chat_c4"].update(repeats=1000)
            ),
            ["points:", "200 sessions of 1006 repeats and windows are 201200 loads", "at most 100000"],
        ),
        (set_in("points", "chat_c4", "repeats", 3.0), ["points.chat_c4.repeats", "3.0", "integer"]),
        (set_in("points", "chat_c4", "concurrency", 4.0), ["points.chat_c4.concurrency", "integer"]),
        (set_in("comparisons", 0, "denominator", "lookup"), ["comparisons[0].denominator", "itself"]),
        (set_in("points", "chat_c4", "requests", 3), ["points.chat_c4.requests", "at least 4"]),
        (set_in("points", "synthetic_c4", "max_tokens", 8100), ["points.synthetic_c4.max_tokens", "8192"]),
        (set_in("points", "chat_c1", "max_tokens", 9000), ["points.chat_c1.max_tokens", "8192"]),
        (
            set_in("points", "chat c1", {"kind": "finite"}),
            ["points.chat c1:", "what is measured, by point id", "^[a-z]"],
        ),
        (set_in("arms", "../x", {}), ["arms.../x:", "recipes to measure, by name"]),
        (set_in("points", "chat_c1", "zzz", 1), ["points.chat_c1.zzz", "unknown key"]),
        (set_in("context_tokens", "x" * 5000), ["context_tokens", "wrong type", "…"]),
        (set_in("suite", "local\n"), ["suite", "does not match"]),
        (set_in("gates", "policy", "n" * 300), ["gates.policy", "no gates"]),
        (set_in("arms", "base", "image", "é" * 300), ["arms.base.image", "no image"]),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], words: list[str]
) -> None:
    """A campaign whose parts do not fit each other is refused, and the key itself is named."""
    with pytest.raises(BadInput) as caught:
        load_campaign(written(tmp_path, change), PROJECT)
    said = str(caught.value).removeprefix(str(tmp_path))
    assert all(word in said for word in words), said
    assert len(said) < 500


def test_fewer_slots_than_requests_in_flight_are_a_test_of_queueing(tmp_path: Path) -> None:
    """A server with fewer slots than the load's concurrency is allowed."""
    path = written(tmp_path, set_in("arms", "base", "flags", "parallel", 2))
    assert load_campaign(path, PROJECT).name == "campaign_local"


def test_a_gate_policy_that_cannot_be_asked_is_not_valid(tmp_path: Path) -> None:
    """validate refuses what the gates would refuse: a set of tasks that does not exist."""
    (tmp_path / "workflow").symlink_to(PROJECT / "workflow")
    text = (PROJECT / "config" / "gates" / "short.yaml").read_text().replace("set: small", "set: huge")
    path = tmp_path / "config" / "gates" / "short.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(BadInput, match=r"gates\.json\.tasks\.set: no set 'huge'"):
        validate_file(path)
