"""YAML files checked against their JSON schema; every complaint names file, key and what would be right."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError

from assay.errors import BadInput

NUMBER_LIMIT = 1e12
"""No setting is larger; what is, is a slip of the hand that would run for ever or overflow."""
_DEPTH_LIMIT, _NODES_LIMIT = 32, 100_000
_SHOWN_CHARS = 80
_CONSTRUCTION = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What the library lets through when a scalar is not what its tag or its form says."""

_OTHER_BASE = re.compile(r"[-+]?(0[0-9_]+$|[0-9_]+:)")
"""Numbers that the library reads as YAML 1.1 has them: 010 to the base 8, 1:30 to the base 60."""


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

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except _CONSTRUCTION as error:
            kind = str(node.tag).rpartition(":")[2]
            text = f"{shown(node.value)} is no {kind}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from error
        if isinstance(value, int | float) and _OTHER_BASE.match(str(node.value)):
            text = f"{shown(node.value)} would be read as {value} (write a plain decimal number, or quote it)"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
        return value


def shown(value: Any) -> str:
    """A value as a message quotes it: printable, and bounded."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def read_yaml(path: Path) -> Any:
    """Read one YAML document of plain values. BadInput when it is missing, not YAML, or has a key twice; and
    for keys that are no text and numbers that are none (``check_plain``)."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        near = sorted(other.name for other in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        raise BadInput("no such file", where=path, hint=f"there are: {', '.join(near) or 'none'}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadInput(f"cannot be read: {why}", where=shown(str(path)).strip("'")) from error
    try:
        value = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        about = "" if isinstance(error, yaml.constructor.ConstructorError) else "not YAML: "
        raise BadInput(f"{about}{_one_line(error.problem)}", where=path, key=f"line {line}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        fault = f"the character {error.character!r} may not stand in it"
        raise BadInput(f"not YAML: {fault}", where=path, key=f"line {line}") from error
    except RecursionError:
        raise BadInput("not YAML that can be used: nested too deeply", where=path) from None
    except (yaml.YAMLError, *_CONSTRUCTION) as error:
        raise BadInput(f"not YAML: {_one_line(error)}", where=path) from error
    check_plain(value, path)
    return value


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())[:200]


def check_plain(value: Any, where: Path) -> None:
    """Text keys, finite numbers of a sane size, no dates, no bytes, no value inside itself. BadInput names the
    key."""
    for number, (place, one) in enumerate(_walk(value, "", 0, where)):
        if number > _NODES_LIMIT:
            raise BadInput(f"more than {_NODES_LIMIT} values", where=where)
        key = place or None
        if isinstance(one, bool) or one is None:
            continue
        if isinstance(one, int | float):
            if isinstance(one, float) and not math.isfinite(one):
                raise BadInput(f"{one} is no number to use", where=where, key=key, hint="a finite number")
            if abs(one) > NUMBER_LIMIT:
                raise BadInput(
                    "the number is too large", where=where, key=key, hint=f"at most {NUMBER_LIMIT:.0e}"
                )
        elif isinstance(one, str):
            if any(ord(char) < 32 and char not in "\n\t" for char in one):
                raise BadInput(f"{shown(one)} has control characters", where=where, key=key)
            if any("\ud800" <= char <= "\udfff" for char in one):
                raise BadInput(
                    f"{shown(one)} has half a character",
                    where=where,
                    key=key,
                    hint="write the whole one, no surrogate",
                )
        elif not isinstance(one, dict | list):
            raise BadInput(
                f"{shown(one)} is a {type(one).__name__}",
                where=where,
                key=key,
                hint="quote it to make it text",
            )


