"""One phase's table of requests reduced to sums and one value a request, some rows at a time.

Memory does not grow with the output: of the gaps between events only their sum and bounds are kept, and
whoever needs more of them reads them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from assay.metrics.latency import Derived, Floats, chunk_offsets, column, derive, gaps_of, of_rows, statuses
from assay.metrics.order import Integers
from assay.records.columns import array_of, extreme_of, numbers_of
from assay.records.requests import read_batches
from assay.vocab import RequestStatus

PER_REQUEST = (
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
)
"""Values of docs/metrics.md of which a phase keeps one for each ok request."""
_GAP_COLUMNS = ("status", "chunk_offsets_ns")
_COLUMNS = (
    *("status", "error_class", "finish_reason", "timestamp_source", "n_coalesced", "chunk_offsets_ns"),
    *("t_scheduled_ns", "t_send_ns", "t_first_token_ns", "t_first_answer_ns", "t_last_token_ns", "t_end_ns"),
    *("n_prompt", "n_cached", "n_output", "n_output_source", "n_reasoning", "n_first_chunk"),
)

Window = tuple[int, int]
Read = Callable[[Sequence[str]], Iterable[pa.Table]]
"""Gives the rows with the columns asked for, in parts; may be asked again."""


@dataclass
class Total:
    """A sum of token counts, and of how many requests it is not known."""

    n: int = 0
    n_unknown: int = 0
    known: int = 0

    def add(self, values: Floats) -> None:
        unknown = np.isnan(values)
        self.n += len(values)
        self.n_unknown += int(unknown.sum())
        self.known += int(values[~unknown].sum())

    @property
    def value(self) -> int | None:
        """Null where nothing was added or a part is unknown."""
        return self.known if self.n and not self.n_unknown else None


@dataclass
class Phase:
    """Sums over the requests of a phase; those over ok requests alone stand under ``ok``. Times: monotonic ns."""

    read: Read
    window_ns: Window | None = None
    issued: int = 0
    ok: int = 0
    failed: int = 0
    incomplete: int = 0
    error_classes: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    timestamp_sources: Counter[str] = field(default_factory=Counter)
    events: int = 0
    coalesced: int = 0
    t_first_ns: int | None = None
    t_last_end_ns: int | None = None

    ok_no_answer: int = 0
    ok_sources: Counter[str] = field(default_factory=Counter)
    ok_output: Total = field(default_factory=Total)
    ok_prompt: Total = field(default_factory=Total)
    ok_cached: Total = field(default_factory=Total)
    ok_reasoning: Total = field(default_factory=Total)
    ok_chunks: int = 0
    ok_first_chunk_assumed: int = 0
    window_tokens: float = 0.0
    values: dict[str, list[Floats]] = field(default_factory=dict)
    gap_n: int = 0
    gap_sum_ns: int = 0
    gap_low_ns: int = 0
    gap_high_ns: int = 0

    @property
    def not_ok(self) -> int:
        return self.issued - self.ok

    @property
    def elapsed_s(self) -> float | None:
        """From the begin of the first request to the last end of all, the drain included."""
        if self.t_first_ns is None or self.t_last_end_ns is None:
            return None
        return (self.t_last_end_ns - self.t_first_ns) / 1e9

    def gaps_ns(self) -> Iterator[Integers]:
        """The gaps between output events of ok requests, read again."""
        for table in self.read(_GAP_COLUMNS):
            yield of_rows(*gaps_of(table), statuses(table) == RequestStatus.OK.value)

    def _begin(self, table: pa.Table, derived: Derived) -> None:
        """A request that found no connection began when it was due, or an outage would cost no time."""
        sends = table.column("t_send_ns")
        unsent = derived.failed & ~numbers_of(sends)[1]
        dues = table.column("t_scheduled_ns").filter(array_of(unsent.tolist(), pa.bool_()))
        self.t_first_ns = extreme_of(dues, min, extreme_of(sends, min, self.t_first_ns))

    def add(self, table: pa.Table) -> None:
        """Count some more rows."""
        derived = derive(table)
        ok = derived.ok
        self.issued += table.num_rows
        self.ok += int(ok.sum())
        self.failed += int(derived.failed.sum())
        self.incomplete += int(derived.incomplete.sum())
        self.error_classes.update(_words(table, "error_class"))
        self.finish_reasons.update(_words(table, "finish_reason"))
        self.timestamp_sources.update(_words(table, "timestamp_source"))
        self.events += int(derived.n_chunks.sum())
        self.coalesced += int(np.nansum(column(table, "n_coalesced")))
        self._begin(table, derived)
        self.t_last_end_ns = extreme_of(table.column("t_end_ns"), max, self.t_last_end_ns)
        self.ok_no_answer += int((ok & np.isnan(derived.ttfa_ms)).sum())
        sources = np.asarray(table.column("n_output_source").to_pylist(), dtype=object)[ok]
        self.ok_sources.update(word for word in sources.tolist() if word is not None)
        self.ok_output.add(derived.n_output[ok])
        self.ok_prompt.add(column(table, "n_prompt")[ok])
        self.ok_cached.add(column(table, "n_cached")[ok])
        self.ok_reasoning.add(column(table, "n_reasoning")[ok])
        self.ok_chunks += int(derived.n_chunks[ok].sum())
        self.ok_first_chunk_assumed += int((derived.first_chunk_assumed & ok).sum())
        if self.window_ns is not None:
            self.window_tokens += tokens_inside(table, derived, self.window_ns)
        for name in PER_REQUEST:
            self.values.setdefault(name, []).append(getattr(derived, name)[ok])
        gaps = of_rows(derived.gaps_ns, derived.icl_bounds, ok)
        if len(gaps):
            low, high = int(gaps.min()), int(gaps.max())
            self.gap_low_ns = min(low, self.gap_low_ns) if self.gap_n else low
            self.gap_high_ns = max(high, self.gap_high_ns) if self.gap_n else high
            self.gap_n += len(gaps)
            self.gap_sum_ns += int(gaps.sum())


def reduce_phase(read: Read, window_ns: Window | None = None) -> Phase:
    """All rows that ``read`` gives. ``window_ns`` is the issuing window on the client's monotonic clock."""
    phase = Phase(read, window_ns)
    for table in read(_COLUMNS):
        phase.add(table)
    return phase


