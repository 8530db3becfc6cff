"""What was asked against what the server says it runs: `config_readback.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.session.engines import ReadBack


def compare_config(asked: Mapping[str, Any], told: ReadBack) -> dict[str, Any]:
    """The record: asked and read values by flag, mismatches, and the asked flags that the server does not tell.

    Flags that were not asked for are read back too: a default that differs between two arms is a difference.
    """
    read = dict(told.values)
    mismatches = [
        {"key": key, "asked": value, "read": read[key]}
        for key, value in sorted(asked.items())
        if key in read and read[key] is not None and read[key] != value
    ]
    return {
        "schema": "assay/readback/1",
        "asked": dict(asked),
        "read": read,
        "sources": dict(told.sources),
        "mismatches": mismatches,
        "unread": sorted(key for key in asked if read.get(key) is None),
        "capacity": dict(told.capacity),
        "engine_version": told.version,
    }
