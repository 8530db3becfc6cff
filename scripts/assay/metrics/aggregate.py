"""Aggregates over requests, windows and repeats. Each names its population and its n."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from assay.metrics.latency import Derived, Floats, chunk_offsets, column, derive
from assay.records.columns import numbers_of

P90_MIN_SAMPLES = 64
P99_MIN_SAMPLES = 662
INFINITE = "inf"
"""How positive infinity is written: JSON has no number for it."""


def percentiles(values: Iterable[float], n_failed: int = 0) -> dict[str, Any]:
    """Percentiles (numpy, linear) of finite ``values``, NaN meaning unknown and left out of ``n``.

    p99 is null under 662 samples, p90 under 64: a quantile that few samples cannot carry. ``adj_`` ones put
    +inf for each of ``n_failed`` requests; they are ``"inf"`` where they fall on or beside one, for any n.
    """
    array = np.asarray(list(values) if not isinstance(values, np.ndarray) else values, dtype=np.float64)
    unknown = np.isnan(array)
    known = array[~unknown] if unknown.any() else array
    result: dict[str, Any] = {
        "n": len(known),
        "n_unknown": int(len(array) - len(known)),
        "n_failed": n_failed,
    }
    if len(known):
        p50, p90, p99 = (float(value) for value in np.percentile(known, [50, 90, 99]))
        result |= {
            "mean": float(known.mean()),
            "min": float(known.min()),
            "max": float(known.max()),
            "p50": p50,
        }
    else:
        p90 = p99 = math.nan
        result |= {"mean": None, "min": None, "max": None, "p50": None}
    result["p90"] = p90 if len(known) >= P90_MIN_SAMPLES else None
    result["p99"] = p99 if len(known) >= P99_MIN_SAMPLES else None
    n_all = len(known) + n_failed
    ordered = np.sort(known)
    for quantile, least in ((50, 1), (90, P90_MIN_SAMPLES), (99, P99_MIN_SAMPLES)):
        adjusted = _with_failures(ordered, n_all, quantile) if n_all else None
        # A failure that reaches the quantile says so whatever n is; a finite one needs samples to stand on.
        result[f"adj_p{quantile}"] = adjusted if adjusted == INFINITE or n_all >= least else None
    return result


def _with_failures(ordered: Floats, n_all: int, quantile: int) -> float | str:
    """The linear percentile of ``ordered`` followed by infinities up to ``n_all`` values."""
    position = (n_all - 1) * quantile / 100
    below, above = math.floor(position), math.ceil(position)
    if above >= len(ordered):
        return INFINITE
    low, high = float(ordered[below]), float(ordered[above])
    return low + (high - low) * (position - below)


def repeats(values: Sequence[float | None]) -> dict[str, Any]:
    """Median, min, max and spread ratio (max/min) of repeats; unknown ones are counted, not used."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    result: dict[str, Any] = {"n": len(known), "n_unknown": len(values) - len(known)}
    if not known:
        return result | {"median": None, "min": None, "max": None, "spread_ratio": None}
    low, high = min(known), max(known)
    return result | {
        "median": float(np.median(known)),
        "min": low,
        "max": high,
        "spread_ratio": high / low if low > 0 else None,
    }


