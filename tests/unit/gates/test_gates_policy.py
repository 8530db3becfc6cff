"""Gate policies: files that say what is asked and why so many must pass."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from assay.errors import BadInput
from assay.gates import load_policy, make_policy
from assay.gates.needles import build_haystack
from assay.gates.sandbox import Limits
from assay.gates.strict_json import same_value
from assay.gates.tasks import DATA_ROOT, read_data
from assay.vocab import GateKind

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted((ROOT / "config" / "gates").glob("*.yaml"))


def local() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "config" / "gates" / "local.yaml").read_text())
    return loaded


def write(path: Path, spec: Any) -> Path:
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_policies_load(path: Path) -> None:
    """Every policy we ship is valid, has its file's name, and says why each threshold is what it is."""
    policy = load_policy(path)
    assert policy.name == path.stem
    assert policy.tasks
    assert len({task.id for task in policy.tasks}) == len(policy.tasks)
    assert all(threshold.reason and threshold.source for threshold in policy.thresholds.values())


def test_the_standard_counts() -> None:
    """24 JSON and 8 tool tasks; three keys at three depths, at one length or three; code five times."""
    counts = {
        path.stem: Counter(task.kind for task in load_policy(path).tasks)
        for path in SHIPPED
        if path.stem in ("standard", "long_256k")
    }
    for name, needles in (("standard", 9), ("long_256k", 27)):
        assert counts[name][GateKind.JSON] == 24
        assert counts[name][GateKind.TOOL] == 8
        assert counts[name][GateKind.NEEDLE] == needles
    code = [
        task for task in load_policy(ROOT / "config/gates/standard.yaml").tasks if task.kind is GateKind.CODE
    ]
    assert {task.check["runs"] for task in code} == {5}


def test_task_data_is_sound() -> None:
    """Expected values meet their own schemas, ids are unique, every file has a licence."""
    for item in read_data("json_tasks")["tasks"]:
        jsonschema.Draft202012Validator.check_schema(item["schema"])
        jsonschema.validate(item["expected"], item["schema"])
    for item in read_data("tool_tasks")["tasks"]:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in item["tools"]}
        for call in item["expected_calls"]:
            jsonschema.validate(call["arguments"], schemas[call["name"]])
    for path in DATA_ROOT.glob("*.json"):
        data = json.loads(path.read_text())
        assert data["licence"] in ("CC0-1.0", "Apache-2.0")
        ids = [item["id"] for item in data.get("tasks", [])]
        assert len(set(ids)) == len(ids)


def test_the_standard_tasks_cover_what_a_gate_must_cover() -> None:
    """JSON: each category and response format; tools: each choice, parallel calls, one without a call."""
    items = [item for item in read_data("json_tasks")["tasks"] if item["set"] == "standard"]
    assert {item["category"] for item in items} == {
        "nested",
        "arrays",
        "unicode",
        "escapes",
        "numbers",
        "enumerations",
        "long values",
    }
    assert {item["response_format"] for item in items} == {"none", "json_object", "json_schema"}
    tools = [item for item in read_data("tool_tasks")["tasks"] if item["set"] == "standard"]
    choices = Counter("named" if isinstance(item["choice"], dict) else item["choice"] for item in tools)
    assert all(choices[choice] >= 2 for choice in ("named", "required", "auto"))
    assert sum(item["parallel"] for item in tools) >= 1
    assert sum(not item["expected_calls"] for item in tools) == 1


