"""What no schema can say of a campaign: its parts must fit each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.errors import BadInput

LOADS_LIMIT = 100_000
"""No campaign is larger; each repeat and each set of windows is a job, and the plan would not end."""


def check_consistency(
    config: Mapping[str, Any], workloads: Mapping[str, Mapping[str, Any]], where: Path
) -> None:
    """Points that can be run and comparisons that can be told. BadInput names the key that does not fit.

    Fewer slots of a server than requests in flight are allowed: queueing is a test of its own.
    """
    for point_id, point in config["points"].items():
        check_point(
            point, workloads[point["workload"]], config["context_tokens"], where, f"points.{point_id}"
        )
    check_loads(config, where)
    names: set[str] = set()
    for index, comparison in enumerate(config.get("comparisons", [])):
        if comparison["name"] in names:
            raise BadInput(
                f"{comparison['name']!r} stands twice",
                where=where,
                key=f"comparisons[{index}].name",
                hint="a name of its own",
            )
        names.add(comparison["name"])
        check_comparison(comparison, config["arms"], where, f"comparisons[{index}]")


def check_loads(config: Mapping[str, Any], where: Path) -> None:
    """All repeats and windows of all sessions together are a number that can be planned."""
    each = sum(point.get("repeats") or point["windows"] for point in config["points"].values())
    sessions = len(config["order"])
    if sessions * each > LOADS_LIMIT:
        raise BadInput(
            f"{sessions} sessions of {each} repeats and windows are {sessions * each} loads",
            where=where,
            key="points",
            hint=f"at most {LOADS_LIMIT}",
        )


def check_point(
    point: Mapping[str, Any], workload: Mapping[str, Any], context_tokens: int, where: Path, key: str
) -> None:
    """A finite point reaches its concurrency, and a request fits into the context."""
    if point["kind"] == "finite" and point["requests"] < point["concurrency"]:
        raise BadInput(
            f"{point['requests']} requests never have {point['concurrency']} in flight",
            where=where,
            key=f"{key}.requests",
            hint=f"at least {point['concurrency']}",
        )
    prompt = _prompt_tokens(workload)
    if prompt + point["max_tokens"] > context_tokens:
        asked = f"{prompt} prompt tokens and {point['max_tokens']}" if prompt else str(point["max_tokens"])
        raise BadInput(
            f"{asked} output tokens are more than context_tokens, {context_tokens}",
            where=where,
            key=f"{key}.max_tokens",
            hint="a longer context, or fewer tokens",
        )


def _prompt_tokens(workload: Mapping[str, Any]) -> int:
    """Planned length of the longest prompt; 0 where it is not planned."""
    if workload["kind"] == "conversation":
        return int(workload["first_tokens"] + (workload["turns"] - 1) * workload["turn_tokens"])
    return int(workload.get("prompt_tokens") or 0)


def check_comparison(
    comparison: Mapping[str, Any], arms: Mapping[str, Mapping[str, Any]], where: Path, key: str
) -> None:
    """Two arms, and keys of theirs as the declared factor, in one of which they differ."""
    sides = (comparison["numerator"], comparison["denominator"])
    if sides[0] == sides[1]:
        raise BadInput(
            f"{sides[0]!r} is compared with itself",
            where=where,
            key=f"{key}.denominator",
            hint="another arm than the numerator",
        )
    factors = comparison.get("declared_factor") or []
    differs = False
    for index, factor in enumerate(factors):
        place = f"{key}.declared_factor[{index}]"
        if factor in factors[:index]:
            raise BadInput(f"{factor[:80]!r} stands twice", where=where, key=place, hint="once is enough")
        top, base = ([value for spot in _places(arms[side]) for value in _at(spot, factor)] for side in sides)
        if not top and not base:
            raise BadInput(
                f"neither arm has a key {factor[:80]!r}",
                where=where,
                key=place,
                hint="a key of one of the arms, such as flags.spec_type or replicas",
            )
        differs = differs or top != base
    if factors and not differs:
        raise BadInput(
            f"{factors[0][:80]!r} is the same in both arms",
            where=where,
            key=f"{key}.declared_factor",
            hint="at least one key in which they differ",
        )


def _places(arm: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Where a factor may stand: in the arm, in its flags, and in those of its roles."""
    yield arm
    yield arm["flags"]
    for role in (arm.get("split") or {}).values():
        yield role
        yield role.get("flags") or {}


def _at(value: Any, dotted: str) -> Iterator[Any]:
    """What stands where the dotted path leads. A key may have dots itself."""
    if not isinstance(value, Mapping):
        return
    for name, inner in value.items():
        if dotted == name:
            yield inner
        elif dotted.startswith(f"{name}."):
            yield from _at(inner, dotted[len(name) + 1 :])
