"""Where a session keeps its gate runs, and how several runs of the same tasks read as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AT_LOAD = "at_load"
"""Folder inside gates_before/ and gates_after/: the same tasks at the load's own concurrency."""
MIXED = "gates_mixed"
"""Folder inside a window: the tasks asked beside its load."""


def merge_summaries(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two runs of the same tasks as one summary: counts add up, and a verdict is pass only if both are.

    The worse verdict of a kind stands; a kind that one of them lacks keeps the other's.
    """
    kinds: dict[str, Any] = {str(kind): dict(entry) for kind, entry in (one.get("kinds") or {}).items()}
    for kind, entry in (other.get("kinds") or {}).items():
        mine = kinds.get(kind)
        if mine is None:
            kinds[kind] = dict(entry)
            continue
        counts = dict(mine.get("counts") or {})
        for outcome, n in (entry.get("counts") or {}).items():
            counts[outcome] = counts.get(outcome, 0) + n
        verdicts = (mine.get("verdict"), entry.get("verdict"))
        worse = next((verdict for verdict in verdicts if verdict != "pass"), "pass")
        kinds[kind] = mine | {"n": mine.get("n", 0) + entry.get("n", 0), "counts": counts, "verdict": worse}
    whole = next((v for v in (one.get("verdict"), other.get("verdict")) if v != "pass"), "pass")
    return dict(one) | {"kinds": kinds, "verdict": whole, "merged": True}
