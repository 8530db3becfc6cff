"""Lists of CPUs and NUMA nodes in the kernel's notation (``0-3,8,10-11``): read, written, compared."""

from __future__ import annotations

import re
from collections.abc import Iterable

from assay.errors import BadInput

_PART = re.compile(r"^(\d{1,6})(?:-(\d{1,6})(?::(\d{1,4})/(\d{1,4}))?)?$")
MOST_CPUS = 1 << 16
"""No machine has more; a larger number is broken text and must not eat the memory."""


def parse_cpulist(text: str, *, where: object = None, key: str | None = None) -> list[int]:
    """Read ``0-3,8`` into ``[0, 1, 2, 3, 8]``, sorted and without doubles; empty text is an empty list.

    The kernel's stride form ``0-7:2/4`` (two of every four) is read as well. Raises BadInput with ``where``
    and ``key`` when the text is not such a list.
    """
    numbers: set[int] = set()
    stripped = text.strip()
    if not stripped:
        return []
    for part in stripped.split(","):
        match = _PART.match(part.strip())
        if match is None:
            raise BadInput(
                f"{text[:80]!r} is not a list of CPUs", where=where, key=key, hint="like 0-3,8,10-11"
            )
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last >= MOST_CPUS:
            raise BadInput(f"{part!r} is not a range of CPUs", where=where, key=key, hint="like 0-3")
        used, group = int(match[3] or 1), int(match[4] or 1)
        if group < 1 or used < 1 or used > group:
            raise BadInput(f"{part!r} has a wrong stride", where=where, key=key, hint="like 0-7:2/4")
        numbers.update(cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)
    return sorted(numbers)


def format_cpulist(cpus: Iterable[int]) -> str:
    """Write numbers in the kernel's notation, sorted; the inverse of ``parse_cpulist``."""
    ordered = sorted(set(cpus))
    parts: list[str] = []
    start = 0
    for place, cpu in enumerate(ordered):
        if place + 1 < len(ordered) and ordered[place + 1] == cpu + 1:
            continue
        first = ordered[start]
        parts.append(str(first) if first == cpu else f"{first}-{cpu}")
        start = place + 1
    return ",".join(parts)
