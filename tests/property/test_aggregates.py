"""Properties of aggregates: order does not matter, failures never help, and the sums are those of the rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.extract.values import summarise as pool
from assay.metrics.aggregate import percentiles, summarise_phase
from assay.metrics.latency import derive
from assay.metrics.order import order_statistics
from assay.metrics.phase import Phase, Total, reduce_phase, reduce_table
from assay.records.columns import array_of, list_array_of, lists_of, numbers_of
from assay.records.requests import REQUEST_SCHEMA

VALUES = st.lists(st.floats(0, 1e9), max_size=60)


@st.composite
def request_rows(draw: st.DrawFn) -> dict[str, Any]:
    """One row as a client may write it."""
    row: dict[str, Any] = dict.fromkeys(REQUEST_SCHEMA.names)
    row |= {"request_id": "r", "prompt_id": "p", "point_id": "x", "worker": 0, "terminal_seen": True}
    row["status"] = draw(st.sampled_from(["ok", "ok", "ok", "failed", "incomplete"]))
    send = draw(st.integers(0, 10**12))
    offsets = sorted(draw(st.lists(st.integers(1, 10**10), min_size=row["status"] == "ok", max_size=8)))
    row |= {
        "t_scheduled_ns": send - draw(st.integers(0, 10**9)),
        "t_send_ns": send,
        "chunk_offsets_ns": offsets,
    }
    if offsets:
        row |= {
            "t_first_token_ns": send + offsets[0],
            "t_last_token_ns": send + offsets[-1],
            "n_coalesced": 0,
        }
    row["t_end_ns"] = send + (offsets[-1] if offsets else 0) + draw(st.integers(1, 10**9))
    if row["status"] == "ok":
        row |= {"n_output": draw(st.integers(1, 300)), "n_prompt": 5, "n_output_source": "usage"}
    return row


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)


def summary_of(rows: list[dict[str, Any]], window_ns: tuple[int, int] | None = None) -> dict[str, Any]:
    return summarise_phase(reduce_table(table_of(rows), window_ns))


@settings(deadline=None)  # a busy host is no wrong answer
@given(st.lists(request_rows(), max_size=25), st.randoms(use_true_random=False))
def test_order_does_not_matter(rows: list[dict[str, Any]], random: Any) -> None:
    """A summary is the same for every order of the rows."""
    shuffled = list(rows)
    random.shuffle(shuffled)
    window = (0, 10**12)
    a, b = summary_of(rows, window), summary_of(shuffled, window)
    assert flat(a) == pytest.approx(flat(b), nan_ok=True)


@settings(deadline=None)  # a busy host is no wrong answer
@given(st.lists(request_rows(), max_size=25), st.lists(st.integers(0, 25), max_size=6))
def test_parts_do_not_matter(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    """A summary is the same however the rows come in parts, empty parts too."""
    table, bounds = table_of(rows), [0, *sorted(cuts), 25]
    parts = [table.slice(low, high - low) for low, high in pairwise(bounds)]
    whole = summary_of(rows, (0, 10**12))
    window = (0, 10**12)
    phase = reduce_phase(lambda columns: [part.select(list(columns)) for part in parts], window)
    found = summarise_phase(phase, opening=lambda _columns: parts)
    assert found["throughput"].pop("window_opening_tokens") == pytest.approx(phase.window_tokens)
    expected = whole["throughput"]
    if expected["window_tok_s"] is not None:
        expected["window_tok_s"] *= 2  # the opening here is the phase itself
    assert flat(found) == pytest.approx(flat(whole), nan_ok=True)
    assert found["requests"] == whole["requests"]


@settings(deadline=None)  # a busy host is no wrong answer
@given(st.lists(st.lists(st.integers(0, 2**40) | st.integers(0, 9)), min_size=1), st.data())
def test_order_statistics_are_those_of_the_sorted_values(parts: list[list[int]], data: st.DataObject) -> None:
    """The value of any rank is the one that sorting everything puts there; a rank past the end is refused."""
    ordered = sorted(value for part in parts for value in part)
    arrays = [np.array(part, dtype=np.int64) for part in parts]
    ranks = data.draw(st.sets(st.integers(0, len(ordered) - 1))) if ordered else set()
    low, high = (ordered[0], ordered[-1]) if ordered else (0, 0)
    assert order_statistics(lambda: arrays, low, high, ranks) == {rank: ordered[rank] for rank in ranks}
    with pytest.raises(ValueError, match="no value of rank"):
        order_statistics(lambda: arrays, low, high, {len(ordered)})


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {
            key: one for part, inner in value.items() for key, one in flat(inner, f"{name}.{part}").items()
        }
    return {name: value} if isinstance(value, int | float) else {}


@settings(deadline=None)  # a busy host is no wrong answer
@given(st.lists(request_rows(), min_size=1, max_size=25))
def test_the_sums_are_those_of_the_rows(rows: list[dict[str, Any]]) -> None:
    """Counts add up to issued; tokens, elapsed time and gaps equal sums written out by hand."""
    summary = summary_of(rows, (-1, 10**13))
    counted, rates = summary["requests"], summary["throughput"]
    assert counted["issued"] == len(rows) == counted["ok"] + counted["failed"] + counted["incomplete"]
    ok = [row for row in rows if row["status"] == "ok"]
    tokens = sum(row["n_output"] for row in ok)
    elapsed_s = (max(row["t_end_ns"] for row in rows) - min(row["t_send_ns"] for row in rows)) / 1e9
    assert rates["output_tok_s"] == pytest.approx(tokens / elapsed_s)
    assert rates["window_tok_s"] == pytest.approx(tokens / 1e4, rel=1e-6)
    gaps = [
        b - a
        for row in ok
        for a, b in zip(row["chunk_offsets_ns"], row["chunk_offsets_ns"][1:], strict=False)
    ]
    assert summary["latency"]["icl_ms"]["n"] == len(gaps)
    if gaps:
        assert summary["latency"]["icl_ms"]["mean"] == pytest.approx(sum(gaps) / len(gaps) / 1e6, abs=1e-9)


@settings(deadline=None)  # a busy host is no wrong answer
@given(st.lists(request_rows(), min_size=1, max_size=25), st.integers(0, 24))
def test_a_failure_never_makes_it_better(rows: list[dict[str, Any]], which: int) -> None:
    """Turning an ok request into a failed one lowers no adjusted percentile and no token count rises."""
    rows[which % len(rows)] |= {"status": "ok", "n_output": 3}
    if not rows[which % len(rows)]["chunk_offsets_ns"]:
        rows[which % len(rows)] |= {"chunk_offsets_ns": [], "t_first_token_ns": None, "t_last_token_ns": None}
    worse = [dict(row) for row in rows]
    worse[which % len(rows)]["status"] = "failed"
    a, b = summary_of(rows), summary_of(worse)
    assert b["throughput"]["output_tokens"] <= a["throughput"]["output_tokens"]
    before, after = a["latency"]["e2e_ms"]["adj_p50"], b["latency"]["e2e_ms"]["adj_p50"]
    if before is not None and after is not None:
        assert number(after) >= number(before) - 1e-9


def number(value: Any) -> float:
    return float("inf") if value == "inf" else float(value)


@settings(deadline=None)  # a busy host is no wrong answer
@given(VALUES, st.integers(0, 20))
def test_percentiles_are_numpys(values: list[float], n_failed: int) -> None:
    """Percentiles are numpy's linear ones, and the adjusted ones those of the values with +inf for failures."""
    result = percentiles(values, n_failed)
    assert result["n"] == len(values)
    if values:
        assert result["p50"] == pytest.approx(float(np.percentile(values, 50)))
    everything = sorted(values) + [float("inf")] * n_failed
    if everything:
        position = (len(everything) - 1) * 0.5
        low, high = everything[int(position)], everything[min(int(position) + 1, len(everything) - 1)]
        expected = low if position == int(position) else low + (high - low) * (position - int(position))
        expected = float("inf") if high == float("inf") and position != int(position) else expected
        assert number(result["adj_p50"]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("n", "p90", "p99"), [(63, False, False), (64, True, False), (661, True, False), (662, True, True)]
)
def test_quantiles_need_samples(n: int, p90: bool, p99: bool) -> None:
    """p90 is null under 64 samples and p99 under 662; the maximum is there from the first on."""
    result = percentiles([float(i) for i in range(n)])
    assert (result["p90"] is not None, result["p99"] is not None, result["max"]) == (p90, p99, n - 1)


