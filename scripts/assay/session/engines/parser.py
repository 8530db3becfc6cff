"""An engine's own command-line parser, as data captured from its released wheel: checks flags, writes argv.

Flags go by the parser's long names with ``_`` for ``-``: ``max_model_len`` is ``--max-model-len``. The data lies in
parsers/<engine>-<version>.json; `assay.session.engines.capture` makes it and documents its entries.
"""

from __future__ import annotations

import difflib
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from assay.errors import BadInput

FOLDER = Path(__file__).with_name("parsers")
SHOWN_CHOICES = 24
LIMITS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minimum", operator.lt, "at least"),
    ("above", operator.le, "above"),
    ("maximum", operator.gt, "at most"),
    ("below", operator.ge, "below"),
)
WORDS = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "text", "null": "null"}


@dataclass(frozen=True)
class Place:
    """Where a value stands in a campaign file, and the parser that judges it."""

    where: Path
    key: str
    whose: str

    def under(self, name: str) -> Place:
        return Place(self.where, f"{self.key}.{name}", self.whose)

    def refuse(self, message: str, hint: str | None) -> BadInput:
        return BadInput(message, where=self.where, key=self.key, hint=hint)


@dataclass(frozen=True)
class Parser:
    """The flags of one released version of an engine."""

    engine: str
    version: str
    wheel: Mapping[str, str]
    flags: Mapping[str, dict[str, Any]]
    configs: Mapping[str, dict[str, dict[str, Any]]]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.version}"


def versions(engine: str) -> list[str]:
    """The captured versions of an engine, oldest first."""
    found = [path.stem.removeprefix(f"{engine}-") for path in FOLDER.glob(f"{engine}-*.json")]
    return sorted(found, key=lambda text: [int(part) for part in text.split(".") if part.isdigit()])


@cache
def load_parser(engine: str, version: str) -> Parser:
    """The captured parser; FileNotFoundError for a version that was not captured."""
    data = json.loads((FOLDER / f"{engine}-{version}.json").read_text())
    return Parser(engine, version, data["wheel"], data["flags"], data["configs"])