def summarise_requests(
    table: pa.Table,
    *,
    window_start_ns: int | None = None,
    window_end_ns: int | None = None,
    n_gpus: int | None = None,
    opening: pa.Table | None = None,
) -> dict[str, Any]:
    """All aggregates of one phase. The window's bounds, when given, are those of the issuing.

    ``opening`` are the requests before it: what they still put out inside the window is work of the window,
    and in no other number.

    Raises ValueError when a row has a status outside the vocabulary: issued must be ok + failed + incomplete.
    """
    derived = derive(table)
    ok = derived.ok
    n_ok, n_failed, n_incomplete = int(ok.sum()), int(derived.failed.sum()), int(derived.incomplete.sum())
    n_issued = table.num_rows
    if n_ok + n_failed + n_incomplete != n_issued:
        raise ValueError(f"{n_issued} issued, but {n_ok} ok + {n_failed} failed + {n_incomplete} incomplete")
    summary: dict[str, Any] = {
        "schema": "assay/summary/1",
        "requests": {
            "population": "all rows",
            "n": n_issued,
            "issued": n_issued,
            "ok": n_ok,
            "failed": n_failed,
            "incomplete": n_incomplete,
            "failure_rate": n_failed / n_issued if n_issued else None,
            "error_classes": _counts(table, "error_class"),
            "finish_reasons": _counts(table, "finish_reason"),
            "n_no_answer": int((ok & np.isnan(derived.ttfa_ms)).sum()),
        },
        "output": _output(table, derived),
        "throughput": throughput(table, derived, window_start_ns, window_end_ns, n_gpus, opening),
        "latency": {},
        "timing": _timing(table),
    }
    for name in (
        "ttft_ms",
        "ttfa_ms",
        "e2e_ms",
        "stream_end_ms",
        "schedule_delay_ms",
        "ttft_from_schedule_ms",
        "e2e_from_schedule_ms",
        "tpot_ms",
        "tokens_per_chunk",
        "served_rate_tok_s",
    ):
        # A request that is not ok counts as +inf where small is good; where large is good it has no place.
        n_bad = 0 if name in ("tokens_per_chunk", "served_rate_tok_s") else n_failed + n_incomplete
        stats = percentiles(getattr(derived, name)[ok], n_bad)
        if name == "served_rate_tok_s" or name == "tokens_per_chunk":
            stats = {key: value for key, value in stats.items() if not key.startswith("adj_")}
        summary["latency"][name] = {"population": "ok requests"} | stats
    gaps = percentiles(derived.icl_of(ok))
    summary["latency"]["icl_ms"] = {"population": "gaps between output events of ok requests"} | {
        key: value for key, value in gaps.items() if not key.startswith("adj_")
    }
    summary["latency"]["tpot_ms"]["n_first_chunk_assumed"] = int((derived.first_chunk_assumed & ok).sum())
    return summary


def throughput(
    table: pa.Table,
    derived: Derived,
    window_start_ns: int | None = None,
    window_end_ns: int | None = None,
    n_gpus: int | None = None,
    opening: pa.Table | None = None,
) -> dict[str, Any]:
    """Rates of one phase, the drain included, and of its issuing window under a name of its own."""
    ok = derived.ok
    known = ok & ~np.isnan(derived.n_output)
    n_tokens = int(derived.n_output[known].sum())
    n_unknown = int((ok & ~known).sum())
    sends, ends = _known_times(table, "t_send_ns"), _known_times(table, "t_end_ns")
    elapsed_s = (int(ends.max()) - int(sends.min())) / 1e9 if len(sends) and len(ends) else None
    usable = elapsed_s is not None and elapsed_s > 0
    reason = None
    if not usable:
        reason = "nothing was sent"
    elif n_unknown:
        reason = f"the output of {n_unknown} ok requests is unknown"
    rate = n_tokens / elapsed_s if usable and elapsed_s is not None and not n_unknown else None
    prompts = column(table, "n_prompt")[ok]
    prompt_rate = (
        float(prompts.sum()) / elapsed_s
        if usable and elapsed_s is not None and not np.isnan(prompts).any()
        else None
    )
    result: dict[str, Any] = {
        "population": "ok requests, over the time from the first send to the last end of all",
        "n": int(ok.sum()),
        "n_output_unknown": n_unknown,
        "output_tokens": n_tokens,
        "elapsed_s": elapsed_s,
        "output_tok_s": rate,
        "reason": reason,
        "prompt_tok_s": prompt_rate,
        "requests_per_s": int(ok.sum()) / elapsed_s if usable and elapsed_s is not None else None,
        "window_tok_s": None,
        "window_s": None,
        "n_gpus": n_gpus,
        "output_tok_s_per_gpu": rate / n_gpus if rate is not None and n_gpus else None,
    }
    if window_start_ns is not None and window_end_ns is not None and window_end_ns > window_start_ns:
        window_s = (window_end_ns - window_start_ns) / 1e9
        result["window_s"] = window_s
        before = None if opening is None else _opening_inside(opening, window_start_ns, window_end_ns)
        if opening is not None:
            result["window_opening_tokens"] = before
        if opening is not None and before is None:
            result["window_reason"] = "the output of an opening request in flight in the window is unknown"
        elif not n_unknown:
            tokens = _tokens_inside(table, derived, window_start_ns, window_end_ns) + (before or 0.0)
            result["window_tok_s"] = tokens / window_s
    return result