def test_a_percent_of_failures_makes_adjusted_p99_infinite() -> None:
    """980 fast requests and 20 failed: p99 of the successes is finite, the adjusted one is not."""
    result = percentiles([1.0] * 980, 20)
    assert (result["p99"], result["adj_p99"], result["adj_p90"]) == (1.0, "inf", 1.0)


def test_unknown_values_are_counted_and_left_out() -> None:
    """NaN is no value: it is not among n, and an empty population has null statistics, not zeros."""
    result = percentiles([1.0, float("nan"), 3.0])
    assert (result["n"], result["n_unknown"], result["mean"]) == (2, 1, 2.0)
    empty = percentiles([])
    assert (empty["n"], empty["p50"], empty["max"], empty["adj_p50"]) == (0, None, None, None)


def test_windows_are_pooled_by_sums() -> None:
    """100 tokens in 1 s and 100 in 3 s are 50 per second pooled, not the mean of the rates."""
    slow, fast, cut = (
        Phase(lambda _columns: [], ok=10, issued=10, ok_output=Total(10, 0, 100)) for _ in range(3)
    )
    fast.t_first_ns = slow.t_first_ns = 0
    fast.t_last_end_ns, slow.t_last_end_ns = 10**9, 3 * 10**9
    pooled = pool([slow, fast], None)
    assert (pooled["output_tok_s"], pooled["output_tokens"], pooled["requests_s"]) == (50.0, 200, 5.0)
    assert pool([fast, cut], None)["output_tok_s"] is None
    assert pool([], None)["output_tok_s"] is None