def reduce_table(table: pa.Table, window_ns: Window | None = None) -> Phase:
    """The same of a table in memory."""
    return reduce_phase(lambda columns: [table.select(list(columns))], window_ns)


def read_phase(path: Path, window_ns: Window | None = None) -> Phase:
    """The same of a ``requests.parquet``. Raises Incomplete naming a table that cannot be read."""
    return reduce_phase(partial(read_batches, path), window_ns)


def opening_tokens(read: Read, window_ns: Window) -> float | None:
    """Tokens that ok requests of the opening put out in the window; None when one in flight is unknown."""
    tokens = 0.0
    for table in read(_COLUMNS):
        derived = derive(table)
        ends, _ = numbers_of(table.column("t_end_ns"))
        if (derived.ok & np.isnan(derived.n_output) & (ends >= window_ns[0])).any():
            return None
        tokens += tokens_inside(table, derived, window_ns)
    return tokens


def tokens_inside(table: pa.Table, derived: Derived, window_ns: Window) -> float:
    """Output tokens of ok requests whose event fell inside [start, end): tokens spread over their events.

    The first event has ``n_first_chunk`` tokens (1 where unknown, all where it is the only one), the later
    ones share the rest evenly: usage says how many there were, not which event carried which.
    """
    offsets, bounds = chunk_offsets(table)
    counts = np.diff(bounds)
    sends, _ = numbers_of(table.column("t_send_ns"))
    times = offsets + np.repeat(sends, counts)
    inside = (times >= window_ns[0]) & (times < window_ns[1])
    n_first = np.nan_to_num(column(table, "n_first_chunk"), nan=1.0)
    n_output = np.nan_to_num(derived.n_output, nan=0.0)
    n_first = np.where(counts == 1, n_output, np.minimum(n_first, n_output))
    rest = np.where(counts > 1, (n_output - n_first) / np.maximum(counts - 1, 1), 0.0)
    weights = np.repeat(rest, counts)
    some = counts > 0
    weights[bounds[:-1][some]] = n_first[some]
    return float(weights[inside & np.repeat(derived.ok, counts)].sum())


def _words(table: pa.Table, name: str) -> list[str]:
    return [word for word in table.column(name).to_pylist() if word is not None]