def pool_windows(windows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several windows' ``throughput`` as one: total tokens over total elapsed, not a mean of rates."""
    tokens = sum(window["output_tokens"] for window in windows)
    unknown = sum(window["n_output_unknown"] for window in windows)
    elapsed = [window["elapsed_s"] for window in windows]
    complete = bool(windows) and all(value is not None and value > 0 for value in elapsed) and not unknown
    total_s = sum(value for value in elapsed if value is not None)
    return {
        "population": "ok requests of all windows, over the sum of the windows' elapsed times",
        "n": sum(window["n"] for window in windows),
        "n_windows": len(windows),
        "output_tokens": tokens,
        "elapsed_s": total_s,
        "output_tok_s": tokens / total_s if complete else None,
        "reason": None if complete else "a window has no elapsed time, or ok requests of unknown output",
    }


def _opening_inside(opening: pa.Table, start_ns: int, end_ns: int) -> float | None:
    """Tokens that ok requests of the opening put out in the window; None when one in flight is unknown."""
    derived = derive(opening)
    ends, _ = numbers_of(opening.column("t_end_ns"))
    if (derived.ok & np.isnan(derived.n_output) & (ends >= start_ns)).any():
        return None
    return _tokens_inside(opening, derived, start_ns, end_ns)


def _tokens_inside(table: pa.Table, derived: Derived, start_ns: int, end_ns: int) -> float:
    """Output tokens of ok requests whose event fell inside [start, end): tokens spread over their events.

    The first event has ``n_first_chunk`` tokens (1 where unknown, all where it is the only one), the later
    ones share the rest evenly: usage says how many there were, not which event carried which.
    """
    offsets, bounds = chunk_offsets(table)
    counts = np.diff(bounds)
    sends, _ = numbers_of(table.column("t_send_ns"))
    times = offsets + np.repeat(sends, counts)
    inside = (times >= start_ns) & (times < end_ns)
    n_first = np.nan_to_num(column(table, "n_first_chunk"), nan=1.0)
    n_output = np.nan_to_num(derived.n_output, nan=0.0)
    n_first = np.where(counts == 1, n_output, np.minimum(n_first, n_output))
    rest = np.where(counts > 1, (n_output - n_first) / np.maximum(counts - 1, 1), 0.0)
    weights = np.repeat(rest, counts)
    some = counts > 0
    weights[bounds[:-1][some]] = n_first[some]
    return float(weights[inside & np.repeat(derived.ok, counts)].sum())


def _output(table: pa.Table, derived: Derived) -> dict[str, Any]:
    ok = derived.ok
    sources = np.asarray(table.column("n_output_source").to_pylist(), dtype=object)[ok]
    prompts, cached, thought = (column(table, name)[ok] for name in ("n_prompt", "n_cached", "n_reasoning"))
    return {
        "population": "ok requests",
        "n": int(ok.sum()),
        "n_output": {
            "usage": int((sources == "usage").sum()),
            "tokenizer": int((sources == "tokenizer").sum()),
        },
        "n_output_unknown": int(np.isnan(derived.n_output[ok]).sum()),
        "output_tokens": int(np.nansum(derived.n_output[ok])),
        "chunks": int(derived.n_chunks[ok].sum()),
        "prompt_tokens": _sum_or_none(prompts),
        "cached_tokens": _sum_or_none(cached),
        "reasoning_tokens": _sum_or_none(thought),
    }


def _timing(table: pa.Table) -> dict[str, Any]:
    coalesced = column(table, "n_coalesced")
    _, bounds = chunk_offsets(table)
    n_events = int(bounds[-1])
    n_coalesced = int(np.nansum(coalesced))
    return {
        "population": "output events of all rows",
        "n": n_events,
        "n_coalesced": n_coalesced,
        "coalesced_share": n_coalesced / n_events if n_events else None,
        "timestamp_sources": _counts(table, "timestamp_source"),
    }


def _counts(table: pa.Table, name: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in table.column(name).to_pylist():
        if value is not None:
            counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items()))


def _sum_or_none(values: NDArray[np.float64]) -> int | None:
    return None if not len(values) or np.isnan(values).any() else int(values.sum())


def _known_times(table: pa.Table, name: str) -> NDArray[np.int64]:
    values, valid = numbers_of(table.column(name))
    return values[valid]
