"""Strict JSON: the complete text must be one JSON value as it stands; nothing is searched or repaired."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from assay.gates.reasons import GateReason

MAX_DEPTH = 100


class NotStrict(Exception):
    """The text is not strict JSON; ``reason`` says how."""

    def __init__(self, reason: GateReason, detail: str):
        self.reason, self.detail = reason, detail
        super().__init__(detail)


def parse_strict(text: str, *, cut: bool = False) -> Any:
    """The JSON value that ``text`` is. Raises NotStrict with the first fault found.

    ``cut`` says that the server ended the answer at its output limit: what does not parse is then called
    truncated, not prose. Space around the value is JSON and allowed; a fence, prose, a key named twice,
    NaN, Infinity and numbers beyond a double are not.
    """
    if not text.strip():
        raise NotStrict(GateReason.EMPTY, "the content is empty")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_pairs,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_finite_int,
        )
    except RecursionError as error:
        raise NotStrict(GateReason.TOO_DEEP, "nested too deeply") from error
    except json.JSONDecodeError as error:
        reason = _why_not(text, error, cut)
        raise NotStrict(reason, f"{error.msg} at character {error.pos}") from error
    if _is_deeper(value, MAX_DEPTH):
        raise NotStrict(GateReason.TOO_DEEP, f"nested more than {MAX_DEPTH} levels")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    """Level by level, not by recursion: what is read next must not run into the recursion limit."""
    level = [value]
    for _ in range(depth):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
        ]
        if not level:
            return False
    return True


def _why_not(text: str, error: json.JSONDecodeError, cut: bool) -> GateReason:
    body = text.strip()
    if body.startswith("```"):
        return GateReason.FENCE
    if body[0] in "{[":
        if error.msg == "Extra data":
            return GateReason.PROSE_AROUND
        if cut or _is_unfinished(text, error):
            return GateReason.TRUNCATED
        return GateReason.NOT_JSON
    if "```" in body:
        return GateReason.FENCE
    return GateReason.PROSE_AROUND if _holds_value(body) else GateReason.NOT_JSON


def _is_unfinished(text: str, error: json.JSONDecodeError) -> bool:
    """The text ended where the value was still going on."""
    if error.pos >= len(text.rstrip()):
        return True
    return error.msg.startswith("Unterminated string")


def _holds_value(text: str) -> bool:
    """An object or array stands somewhere inside: what a lenient reader would have picked out."""
    decoder = json.JSONDecoder()
    tries = 0
    for position, char in enumerate(text):
        if char not in "{[":
            continue
        tries += 1
        if tries > 50:  # each try may read on to the end: bounded, since the text is hostile
            return False
        try:
            decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            continue
        return True
    return False


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotStrict(GateReason.DUPLICATE_KEY, f"key {twice[:80]!r} stands twice")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise NotStrict(GateReason.NAN, f"{name} is no JSON number")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise NotStrict(GateReason.NAN, "a number no double can hold")
    return value


def _finite_int(digits: str) -> int:
    # 309 digits are beyond a double; Python's own limit on int() would raise another error
    if len(digits) > 309:
        raise NotStrict(GateReason.NAN, "a number no double can hold")
    return int(digits)


def same_value(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, 3 equals 3.0, arrays in order, objects by key."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(same_value(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
