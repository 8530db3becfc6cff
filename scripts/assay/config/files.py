"""YAML files checked against their JSON schema; every complaint names file, key and what would be right."""

from __future__ import annotations

import difflib
import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from assay.errors import BadInput


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML would keep the last of two equal keys in silence.

    Looked for where a mapping is composed: a merge (`<<: *other`) writes into its node later, and a key of one's
    own may stand over one that it brings.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            if (key := (key_node.tag, key_node.value)) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return node


def read_yaml(path: Path) -> Any:
    """Read one YAML document. BadInput when it is missing, not YAML, or has a key twice."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        near = sorted(other.name for other in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        raise BadInput("no such file", where=path, hint=f"there are: {', '.join(near) or 'none'}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", where=path) from error
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise BadInput(f"not YAML: {error.problem}", where=path, key=f"line {line}") from error


@cache
def schema(root: Path, name: str) -> dict[str, Any]:
    """The schema ``workflow/schemas/<name>.schema.json`` of a checkout."""
    loaded: dict[str, Any] = json.loads((root / "workflow" / "schemas" / f"{name}.schema.json").read_text())
    return loaded


def _key_path(error: ValidationError) -> str:
    text = ""
    for part in error.absolute_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _explain(error: ValidationError) -> tuple[str, str | None, str | None]:
    """(key, message, hint) of one schema violation, in words for the person who wrote the file."""
    key, rule = _key_path(error), error.validator
    rules: dict[str, Any] = dict(error.schema) if isinstance(error.schema, dict) else {}
    wanted: Any = error.validator_value
    if rule == "additionalProperties" and isinstance(error.instance, dict):
        known = list(rules.get("properties", {}))
        extra = [name for name in error.instance if name not in known]
        if extra:
            name = str(extra[0])
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            return (f"{key}.{name}" if key else name), "unknown key", hint
    if rule == "required" and isinstance(error.instance, dict):
        missing = [name for name in wanted if name not in error.instance]
        return key or "(top)", f"key {missing[0]!r} is missing", rules.get("description")
    if rule == "type":
        names = wanted if isinstance(wanted, str) else " or ".join(wanted)
        return key, f"{error.instance!r} is of the wrong type", f"it must be {names}"
    if rule == "enum":
        near = difflib.get_close_matches(str(error.instance), [str(v) for v in wanted], n=1)
        hint = f"one of {', '.join(map(str, wanted))}" + (f"; did you mean {near[0]!r}?" if near else "")
        return key, f"{error.instance!r} is not known", hint
    return key, error.message[:300], rules.get("description")


def validate(value: Any, schema_object: dict[str, Any], where: Path) -> None:
    """Check ``value``; the first violation, by place in the file, becomes BadInput."""
    errors = sorted(
        Draft202012Validator(schema_object).iter_errors(value),
        key=lambda e: [str(p) for p in e.absolute_path],
    )
    if errors:
        # Of "any of these forms" the branch that came closest says most.
        worst = errors[0]
        if worst.context:
            worst = max(worst.context, key=lambda e: len(e.absolute_path))
        key, message, hint = _explain(worst)
        raise BadInput(message or worst.message, where=where, key=key, hint=hint)


def read_config(root: Path, kind: str, path: Path) -> dict[str, Any]:
    """Read ``path`` and validate it as a config of ``kind`` (the name of its schema)."""
    value = read_yaml(path)
    validate(value, schema(root, f"config/{kind}"), path)
    assert isinstance(value, dict)
    return value
