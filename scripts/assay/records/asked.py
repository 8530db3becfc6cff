"""Was a receipt asked what the plan has? Points and servers of another plan are none of this one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORDS_OF_AN_ARM = frozenset({"title", "factors", "unspecified"})
"""What the plan tells about an arm beside what is asked of its server."""
_ABSENT = object()


def asked_otherwise(body: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys (``point.max_tokens``, ``server.flags``) at which what a load receipt was asked is not the plan's.

    All keys count, those on one side alone too. A receipt that does not say what it was asked has none.
    """
    spec = body.get("spec") or {}
    arm = body.get("arm") or (plan["legs"].get(body.get("leg")) or {}).get("arm")
    return (
        *_different("point", spec.get("point"), plan["points"].get(body.get("point_id"))),
        *_different("server", spec.get("server"), plan["arms"].get(arm)),
    )


def _different(name: str, asked: object, planned: object) -> list[str]:
    if not isinstance(asked, Mapping) or not isinstance(planned, Mapping):
        return []
    keys = sorted({*asked, *planned} - WORDS_OF_AN_ARM)
    return [f"{name}.{key}" for key in keys if asked.get(key, _ABSENT) != planned.get(key, _ABSENT)]
