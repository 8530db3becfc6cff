"""Per-request values, derived from the table of requests. docs/metrics.md has each formula."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from assay.records.columns import lists_of, numbers_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Derived:
    """One value per row of the table, NaN where it cannot be known. Times in ms.

    ``gaps_ns`` holds the gaps of all requests one after the other, and ``icl_ms`` the same in ms; those of row
    i are ``icl_ms[icl_bounds[i]:icl_bounds[i + 1]]``.
    """

    ok: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    incomplete: NDArray[np.bool_]
    ttft_ms: Floats
    ttfa_ms: Floats
    e2e_ms: Floats
    stream_end_ms: Floats
    schedule_delay_ms: Floats
    ttft_from_schedule_ms: Floats
    e2e_from_schedule_ms: Floats
    tpot_ms: Floats
    first_chunk_assumed: NDArray[np.bool_]
    n_output: Floats
    n_chunks: NDArray[np.int64]
    tokens_per_chunk: Floats
    served_rate_tok_s: Floats
    gaps_ns: NDArray[np.int64]
    icl_bounds: NDArray[np.int64]

    def icl_of(self, keep: NDArray[np.bool_]) -> Floats:
        """The gaps of the rows of ``keep``, in one array."""
        return of_rows(self.gaps_ns, self.icl_bounds, keep) / 1e6

    @cached_property
    def icl_ms(self) -> Floats:
        return self.gaps_ns / 1e6


def column(table: pa.Table, name: str) -> Floats:
    """An integer column as float64, NaN for null. Exact below 2**53; use ``difference_ms`` for times."""
    values, valid = numbers_of(table.column(name))
    return np.where(valid, values.astype(np.float64), np.nan)


def difference_ms(table: pa.Table, later: str, earlier: str) -> Floats:
    """``later - earlier`` of two ns columns in ms, subtracted as integers; NaN where either is null."""
    a, a_valid = numbers_of(table.column(later))
    b, b_valid = numbers_of(table.column(earlier))
    return np.where(a_valid & b_valid, (a - b) / 1e6, np.nan)


def chunk_offsets(table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(all offsets in ns, bounds of shape rows + 1): the list column flat."""
    return lists_of(table.column("chunk_offsets_ns"))


def gaps_of(table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the gaps between output events in ns, bounds of shape rows + 1), as ``chunk_offsets`` gives the offsets."""
    offsets, bounds = chunk_offsets(table)
    gaps = np.diff(offsets)
    inside = np.ones(len(gaps), dtype=bool)
    starts = bounds[1:-1]
    inside[starts[(starts > 0) & (starts < len(offsets))] - 1] = False  # between two requests
    gap_bounds = np.concatenate(([0], np.cumsum(np.maximum(np.diff(bounds) - 1, 0)))).astype(np.int64)
    return gaps[inside], gap_bounds


def of_rows(gaps: NDArray[np.int64], bounds: NDArray[np.int64], keep: NDArray[np.bool_]) -> NDArray[np.int64]:
    """What ``gaps_of`` gave, of the rows of ``keep`` alone."""
    return gaps if keep.all() else gaps[np.repeat(keep, np.diff(bounds))]


def statuses(table: pa.Table) -> NDArray[np.object_]:
    """The status of each request, to be compared with one."""
    return np.asarray(table.column("status").to_pylist(), dtype=object)


def derive(table: pa.Table) -> Derived:
    """Everything per request. Raises nothing for missing values: they are NaN."""
    status = statuses(table)
    n_chunks = np.diff(chunk_offsets(table)[1])
    gaps, gap_bounds = gaps_of(table)
    n_output = column(table, "n_output")
    n_first = column(table, "n_first_chunk")
    assumed = np.isnan(n_first)
    denominator = n_output - np.where(assumed, 1.0, n_first)
    span_ms = difference_ms(table, "t_last_token_ns", "t_first_token_ns")
    e2e_ms = difference_ms(table, "t_last_token_ns", "t_send_ns")
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where((denominator >= 1) & (n_chunks > 1), span_ms / denominator, np.nan)
        per_chunk = np.where(n_chunks > 0, n_output / n_chunks, np.nan)
        rate = np.where(e2e_ms > 0, n_output / (e2e_ms / 1e3), np.nan)
    return Derived(
        ok=status == "ok",
        failed=status == "failed",
        incomplete=status == "incomplete",
        ttft_ms=difference_ms(table, "t_first_token_ns", "t_send_ns"),
        ttfa_ms=difference_ms(table, "t_first_answer_ns", "t_send_ns"),
        e2e_ms=e2e_ms,
        stream_end_ms=difference_ms(table, "t_end_ns", "t_send_ns"),
        schedule_delay_ms=difference_ms(table, "t_send_ns", "t_scheduled_ns"),
        ttft_from_schedule_ms=difference_ms(table, "t_first_token_ns", "t_scheduled_ns"),
        e2e_from_schedule_ms=difference_ms(table, "t_last_token_ns", "t_scheduled_ns"),
        tpot_ms=tpot,
        first_chunk_assumed=assumed & ~np.isnan(tpot),
        n_output=n_output,
        n_chunks=n_chunks,
        tokens_per_chunk=per_chunk,
        served_rate_tok_s=rate,
        gaps_ns=gaps,
        icl_bounds=gap_bounds,
    )
