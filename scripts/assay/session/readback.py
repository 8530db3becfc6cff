"""What was asked against what the server says it runs: `config_readback.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.session.engines import ReadBack

CHOSEN_BY_ENGINE = "auto"


def flatten(asked: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flags with the keys of sub-configurations as `flag.key`, as servers tell them."""
    flat: dict[str, Any] = {}
    for key, value in asked.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def compare_config(asked: Mapping[str, Any], told: ReadBack) -> dict[str, Any]:
    """The record: asked and read values by flag, mismatches, and the asked flags that the server does not tell.

    Flags that were not asked for are read back too: a default that differs between two arms is a difference.
    A flag asked as ``auto`` leaves the choice to the engine: what it chose is read, and no mismatch. A key of
    a sub-configuration that the server says it does not have at all is a mismatch.
    """
    read, asked = dict(told.values), flatten(asked)
    mismatches, unread = [], []
    for key, value in sorted(asked.items()):
        whole = key.partition(".")[0]
        off = whole != key and key not in read and whole in read and read[whole] is None
        if read.get(key) is None and not off:
            unread.append(key)
        elif value not in (CHOSEN_BY_ENGINE, read.get(key)):
            mismatches.append({"key": key, "asked": value, "read": read.get(key)})
    return {
        "schema": "assay/readback/1",
        "asked": dict(asked),
        "read": read,
        "sources": dict(told.sources),
        "mismatches": mismatches,
        "unread": unread,
        "capacity": dict(told.capacity),
        "engine_version": told.version,
    }
