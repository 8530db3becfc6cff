"""When requests are due: seeded arrival times on an absolute axis, so that delays never add up."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from enum import StrEnum


class Arrivals(StrEnum):
    """The gaps of an open loop."""

    POISSON = "poisson"
    """Exponential gaps."""
    GAMMA = "gamma"
    """Gamma gaps of shape ``burstiness``: under 1 burstier than Poisson, over 1 more even."""
    CONSTANT = "constant"
    """Equal gaps."""


def arrival_offsets_ns(
    arrivals: Arrivals, rate_per_s: float, seed: int, *, burstiness: float = 1.0, ramp_s: float = 0.0
) -> Iterator[int]:
    """Endless offsets in ns from the start of the phase; the same numbers for the same arguments.

    The gaps are drawn at rate 1 and mapped through the inverse of the cumulative rate, which grows linearly
    from 0 to ``rate_per_s`` over ``ramp_s`` seconds and then stays.
    """
    gaps = _unit_gaps(arrivals, seed, burstiness)
    ramp_mass = rate_per_s * ramp_s / 2
    mass = 0.0
    while True:
        if mass < ramp_mass:
            offset_s = math.sqrt(2 * mass * ramp_s / rate_per_s)
        else:
            offset_s = ramp_s + (mass - ramp_mass) / rate_per_s
        yield round(offset_s * 1e9)
        mass += next(gaps)


def _unit_gaps(arrivals: Arrivals, seed: int, burstiness: float) -> Iterator[float]:
    source = random.Random(seed)
    while True:
        if arrivals is Arrivals.CONSTANT:
            yield 1.0
        elif arrivals is Arrivals.POISSON:
            yield source.expovariate(1.0)
        else:
            yield source.gammavariate(burstiness, 1.0 / burstiness)
