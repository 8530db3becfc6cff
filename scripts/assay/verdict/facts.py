"""What the screens need to know of a table of requests, read in one pass, a batch of rows at a time.

Memory stays flat: the wide columns (bodies, the list of event offsets) are not read here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from assay.metrics.latency import statuses
from assay.records.columns import extreme_of, numbers_of
from assay.records.requests import read_batches
from assay.vocab import ErrorClass, RequestStatus

_COLUMNS = [
    "session_id",
    "status",
    "error_class",
    "finish_reason",
    "t_send_ns",
    "t_end_ns",
    "t_first_token_ns",
    "n_prompt",
    "n_cached",
    "n_output",
    "n_output_tokenizer",
    "n_reasoning",
    "n_requested",
    "n_planned_prompt",
    "ignore_eos",
    "reasoning_seen",
    "think_tag_seen",
    "prompt_id",
]


@dataclass
class RequestFacts:
    """Counts over all requests of a phase; where it matters the population is in the name (``ok_...``)."""

    issued: int = 0
    ok: int = 0
    failed: int = 0
    incomplete: int = 0
    other_status: int = 0
    error_classes: Counter[str] = field(default_factory=Counter)
    sessions: Counter[str] = field(default_factory=Counter)
    prompt_ids: set[str] = field(default_factory=set)
    t_first_send_ns: int | None = None
    t_last_end_ns: int | None = None
    ok_prefill_tok_s_max: float | None = None
    """Largest n_prompt / ttft of an ok request, in tokens/s."""
    ok_prompt_tokens: int = 0
    ok_cached_known: int = 0
    """ok requests whose usage told the cached prompt tokens."""
    ok_cached_tokens: int = 0
    ok_output_known: int = 0
    ok_output_over_requested: int = 0
    forced: int = 0
    """ok requests that ignored the end of sequence."""
    forced_short: int = 0
    """of these: not n_output = n_requested, or finish_reason not length."""
    forced_unknown: int = 0
    planned_known: int = 0
    """ok requests with both a planned and a served prompt length."""
    planned_off_max_tokens: int = 0
    planned_off_max_share: float | None = None
    counted_twice: int = 0
    """ok requests whose output tokens both the server and the tokenizer counted."""
    count_off: int = 0
    """of these: the two counts differ at all."""
    count_off_max_tokens: int = 0
    count_off_max_share: float | None = None
    thinking_requests: int = 0
    """requests with reasoning tokens, a reasoning delta or a think tag in the content."""
    thinking_known: int = 0


def _ints(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(values with 0 where null, mask of the known)."""
    values, known = numbers_of(table.column(name))
    return values.astype(np.int64), known


def _flags(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    column = table.column(name)
    known = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(bool), known


def _larger(old: float | None, values: np.ndarray) -> float | None:
    if not len(values):
        return old
    new = float(values.max())
    return new if old is None else max(old, new)


def _count(facts: RequestFacts, table: pa.Table) -> np.ndarray:
    """Add the counts of one batch; returns the mask of its ok requests."""
    status = statuses(table)
    ok: np.ndarray = np.equal(status, str(RequestStatus.OK)).astype(bool)
    facts.issued += len(status)
    facts.ok += int(ok.sum())
    facts.failed += int((status == RequestStatus.FAILED).sum())
    facts.incomplete += int((status == RequestStatus.INCOMPLETE).sum())
    facts.other_status = facts.issued - facts.ok - facts.failed - facts.incomplete
    errors = pc.value_counts(table.column("error_class").drop_null())
    known = {str(word) for word in ErrorClass}
    for entry in errors.to_pylist():
        word = entry["values"] if entry["values"] in known else "unknown_class"
        facts.error_classes[word] += entry["counts"]
    for entry in pc.value_counts(table.column("session_id")).to_pylist():
        facts.sessions[entry["values"] or ""] += entry["counts"]
    facts.prompt_ids.update(pc.unique(table.column("prompt_id")).to_pylist())
    facts.t_first_send_ns = extreme_of(table.column("t_send_ns"), min, facts.t_first_send_ns)
    facts.t_last_end_ns = extreme_of(table.column("t_end_ns"), max, facts.t_last_end_ns)
    return ok


def _measure(facts: RequestFacts, table: pa.Table, ok: np.ndarray) -> None:
    n_prompt, prompt_known = _ints(table, "n_prompt")
    first, first_known = _ints(table, "t_first_token_ns")
    send, send_known = _ints(table, "t_send_ns")
    timed = ok & prompt_known & first_known & send_known & (first > send)
    rate_tok_s = n_prompt[timed] / ((first[timed] - send[timed]) / 1e9)
    facts.ok_prefill_tok_s_max = _larger(facts.ok_prefill_tok_s_max, rate_tok_s)

    n_cached, cached_known = _ints(table, "n_cached")
    told = ok & cached_known & prompt_known
    facts.ok_cached_known += int(told.sum())
    facts.ok_cached_tokens += int(n_cached[told].sum())
    facts.ok_prompt_tokens += int(n_prompt[told].sum())

    n_output, output_known = _ints(table, "n_output")
    n_requested, requested_known = _ints(table, "n_requested")
    both = ok & output_known & requested_known
    facts.ok_output_known += int((ok & output_known).sum())
    facts.ok_output_over_requested += int((n_output[both] > n_requested[both]).sum())

    forced, _ = _flags(table, "ignore_eos")
    forced &= ok
    by_length = np.asarray(table.column("finish_reason").to_pylist(), dtype=object) == "length"
    facts.forced += int(forced.sum())
    facts.forced_unknown += int((forced & ~both).sum())
    facts.forced_short += int((forced & both & ~((n_output == n_requested) & by_length)).sum())

    planned, planned_known = _ints(table, "n_planned_prompt")
    pair = ok & planned_known & prompt_known & (planned > 0)
    off = np.abs(n_prompt[pair] - planned[pair])
    facts.planned_known += int(pair.sum())
    if len(off):
        facts.planned_off_max_tokens = max(facts.planned_off_max_tokens, int(off.max()))
    facts.planned_off_max_share = _larger(facts.planned_off_max_share, off / planned[pair])

    recount, recount_known = _ints(table, "n_output_tokenizer")
    twice = ok & recount_known & output_known
    gap = np.abs(n_output[twice] - recount[twice])
    facts.counted_twice += int(twice.sum())
    facts.count_off += int((gap > 0).sum())
    if len(gap):
        facts.count_off_max_tokens = max(facts.count_off_max_tokens, int(gap.max()))
    facts.count_off_max_share = _larger(facts.count_off_max_share, gap / np.maximum(n_output[twice], 1))

    reasoning, reasoning_known = _flags(table, "reasoning_seen")
    tag, tag_known = _flags(table, "think_tag_seen")
    n_reasoning, n_known = _ints(table, "n_reasoning")
    facts.thinking_requests += int((reasoning | tag | (n_reasoning > 0)).sum())
    facts.thinking_known += int((reasoning_known | tag_known | n_known).sum())


def read_facts(paths: Iterable[Path]) -> RequestFacts:
    """Facts of the requests in ``paths`` together. Raises Incomplete naming a table that cannot be read."""
    facts = RequestFacts()
    for path in paths:
        for table in read_batches(path, _COLUMNS):
            _measure(facts, table, _count(facts, table))
    return facts
