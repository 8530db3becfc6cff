"""What repeats say and what they cannot: spread, overlap of ranges, bootstrap intervals, drift.

No interval is given that its data cannot carry: a bootstrap needs at least ``BOOTSTRAP_MIN`` repeats on
each side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BOOTSTRAP_MIN = 5
BOOTSTRAP_ROUNDS = 10_000
BOOTSTRAP_SEED = 20_261_129
CONFIDENCE = 0.95


def summarise_repeats(values: Sequence[float]) -> dict[str, Any]:
    """n, median, min, max and spread ratio (max / min) of the repeats; null where they cannot be had."""
    if not values:
        return {"n": 0, "median": None, "min": None, "max": None, "spread_ratio": None}
    low, high = min(values), max(values)
    return {
        "n": len(values),
        "median": float(np.median(values)),
        "min": low,
        "max": high,
        "spread_ratio": high / low if low > 0 else None,
    }


def ranges_overlap(one: Sequence[float], other: Sequence[float]) -> bool | None:
    """Do the repeats' ranges overlap? None when a side has fewer than two repeats: no range, no answer."""
    if len(one) < 2 or len(other) < 2:
        return None
    return min(one) <= max(other) and min(other) <= max(one)


def bootstrap_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> dict[str, Any]:
    """Percentile bootstrap of the ratio of medians (Efron 1979), seeded; null with the reason under 5
    repeats."""
    if min(len(numerator), len(denominator)) < BOOTSTRAP_MIN:
        fewest = min(len(numerator), len(denominator))
        return {
            "low": None,
            "high": None,
            "why_null": f"{fewest} repeats, at least {BOOTSTRAP_MIN} are needed",
        }
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    tops = np.asarray(numerator)[generator.integers(0, len(numerator), (BOOTSTRAP_ROUNDS, len(numerator)))]
    bases = np.asarray(denominator)[
        generator.integers(0, len(denominator), (BOOTSTRAP_ROUNDS, len(denominator)))
    ]
    below = np.median(bases, axis=1)
    if (below <= 0).any():
        return {"low": None, "high": None, "why_null": "the denominator reaches zero"}
    edge = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(np.median(tops, axis=1) / below, [edge, 100 - edge])
    return {
        "low": float(low),
        "high": float(high),
        "why_null": None,
        "confidence": CONFIDENCE,
        "rounds": BOOTSTRAP_ROUNDS,
        "seed": BOOTSTRAP_SEED,
        "method": "percentile bootstrap of the ratio of medians over repeats",
    }


def drift(values: Sequence[float]) -> dict[str, Any]:
    """The last repeat against the first, in the order they ran."""
    if len(values) < 2 or values[0] <= 0:
        return {"first": values[0] if values else None, "last": None, "ratio": None}
    return {"first": values[0], "last": values[-1], "ratio": values[-1] / values[0]}
