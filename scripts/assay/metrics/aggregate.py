"""Aggregates over requests, windows and repeats. Each names its population and its n."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from assay.metrics.latency import Floats
from assay.metrics.order import order_statistics
from assay.metrics.phase import PER_REQUEST, Phase, Read, opening_tokens

P90_MIN_SAMPLES = 64
P99_MIN_SAMPLES = 662
INFINITE = "inf"
"""How positive infinity is written: JSON has no number for it."""
QUANTILES = ((50, 1), (90, P90_MIN_SAMPLES), (99, P99_MIN_SAMPLES))
"""Each percentile, and how many samples it needs to stand on."""


def percentiles(values: Iterable[float], n_failed: int = 0) -> dict[str, Any]:
    """Percentiles (numpy's linear ones) of finite ``values``, NaN meaning unknown and left out of ``n``.

    p99 is null under 662 samples, p90 under 64: a quantile that few samples cannot carry. ``adj_`` ones put
    +inf for each of ``n_failed`` requests; they are ``"inf"`` where they fall on or beside one, for any n.
    """
    array = np.asarray(list(values) if not isinstance(values, np.ndarray) else values, dtype=np.float64)
    unknown = np.isnan(array)
    known = array[~unknown] if unknown.any() else array
    ordered = np.sort(known)
    result: dict[str, Any] = {
        "n": len(known),
        "n_unknown": int(len(array) - len(known)),
        "n_failed": n_failed,
        "mean": float(known.mean()) if len(known) else None,
        **_quantiles(len(known), ordered.__getitem__),
    }
    n_all = len(known) + n_failed
    for quantile, least in QUANTILES:
        adjusted = _quantile(ordered.__getitem__, len(known), n_all, quantile) if n_all else None
        # A failure that reaches the quantile says so whatever n is; a finite one needs samples to stand on.
        result[f"adj_p{quantile}"] = adjusted if adjusted == INFINITE or n_all >= least else None
    return result


def gap_percentiles(phases: Sequence[Phase]) -> dict[str, Any]:
    """The same, in ms, of the gaps between output events of ok requests, which are read again for it."""
    n = sum(phase.gap_n for phase in phases)
    some = [phase for phase in phases if phase.gap_n]
    found: Mapping[int, int] = {}
    if some:
        found = order_statistics(
            lambda: (gaps for phase in some for gaps in phase.gaps_ns()),
            min(phase.gap_low_ns for phase in some),
            max(phase.gap_high_ns for phase in some),
            {rank for quantile, _ in QUANTILES for rank in _ranks(n, quantile)[:2]} | {0, n - 1},
        )
    return {
        "n": n,
        "n_unknown": 0,
        "n_failed": 0,
        "mean": sum(phase.gap_sum_ns for phase in some) / n / 1e6 if n else None,
        **_quantiles(n, lambda rank: found[rank] / 1e6),
    }


def _quantiles(n: int, at: Callable[[int], float]) -> dict[str, Any]:
    """Bounds and percentiles of ``n`` values, ``at(rank)`` being the one of that rank in ascending order."""
    result = {"min": float(at(0)) if n else None, "max": float(at(n - 1)) if n else None}
    for quantile, least in QUANTILES:
        result[f"p{quantile}"] = float(_quantile(at, n, n, quantile)) if n >= least else None
    return result


def _ranks(n: int, quantile: int) -> tuple[int, int, float]:
    """The ranks that a percentile of ``n`` values lies between, and how far it is from the lower one."""
    below, rest = divmod((n - 1) * quantile, 100)
    return below, below + (rest > 0), rest / 100


def _quantile(at: Callable[[int], float], n_known: int, n_all: int, quantile: int) -> float | str:
    """The linear percentile of ``n_known`` values followed by infinities up to ``n_all`` values."""
    below, above, share = _ranks(n_all, quantile)
    if above >= n_known:
        return INFINITE
    low, high = float(at(below)), float(at(above))
    # As numpy does it, from the nearer end.
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def summarise_phase(
    phase: Phase, *, n_gpus: int | None = None, opening: Read | None = None
) -> dict[str, Any]:
    """All aggregates of one phase.

    ``opening`` gives the requests before it: what they still put out inside the window is work of the window,
    and in no other number.

    Raises ValueError when a row has a status outside the vocabulary: issued must be ok + failed + incomplete.
    """
    if phase.ok + phase.failed + phase.incomplete != phase.issued:
        ends = f"{phase.ok} ok + {phase.failed} failed + {phase.incomplete} incomplete"
        raise ValueError(f"{phase.issued} issued, but {ends}")
    latency: dict[str, Any] = {}
    for name in PER_REQUEST:
        # A request that is not ok counts as +inf where small is good; where large is good it has no place.
        large_is_good = name in ("tokens_per_chunk", "served_rate_tok_s")
        stats = percentiles(gather([phase], name), 0 if large_is_good else phase.not_ok)
        if large_is_good:
            stats = {key: value for key, value in stats.items() if not key.startswith("adj_")}
        latency[name] = {"population": "ok requests"} | stats
    latency["tpot_ms"]["n_first_chunk_assumed"] = phase.ok_first_chunk_assumed
    gaps = "gaps between output events of ok requests"
    latency["icl_ms"] = {"population": gaps} | gap_percentiles([phase])
    return {
        "schema": "assay/summary/1",
        "requests": {
            "population": "all rows",
            "n": phase.issued,
            "issued": phase.issued,
            "ok": phase.ok,
            "failed": phase.failed,
            "incomplete": phase.incomplete,
            "failure_rate": phase.failed / phase.issued if phase.issued else None,
            "error_classes": dict(sorted(phase.error_classes.items())),
            "finish_reasons": dict(sorted(phase.finish_reasons.items())),
            "n_no_answer": phase.ok_no_answer,
        },
        "output": {
            "population": "ok requests",
            "n": phase.ok,
            "n_output": {name: phase.ok_sources[name] for name in ("usage", "tokenizer")},
            "n_output_unknown": phase.ok_output.n_unknown,
            "output_tokens": phase.ok_output.known,
            "chunks": phase.ok_chunks,
            "prompt_tokens": phase.ok_prompt.value,
            "cached_tokens": phase.ok_cached.value,
            "reasoning_tokens": phase.ok_reasoning.value,
        },
        "throughput": throughput(phase, n_gpus, opening),
        "latency": latency,
        "timing": {
            "population": "output events of all rows",
            "n": phase.events,
            "n_coalesced": phase.coalesced,
            "coalesced_share": phase.coalesced / phase.events if phase.events else None,
            "timestamp_sources": dict(sorted(phase.timestamp_sources.items())),
        },
    }


def gather(phases: Iterable[Phase], name: str) -> Floats:
    """The values of one metric over the ok requests of all ``phases``."""
    parts = [part for phase in phases for part in phase.values.get(name, ())]
    return np.concatenate(parts) if parts else np.empty(0)


def throughput(phase: Phase, n_gpus: int | None = None, opening: Read | None = None) -> dict[str, Any]:
    """Rates of one phase, the drain included, and of its issuing window under a name of its own."""
    n_unknown = phase.ok_output.n_unknown
    elapsed_s = phase.elapsed_s
    usable_s = elapsed_s if elapsed_s is not None and elapsed_s > 0 else None
    reason = None
    if usable_s is None:
        reason = "nothing was sent"
    elif n_unknown:
        reason = f"the output of {n_unknown} ok requests is unknown"
    rate = phase.ok_output.known / usable_s if usable_s is not None and not n_unknown else None
    prompt = phase.ok_prompt
    result: dict[str, Any] = {
        "population": "ok requests, over the time from the first send to the last end of all",
        "n": phase.ok,
        "n_output_unknown": n_unknown,
        "output_tokens": phase.ok_output.known,
        "elapsed_s": elapsed_s,
        "output_tok_s": rate,
        "reason": reason,
        "prompt_tok_s": prompt.known / usable_s if usable_s is not None and not prompt.n_unknown else None,
        "requests_per_s": phase.ok / usable_s if usable_s is not None else None,
        "window_tok_s": None,
        "window_s": None,
        "n_gpus": n_gpus,
        "output_tok_s_per_gpu": rate / n_gpus if rate is not None and n_gpus else None,
    }
    if phase.window_ns is not None and phase.window_ns[1] > phase.window_ns[0]:
        result["window_s"] = window_s = (phase.window_ns[1] - phase.window_ns[0]) / 1e9
        before: float | None = 0.0
        if opening is not None:
            result["window_opening_tokens"] = before = opening_tokens(opening, phase.window_ns)
        if before is None:
            result["window_reason"] = "the output of an opening request in flight in the window is unknown"
        elif not n_unknown:
            result["window_tok_s"] = (phase.window_tokens + before) / window_s
    return result