def captured(engine: str, version: str | None, where: Path, key: str) -> Parser:
    """The parser of an arm's ``engine_version``. BadInput lists what is captured."""
    known = versions(engine)
    if version is None or version not in known:
        said = "is not given" if version is None else f"{version!r} is not captured"
        raise BadInput(
            f"the version of {engine} {said}", where=where, key=key, hint=f"one of {', '.join(known)}"
        )
    return load_parser(engine, version)


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """A hint: the closest known name, or where to look."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"see the {what} of this version"


def check(
    parser: Parser, flags: Mapping[str, Any], where: Path, key: str, reserved: Mapping[str, str] | None = None
) -> None:
    """BadInput for the first flag that the parser would not take.

    ``reserved``: flags that a campaign may not set, with the reason.
    """
    aliases = {
        alias.lstrip("-").replace("-", "_"): name
        for name, flag in parser.flags.items()
        for alias in flag.get("aliases", [])
    }
    for name, value in flags.items():
        place = Place(where, f"{key}.{name}", parser.name)
        if reserved and name in reserved:
            raise place.refuse("cannot be set here", reserved[name])
        flag = parser.flags.get(name)
        if flag is None:
            plain = name.lstrip("-").replace("-", "_")
            plain = aliases.get(plain, plain)
            hint = f"write {plain!r}" if plain in parser.flags else nearest(plain, parser.flags, "flags")
            raise place.refuse(f"{parser.name} has no such flag", hint)
        _check_flag(parser, flag, value, place)


def _check_flag(parser: Parser, flag: dict[str, Any], value: Any, place: Place) -> None:
    if flag["form"] == "switch" and value is False and flag.get("default") is True:
        raise place.refuse("cannot be turned off by this flag", flag.get("doc"))
    if value is None:
        raise place.refuse("has no value", "leave the flag out for the engine's default")
    _check_type(parser, flag["types"], value, place, flag.get("doc"))
    choices = flag.get("choices")
    if not choices:
        _check_limits(flag, value, place)
        return
    for item in value if isinstance(value, list) else [value]:
        # An open list has the names the release knows; a path or a qualified name may be a plug-in's.
        plug_in = flag.get("open") and isinstance(item, str) and ("." in item or "/" in item)
        if item not in choices and not plug_in and not (flag.get("open") and item in ("", "none")):
            near = difflib.get_close_matches(str(item), [str(choice) for choice in choices], n=1)
            more = f"; did you mean {near[0]!r}?" if near else ""
            raise place.refuse(f"{item!r} is not a choice of {place.whose}", _one_of(choices) + more)
    _check_limits(flag, value, place)


def _one_of(choices: list[Any]) -> str:
    shown = ", ".join(str(choice) for choice in choices[:SHOWN_CHOICES])
    return f"one of {shown}" + (
        f" and {len(choices) - SHOWN_CHOICES} more" if len(choices) > SHOWN_CHOICES else ""
    )


def _check_limits(limits: Mapping[str, Any], value: Any, place: Place) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    for word, wrong, said in LIMITS:
        if word in limits and wrong(value, limits[word]):
            raise place.refuse(f"{value!r} is out of range", f"{said} {limits[word]}")


def _check_type(parser: Parser, types: list[Any], value: Any, place: Place, doc: str | None) -> None:
    """BadInput when no entry of ``types`` takes the value; the keys of a config object are looked into."""
    if any(_takes(entry, value) for entry in types):
        return
    configs = [entry["config"] for entry in types if isinstance(entry, dict) and "config" in entry]
    if isinstance(value, dict) and configs:
        _check_config(parser, configs[0], value, place)
        return
    lists = [entry["list"] for entry in types if isinstance(entry, dict) and "list" in entry]
    if isinstance(value, list) and lists:
        for number, item in enumerate(value):
            _check_type(parser, lists[0], item, place.under(str(number)), doc)
        return
    known = [choice for entry in types if isinstance(entry, dict) for choice in entry.get("literal", [])]
    known += [name for entry in types if isinstance(entry, dict) for name in entry.get("enum", [])]
    if known and type(value) in {type(choice) for choice in known}:
        near = difflib.get_close_matches(str(value), [str(choice) for choice in known], n=1)
        more = f"; did you mean {near[0]!r}?" if near else ""
        raise place.refuse(f"{value!r} is not a choice of {place.whose}", _one_of(known) + more)
    wanted = " or ".join(_in_words(entry) for entry in types if entry != "null")
    raise place.refuse(f"{value!r} is of the wrong type", wanted + (f": {doc}" if doc else ""))


def _in_words(entry: Any) -> str:
    if isinstance(entry, str):
        return WORDS.get(entry, entry)
    if "config" in entry:
        return f"an object ({entry['config']})"
    return "a list" if "list" in entry else _one_of(entry.get("literal") or entry.get("enum", []))


def _takes(entry: Any, value: Any) -> bool:
    """Does one plain entry take the value? bool is an int to Python, and not to an engine."""
    if isinstance(entry, dict):
        if "literal" in entry:
            return any(value == choice and type(value) is type(choice) for choice in entry["literal"])
        if "enum" in entry:
            return isinstance(value, str) and value.upper() in entry["enum"]
        return False
    if isinstance(value, bool):
        return entry in ("bool", "any")
    plain: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "dict": dict, "null": type(None)}
    return entry == "any" or (entry in plain and isinstance(value, plain[entry]))


def _check_config(parser: Parser, name: str, value: dict[str, Any], place: Place) -> None:
    """The keys of an object against a config class, which takes no others."""
    fields = parser.configs[name]
    for key, item in value.items():
        inner = place.under(str(key))
        field = fields.get(str(key))
        if field is None:
            raise inner.refuse(f"{name} of {parser.name} has no such key", nearest(str(key), fields, "keys"))
        _check_type(parser, field["types"], item, inner, field.get("doc"))
        _check_limits(field, item, inner)


def words(parser: Parser, flags: Mapping[str, Any]) -> list[str]:
    """The command-line words of checked flags, by the flags' names: the same flags give the same words."""
    argv: list[str] = []
    for name in sorted(flags):
        value, flag = flags[name], parser.flags[name]
        spelling, form = str(flag["flag"]), flag["form"]
        if isinstance(value, bool) and form in ("switch", "on_off", "bare_or_value"):
            if value:
                argv.append(spelling)
            elif form == "on_off":
                argv.append("--no-" + spelling.removeprefix("--"))
        elif form == "json":
            argv += [spelling, value if isinstance(value, str) else json.dumps(value, sort_keys=True)]
        elif form == "list":
            argv += [spelling, *[_text(item) for item in (value if isinstance(value, list) else [value])]]
        elif form == "append":
            argv += [word for item in value for word in (spelling, _text(item))]
        else:
            argv += [spelling, _text(value)]
    return argv


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) else str(value)
