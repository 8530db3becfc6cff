"""An arm's engine side held against what its engine and the router would take. Nothing is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.session.engines import Engine, engine, router
from assay.session.engines.base import check_flags

PLACED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS")


def check_arm(arm: Mapping[str, Any], where: Path, key: str, n_gpus: int) -> None:
    """BadInput for the first thing in an arm that its engine, its router or the placement cannot be."""
    chosen = engine(arm["engine"])
    version = arm.get("engine_version")
    if version is not None and chosen.parser_name is None:
        raise BadInput(
            f"has no meaning for {chosen.name}", where=where, key=f"{key}.engine_version", hint="leave it out"
        )
    check_flags(chosen, arm["flags"], where, f"{key}.flags", version)
    router.check_members(arm, where, key)
    check_environment(chosen, arm, where, f"{key}.environment")
    if "router" in arm:
        router.check(arm["router"], where, f"{key}.router")
    for role in ("prefill", "decode") if "split" in arm else ():
        flags = arm["split"][role].get("flags", {})
        # The key of engine_version lies beside `flags`, and an arm's version is no part of a role.
        check_flags(chosen, flags, where, f"{key}.split.{role}.flags", version)
    if "placement" in arm:
        wanted = arm["placement"]["gpus"] * len(router.members_of(arm))
        if wanted > n_gpus:
            raise BadInput(
                f"{len(router.members_of(arm))} x {arm['placement']['gpus']} GPUs are more than the campaign needs",
                where=where,
                key=f"{key}.placement.gpus",
                hint=f"needs.gpus is {n_gpus}",
            )


def check_environment(chosen: Engine, arm: Mapping[str, Any], where: Path, key: str) -> None:
    """BadInput for a variable that the harness sets, that `placement` decides, or that may hold a secret."""
    by_harness = chosen.environment(arm["flags"])
    for name in arm.get("environment", {}):
        place = f"{key}.{name}"
        if name in by_harness:
            raise BadInput("the harness sets it", where=where, key=place, hint="leave it out")
        if name in PLACED:
            raise BadInput("it comes from `placement`", where=where, key=place, hint="leave it out")
        if any(word in name.split("_") for word in SECRET_WORDS):
            raise BadInput(
                "looks like a secret, and is recorded", where=where, key=place, hint="leave it out"
            )
