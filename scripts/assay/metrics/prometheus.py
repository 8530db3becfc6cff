"""Server counters out of Prometheus text: exact names, summed over label sets, absent is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

COUNTERS: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "cached_prompt_tokens": ("vllm:prefix_cache_hits_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "drafts": ("vllm:spec_decode_num_drafts_total",),
        "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
        "requests_ok": ("vllm:request_success_total",),
    },
    "sglang": {
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "cached_prompt_tokens": ("sglang:cached_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        "drafts": ("sglang:spec_verify_calls_total",),
        "draft_tokens": ("sglang:spec_draft_tokens_total", "sglang:spec_num_draft_tokens_total"),
        "accepted_tokens": ("sglang:spec_accepted_tokens_total", "sglang:spec_num_accepted_tokens_total"),
        "requests_ok": ("sglang:num_requests_total",),
    },
    "llamacpp": {
        "prompt_tokens": ("llamacpp:prompt_tokens_total",),
        "cached_prompt_tokens": ("llamacpp:prompt_tokens_cached_total", "llamacpp:cached_tokens_total"),
        "generation_tokens": ("llamacpp:tokens_predicted_total",),
        "drafts": ("llamacpp:spec_decode_num_drafts_total",),
        "draft_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
        "requests_ok": ("llamacpp:requests_ok_total",),
    },
}
"""Per engine and normalised name the server's own names; the first that is there counts."""

GAUGES: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {"running": ("vllm:num_requests_running",), "waiting": ("vllm:num_requests_waiting",)},
    "sglang": {"running": ("sglang:num_running_reqs",), "waiting": ("sglang:num_queue_reqs",)},
    "llamacpp": {"running": ("llamacpp:requests_processing",), "waiting": ("llamacpp:requests_deferred",)},
}

NAMES = tuple(COUNTERS["vllm"])


def families(text: str) -> list[Metric]:
    """The metric families of a text. Raises ValueError when it is not in the format."""
    try:
        return list(text_string_to_metric_families(text))
    except (IndexError, KeyError, OverflowError, TypeError, AttributeError) as error:
        # The library takes some malformed lines apart without looking.
        raise ValueError(f"a malformed line ({type(error).__name__})") from error


def parse(text: str) -> dict[str, float]:
    """Sample name -> value summed over its label sets. ``_created`` series are left out.

    A sample that is not a finite number makes its whole name absent: a sum of the rest would be wrong.
    Raises ValueError when the text is not in the format.
    """
    sums: dict[str, float] = {}
    for family in families(text):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                sums[sample.name] = sums.get(sample.name, 0.0) + _number(sample.value)
    return {name: value for name, value in sums.items() if math.isfinite(value)}


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond every float
        return math.inf


def add(replicas: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sum over replicas. A name that one of them lacks is left out: its sum is unknown."""
    several = list(replicas)
    if not several:
        return {}
    names = set(several[0]).intersection(*several[1:])
    return {name: sum(replica[name] for replica in several) for name in sorted(names)}


def engine_of(samples: Mapping[str, float]) -> str | None:
    """``vllm``, ``sglang`` or ``llamacpp`` by the prefix of its own metrics, None when there is none."""
    for engine in COUNTERS:
        if any(name.startswith(f"{engine}:") for name in samples):
            return engine
    return None


def normalise(samples: Mapping[str, float], engine: str | None = None) -> dict[str, float | None]:
    """The counters under the names every engine shares; None for those that are not there."""
    return _pick(samples, COUNTERS, engine, NAMES)


def gauges(samples: Mapping[str, float], engine: str | None = None) -> dict[str, float | None]:
    """``running`` and ``waiting``; None for what is not there."""
    return _pick(samples, GAUGES, engine, ("running", "waiting"))


def _pick(
    samples: Mapping[str, float],
    table: Mapping[str, Mapping[str, tuple[str, ...]]],
    engine: str | None,
    names: Iterable[str],
) -> dict[str, float | None]:
    known = table.get(engine or engine_of(samples) or "", {})
    return {
        name: next((samples[key] for key in known.get(name, ()) if key in samples), None) for name in names
    }


def delta(
    before: Mapping[str, float | None], after: Mapping[str, float | None]
) -> tuple[dict[str, float | None], dict[str, str]]:
    """(growth per name, reason per name whose growth is None).

    Reasons: ``absent`` (in neither, or only in ``before``), ``absent before``, ``restart`` (it went down).
    """
    growth: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for name in sorted(set(before) | set(after)):
        first, last = before.get(name), after.get(name)
        growth[name] = None
        if last is None:
            reasons[name] = "absent"
        elif first is None:
            reasons[name] = "absent before"
        elif last < first:
            reasons[name] = "restart"
        else:
            growth[name] = last - first
    return growth, reasons


def counters_record(
    before: dict[str, Any], after: dict[str, Any], gauge_samples: list[dict[str, Any]]
) -> dict[str, Any]:
    """The object of ``counters.json``; ``before`` and ``after`` are ``{"t_ns", "metrics"}``."""
    growth, reasons = delta(before["metrics"], after["metrics"])
    if any(reason == "restart" for reason in reasons.values()):
        # One counter that fell means a new process: those that did not fall started from zero as well.
        growth = dict.fromkeys(growth)
        reasons = {name: reasons.get(name, "restart") for name in growth}
    return {"before": before, "after": after, "delta": growth, "reasons": reasons, "gauges": gauge_samples}