def test_a_status_outside_the_vocabulary_is_refused() -> None:
    """Issued must be the sum of the three ends; a row with another status is an error, not a silent gap."""
    row = dict.fromkeys(REQUEST_SCHEMA.names) | {"status": "lost", "chunk_offsets_ns": []}
    row |= {"request_id": "r", "prompt_id": "p", "point_id": "x", "worker": 0, "terminal_seen": False}
    with pytest.raises(ValueError, match="issued"):
        summary_of([row])


INTEGERS = st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=40)


@settings(deadline=None)  # a busy host is no wrong answer
@given(
    INTEGERS,
    st.lists(st.none() | st.text(st.characters(exclude_categories=("Cs",)))),
    st.lists(st.none() | st.booleans()),
)
def test_columns_go_there_and_back(numbers: list[Any], texts: list[Any], flags: list[Any]) -> None:
    """Columns built from buffers hold what pyarrow's own builders would, and come back the same."""
    for values, kind in (
        (numbers, pa.int32()),
        (numbers, pa.int64()),
        (texts, pa.string()),
        (flags, pa.bool_()),
    ):
        column = array_of(values, kind)
        column.validate(full=True)
        assert column.to_pylist() == values
        assert column.equals(pa.array(values, kind))
    found, valid = numbers_of(pa.chunked_array([pa.array(numbers, pa.int64())]).slice(len(numbers) // 2))
    assert [int(n) if v else None for n, v in zip(found, valid, strict=True)] == numbers[len(numbers) // 2 :]


@settings(deadline=None)  # a busy host is no wrong answer
@given(st.lists(st.lists(st.integers(0, 2**60), max_size=5), max_size=12), st.integers(0, 6))
def test_lists_go_there_and_back(lists: list[list[int]], skip: int) -> None:
    """A list column holds its lists, and gives them flat with their bounds, sliced or not."""
    bounds = np.concatenate(([0], np.cumsum([len(one) for one in lists], dtype=np.int64)))
    flat_values = np.array([value for one in lists for value in one], dtype=np.int64)
    column = list_array_of(flat_values, bounds)
    column.validate(full=True)
    assert column.to_pylist() == lists
    values, found = lists_of(column.slice(skip))
    assert [values[a:b].tolist() for a, b in pairwise(found)] == lists[skip:]


def test_per_token_time_needs_two_events_and_a_token_between() -> None:
    """tpot is null for one event, and for a count that leaves no token after the first event."""
    base = dict.fromkeys(REQUEST_SCHEMA.names) | {
        "request_id": "r",
        "prompt_id": "p",
        "point_id": "x",
        "worker": 0,
    }
    base |= {"status": "ok", "terminal_seen": True, "t_send_ns": 0, "t_first_token_ns": 10, "t_end_ns": 100}
    one = base | {"chunk_offsets_ns": [10], "t_last_token_ns": 10, "n_output": 9}
    none_left = base | {
        "chunk_offsets_ns": [10, 90],
        "t_last_token_ns": 90,
        "n_output": 4,
        "n_first_chunk": 4,
    }
    good = base | {"chunk_offsets_ns": [10, 90], "t_last_token_ns": 90, "n_output": 5}
    tpot = derive(table_of([one, none_left, good])).tpot_ms
    assert np.isnan(tpot[:2]).all()
    assert tpot[2] == pytest.approx(20e-6)