BAD: list[tuple[str, Any, str]] = [
    ("gates.json.treshold", 1, "treshold"),
    ("gates.json.tasks", {"set": "huge"}, "gates.json.tasks.set"),
    ("gates.json.tasks", {"ids": ["no_such_task"]}, "no_such_task"),
    ("gates.json.tasks", {"set": "small", "ids": []}, "gates.json.tasks"),
    ("gates.json.threshold.min_pass_share", 1.5, "min_pass_share"),
    ("gates.json.threshold.min_pass_share", 0, "min_pass_share"),
    ("gates.json.threshold", {"min_pass_share": 1}, "gates.json.threshold"),
    ("gates.needle.lengths_tokens", ["long"], "gates.needle.lengths_tokens"),
    ("gates.needle.depths_percent", [101], "gates.needle.depths_percent"),
    ("gates.needle.style", "hay", "gates.needle.style"),
    ("gates.code.limits.memory", 5, "gates.code.limits.memory"),
    ("request.extra_body.stream", True, "request.extra_body.stream"),
    ("request.timeout_s", -1, "request.timeout_s"),
    ("thinking", {"ask": "no"}, "thinking.ask"),
    ("schema", "assay/gates/2", "schema"),
]


@pytest.mark.parametrize(
    ("key", "value", "named"), BAD, ids=[f"{key}-{number}" for number, (key, *_) in enumerate(BAD)]
)
def test_a_wrong_policy_names_file_and_key(key: str, value: Any, named: str, tmp_path: Path) -> None:
    """One wrong key gives one message with the file and that key."""
    spec = local()
    place = spec
    *parents, last = key.split(".")
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    path = write(tmp_path / "wrong.yaml", spec)
    with pytest.raises(BadInput) as caught:
        load_policy(path)
    assert "wrong.yaml" in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "- a\n", "name: [\n", "schema: assay/gates/1\nname: a\nname: b\ngates: {}\n"]
)
def test_a_file_that_is_no_policy_is_bad_input(text: str, tmp_path: Path) -> None:
    """An empty file, a list, broken YAML and a key that stands twice are bad input with the file's name."""
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"odd\.yaml"):
        load_policy(path)


def test_a_missing_file_is_bad_input(tmp_path: Path) -> None:
    """A policy that is not there is bad input and named."""
    with pytest.raises(BadInput, match=r"none\.yaml"):
        load_policy(tmp_path / "none.yaml")


def test_digests_tell_questions_from_thresholds(tmp_path: Path) -> None:
    """Another threshold changes the policy's digest and not the tasks'; another question changes both."""
    base = make_policy(local(), tmp_path)
    lenient, other = local(), local()
    lenient["gates"]["json"]["threshold"]["min_pass_share"] = 0.5
    other["gates"]["needle"]["seed"] = 2
    assert make_policy(local(), tmp_path / "elsewhere").sha256 == base.sha256
    assert make_policy(lenient, tmp_path).tasks_sha256 == base.tasks_sha256
    assert make_policy(lenient, tmp_path).sha256 != base.sha256
    assert make_policy(other, tmp_path).tasks_sha256 != base.tasks_sha256
    for key, value in (("temperature", 0.5), ("seed", 3), ("extra_body", {})):
        changed = copy.deepcopy(local())
        changed["request"][key] = value
        assert make_policy(changed, tmp_path).tasks_sha256 != base.tasks_sha256


def test_defaults_of_the_sandbox_are_those_of_the_schema() -> None:
    """The limits the schema documents as defaults are the ones that are used."""
    schema = json.loads((ROOT / "workflow/schemas/config/gates.schema.json").read_text())
    limits = schema["properties"]["gates"]["properties"]["code"]["properties"]["limits"]["properties"]
    for name, described in limits.items():
        assert f"; {getattr(Limits(), name):g} when not given" in described["description"]


def test_tasks_do_not_depend_on_where_they_are_built() -> None:
    """Two loads of a policy give equal tasks, down to the needle's filler: an audit can make them again."""
    one, two = (load_policy(ROOT / "config/gates/local.yaml") for _ in range(2))
    assert same_value([task.as_record() for task in one.tasks], [task.as_record() for task in two.tasks])
    spec = next(task.check for task in one.tasks if task.kind is GateKind.NEEDLE)
    hays = [
        build_haystack(spec, read_data("filler"), lambda m: (len(m[0]["content"]) // 4, "t"))
        for _ in range(2)
    ]
    assert hays[0] == hays[1]
