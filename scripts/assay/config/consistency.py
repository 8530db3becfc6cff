"""What no schema can say of a campaign: its parts must fit each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from assay.errors import BadInput


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
    for index, comparison in enumerate(config.get("comparisons", [])):
        check_comparison(comparison, config["arms"], where, f"comparisons[{index}]")


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
    """Two arms, and a declared factor that one of them has."""
    sides = (comparison["numerator"], comparison["denominator"])
    if sides[0] == sides[1]:
        raise BadInput(
            f"{sides[0]!r} is compared with itself",
            where=where,
            key=f"{key}.denominator",
            hint="another arm than the numerator",
        )
    for index, factor in enumerate(comparison.get("declared_factor") or ()):
        if not any(_has(place, factor) for side in sides for place in _places(arms[side])):
            raise BadInput(
                f"neither arm has a key {factor[:80]!r}",
                where=where,
                key=f"{key}.declared_factor[{index}]",
                hint="a key of one of the arms, such as flags.spec_type or replicas",
            )


def _places(arm: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Where a factor may stand: in the arm, in its flags, and in those of its roles."""
    yield arm
    yield arm["flags"]
    for role in (arm.get("split") or {}).values():
        yield role
        yield role.get("flags") or {}


def _has(value: Any, dotted: str) -> bool:
    """Does the dotted path lead to a key? A key may have dots itself."""
    if not isinstance(value, Mapping):
        return False
    return any(
        dotted == name or (dotted.startswith(f"{name}.") and _has(inner, dotted[len(name) + 1 :]))
        for name, inner in value.items()
    )