def _walk(value: Any, place: str, depth: int, where: Path) -> Iterator[tuple[str, Any]]:
    """(key path, value) of everything in a document; a document that contains itself is too deep."""
    if depth > _DEPTH_LIMIT:
        raise BadInput("nested too deeply", where=where, key=place[:_SHOWN_CHARS])
    yield place, value
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str) or not name.isprintable():
                raise BadInput(
                    f"the key {shown(name)} is no plain text",
                    where=where,
                    key=place or None,
                    hint="quote it" if not isinstance(name, str) else None,
                )
            yield from _walk(inner, f"{place}.{name}" if place else name, depth + 1, where)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{place}[{index}]", depth + 1, where)


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
        known, patterns = list(rules.get("properties", {})), list(rules.get("patternProperties", {}))
        extra = [
            name for name in error.instance if name not in known and not any(map(_matches(name), patterns))
        ]
        if extra:
            name = str(extra[0])
            place = f"{key}.{shown(name)[1:-1]}" if key else shown(name)[1:-1]
            if patterns and not known:
                about = f"{rules['description']}; " if "description" in rules else ""
                return place, "is not a name that may stand here", f"{about}names match {patterns[0]}"
            near = difflib.get_close_matches(name[:200], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
            return place, "unknown key", hint
    if rule == "required" and isinstance(error.instance, dict):
        missing = [name for name in wanted if name not in error.instance]
        return key or "(top)", f"key {missing[0]!r} is missing", rules.get("description")
    if rule == "type":
        names = wanted if isinstance(wanted, str) else " or ".join(wanted)
        return key, f"{shown(error.instance)} is of the wrong type", f"it must be {names}"
    if rule == "enum":
        near = difflib.get_close_matches(str(error.instance)[:200], [str(v) for v in wanted], n=1)
        hint = f"one of {', '.join(map(str, wanted))}" + (f"; did you mean {near[0]!r}?" if near else "")
        return key, f"{shown(error.instance)} is not known", hint
    if rule in ("maxItems", "maxProperties") and isinstance(error.instance, list | dict):
        return key, f"{len(error.instance)} entries are too many", f"at most {wanted}"
    message = error.message.replace(repr(error.instance), shown(error.instance))
    return key, message[:300], rules.get("description")


def _matches(name: str) -> Any:
    return lambda pattern: re.search(pattern, name) is not None


def _pattern(_: Any, pattern: str, instance: Any, __: Mapping[str, Any]) -> Iterator[ValidationError]:
    """As the specification has it: ``$`` is the end of the text, not a place before a last line break."""
    if isinstance(instance, str) and re.search(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), instance) is None:
        yield ValidationError(f"{shown(instance)} does not match {pattern!r}")


def _is_integer(_: Any, instance: Any) -> bool:
    """3.0 is none: what reads a setting counts with it."""
    return isinstance(instance, int) and not isinstance(instance, bool)


_Validator = validators.extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {"pattern": _pattern},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


def _closest(error: ValidationError) -> ValidationError:
    """Of "any of these forms", the fault in the form that was meant: of the branches whose constants fit,
    if there is one, the fault that lies deepest."""
    if not error.context:
        return error
    other = {one.schema_path[0] for one in error.context if one.validator == "const"}
    meant = [one for one in error.context if one.schema_path[0] not in other]
    return max(meant or error.context, key=lambda one: len(one.absolute_path))


def validate(value: Any, schema_object: dict[str, Any], where: Path) -> None:
    """Check ``value``; the first violation, by place in the file, becomes BadInput."""
    errors = sorted(
        _Validator(schema_object).iter_errors(value),
        key=lambda e: [str(p) for p in e.absolute_path],
    )
    if errors:
        key, message, hint = _explain(worst := _closest(errors[0]))
        raise BadInput(message or worst.message, where=where, key=key, hint=hint)


def read_config(root: Path, kind: str, path: Path) -> dict[str, Any]:
    """Read ``path`` and validate it as a config of ``kind`` (the name of its schema)."""
    value = read_yaml(path)
    validate(value, schema(root, f"config/{kind}"), path)
    assert isinstance(value, dict)
    return value
