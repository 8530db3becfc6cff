"""Rates and latencies of a row, from the reduced tables of its phases.

Formulas and floors are those of assay.metrics; only ok requests enter rates and latencies. A value that
cannot be known is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from assay.extract.columns import ADJUSTED, LATENCIES
from assay.metrics.aggregate import INFINITE, gap_percentiles, gather, percentiles
from assay.metrics.phase import Phase


def _number(value: Any) -> float | None:
    return float("inf") if value == INFINITE else value


def _latencies(phases: list[Phase], not_ok: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in LATENCIES:
        stats = gap_percentiles(phases) if name == "icl_ms" else percentiles(gather(phases, name), not_ok)
        row |= {f"{name}_{key}": stats[key] for key in ("n", "p50", "p90", "p99", "max")}
        if name in ADJUSTED:
            row |= {f"adj_{name}_{key}": _number(stats[f"adj_{key}"]) for key in ("p50", "p90", "p99")}
    row["served_rate_tok_s_p50"] = percentiles(gather(phases, "served_rate_tok_s"))["p50"]
    return row


def summarise(phases: Iterable[Phase], gpus: int | None) -> dict[str, Any]:
    """The rate and latency columns of a row over one phase, or over the windows of a set together.

    Pooled: total tokens over total elapsed, not a mean of rates; latencies over all requests of all windows.
    """
    phases = list(phases)
    elapsed = [phase.elapsed_s for phase in phases]
    complete = bool(phases) and all(value is not None and value > 0 for value in elapsed)
    elapsed_s = sum(value for value in elapsed if value is not None) if complete else None
    known = complete and not any(phase.ok_output.n_unknown for phase in phases)
    tokens = sum(phase.ok_output.known for phase in phases) if known else None
    rate = tokens / elapsed_s if tokens is not None and elapsed_s else None
    ok, chunks = sum(phase.ok for phase in phases), sum(phase.ok_chunks for phase in phases)
    windows = [phase.window_ns for phase in phases if phase.window_ns is not None]
    in_windows = known and len(windows) == len(phases)
    window_s = sum((end - start) / 1e9 for start, end in windows) if in_windows else None
    window_tokens = sum(phase.window_tokens for phase in phases) if in_windows else None
    return {
        "elapsed_s": elapsed_s,
        "output_tokens": tokens,
        "output_tok_s": rate,
        "output_tok_s_per_gpu": rate / gpus if rate is not None and gpus else None,
        "requests_s": ok / elapsed_s if elapsed_s else None,
        "window_s": window_s,
        "window_tokens": window_tokens,
        "window_tok_s": window_tokens / window_s if window_tokens is not None and window_s else None,
        "tokens_per_chunk": tokens / chunks if tokens is not None and chunks else None,
        **_latencies(phases, sum(phase.not_ok for phase in phases)),
    }
