"""Rates and latencies of a phase, from its table of requests, a batch of rows at a time so that memory stays
flat.

Formulas and floors are those of assay.metrics; only ok requests enter rates and latencies. A value that
cannot be known is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import Incomplete
from assay.extract.columns import ADJUSTED, LATENCIES
from assay.metrics.aggregate import INFINITE, percentiles, throughput
from assay.metrics.latency import Floats, derive

ICL_LIMIT_N = 16_000_000
"""Above this many gaps between events their percentiles are not computed: they would not fit in memory."""
BATCH_ROWS = 16_384
_COLUMNS = [
    "status",
    "t_scheduled_ns",
    "t_send_ns",
    "t_first_token_ns",
    "t_first_answer_ns",
    "t_last_token_ns",
    "t_end_ns",
    "n_prompt",
    "n_output",
    "n_first_chunk",
    "chunk_offsets_ns",
]


@dataclass
class Phase:
    """One table of requests, reduced."""

    ok: int = 0
    not_ok: int = 0
    tokens: int = 0
    tokens_unknown: int = 0
    chunks: int = 0
    t_first_send_ns: int | None = None
    t_last_end_ns: int | None = None
    window_ns: tuple[int, int] | None = None
    window_tokens: float = 0.0
    values: dict[str, list[Floats]] = field(default_factory=dict)
    icl_n: int = 0

    @property
    def elapsed_s(self) -> float | None:
        if self.t_first_send_ns is None or self.t_last_end_ns is None:
            return None
        return (self.t_last_end_ns - self.t_first_send_ns) / 1e9

    def put(self, name: str, values: Floats) -> None:
        self.values.setdefault(name, []).append(values)


def _extreme(table: pa.Table, name: str, old: int | None, pick: Any) -> int | None:
    known = table.column(name).combine_chunks().drop_null()
    if not len(known):
        return old
    new = int(pick(np.asarray(known)))
    return new if old is None else int(pick((old, new)))


def _add(phase: Phase, table: pa.Table) -> None:
    derived = derive(table)
    window = phase.window_ns or (None, None)
    rates = throughput(table, derived, *window)
    ok = derived.ok
    phase.ok += int(ok.sum())
    phase.not_ok += int((~ok).sum())
    phase.tokens += rates["output_tokens"]
    phase.tokens_unknown += rates["n_output_unknown"]
    if rates["window_tok_s"] is not None:
        phase.window_tokens += rates["window_tok_s"] * rates["window_s"]
    phase.chunks += int(derived.n_chunks[ok].sum())
    phase.t_first_send_ns = _extreme(table, "t_send_ns", phase.t_first_send_ns, min)
    phase.t_last_end_ns = _extreme(table, "t_end_ns", phase.t_last_end_ns, max)
    for name in (*LATENCIES, "served_rate_tok_s"):
        if name != "icl_ms":
            phase.put(name, getattr(derived, name)[ok])
    gaps = derived.icl_of(ok)
    phase.icl_n += len(gaps)
    if phase.icl_n <= ICL_LIMIT_N:
        phase.put("icl_ms", gaps)
    else:
        phase.values.pop("icl_ms", None)


def read_phase(path: Path, window_ns: tuple[int, int] | None = None) -> Phase:
    """Reduce one table of requests. ``window_ns`` is the issuing window on the client's monotonic clock.

    Raises Incomplete naming a table that cannot be read.
    """
    phase = Phase(window_ns=window_ns)
    try:
        with pq.ParquetFile(path) as reader:
            for batch in reader.iter_batches(BATCH_ROWS, columns=_COLUMNS):
                _add(phase, pa.Table.from_batches([batch]))
    except (OSError, pa.ArrowException, KeyError) as error:
        raise Incomplete(f"{path}: cannot be read as a table of requests: {type(error).__name__}") from error
    return phase


def _gather(phases: list[Phase], name: str) -> Floats:
    parts = [part for phase in phases for part in phase.values.get(name, ())]
    return np.concatenate(parts) if parts else np.empty(0)


def _number(value: Any) -> float | None:
    return float("inf") if value == INFINITE else value


def _latencies(phases: list[Phase], not_ok: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    too_many = sum(phase.icl_n for phase in phases) > ICL_LIMIT_N
    for name in LATENCIES:
        values = np.empty(0) if name == "icl_ms" and too_many else _gather(phases, name)
        stats = percentiles(values, not_ok)
        row |= {f"{name}_{key}": stats[key] for key in ("n", "p50", "p90", "p99", "max")}
        if name in ADJUSTED:
            row |= {f"adj_{name}_{key}": _number(stats[f"adj_{key}"]) for key in ("p50", "p90", "p99")}
    row["served_rate_tok_s_p50"] = percentiles(_gather(phases, "served_rate_tok_s"))["p50"]
    return row


def summarise(phases: Iterable[Phase], gpus: int | None) -> dict[str, Any]:
    """The rate and latency columns of a row over one phase, or over the windows of a set together.

    Pooled: total tokens over total elapsed, not a mean of rates; latencies over all requests of all windows.
    """
    phases = list(phases)
    elapsed = [phase.elapsed_s for phase in phases]
    complete = bool(phases) and all(value is not None and value > 0 for value in elapsed)
    elapsed_s = sum(value for value in elapsed if value is not None) if complete else None
    known = complete and all(phase.tokens_unknown == 0 for phase in phases)
    tokens = sum(phase.tokens for phase in phases) if known else None
    rate = tokens / elapsed_s if tokens is not None and elapsed_s else None
    ok, chunks = sum(phase.ok for phase in phases), sum(phase.chunks for phase in phases)
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
