"""Did the load happen as claimed? In-flight trace, concurrency, client health: computed, not assumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.load.health import LAG_BOUNDS_MS
from assay.records.columns import numbers_of
from assay.records.requests import read_requests
from assay.vocab import Screen, ScreenResult

REACHED_MEAN_SHARE = 0.5
"""A phase that held less than half of N on average was not a load of N, whatever its highest moment."""
SERVER_SHARE = 0.9
SERVER_SAMPLES = 3
BUSY_LIMIT = 0.95
BUSY_SAMPLES_SHARE = 0.1
BUSY_SAMPLES = 3
LAG_P99_LIMIT_MS = 50.0
TRACE_POINTS = 200
_PRESSURE = Path("/proc/pressure")

Times = NDArray[np.int64]


def spans(tables: Sequence[Path]) -> tuple[Times, Times]:
    """(sends, ends) of every request that was sent, out of finished tables: nothing of it is kept in memory
    while the load runs. Shapes: one element a request, monotonic ns."""
    sends, ends = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for path in tables:
        table = read_requests(path, ["t_send_ns", "t_end_ns"])
        sent_ns, was_sent = numbers_of(table.column("t_send_ns"))
        sends.append(sent_ns[was_sent])
        ends.append(numbers_of(table.column("t_end_ns"))[0][was_sent])
    return np.concatenate(sends), np.concatenate(ends)


def in_flight_steps(sends_ns: Times, ends_ns: Times) -> tuple[Times, Times]:
    """(times, in flight from that time on): a step function. An end at the time of a send comes first."""
    times = np.concatenate((ends_ns, sends_ns))
    change = np.concatenate((np.full(len(ends_ns), -1), np.ones(len(sends_ns), dtype=np.int64)))
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(change[order]).astype(np.int64)


def mean_in_flight(times: Times, levels: Times, start_ns: int, end_ns: int) -> float | None:
    """Mean over [start, end], weighted by time."""
    return _weighted(times, levels.astype(np.float64), start_ns, end_ns)


def _weighted(times: Times, values: NDArray[np.float64], start_ns: int, end_ns: int) -> float | None:
    if end_ns <= start_ns or not len(times):
        return None
    bounds = np.clip(np.append(times, max(end_ns, int(times[-1]))), start_ns, end_ns)
    return float((np.diff(bounds) * values).sum() / (end_ns - start_ns))


def trace(times: Times, levels: Times, start_ns: int, end_ns: int) -> list[dict[str, float]]:
    """At most TRACE_POINTS equal bins over [start, end]: seconds from start, mean and highest in flight."""
    if end_ns <= start_ns or not len(times):
        return []
    edges = np.linspace(start_ns, end_ns, TRACE_POINTS + 1).astype(np.int64)
    positions = np.searchsorted(times, edges, side="right")
    area = np.concatenate(([0.0], np.cumsum(np.diff(times) * levels[:-1].astype(np.float64))))

    def area_until(edge: int, position: int) -> float:
        return (
            0.0
            if position == 0
            else float(area[position - 1] + (edge - times[position - 1]) * levels[position - 1])
        )

    points = []
    for i in range(TRACE_POINTS):
        left, right = int(edges[i]), int(edges[i + 1])
        if right <= left:
            continue
        a, b = int(positions[i]), int(positions[i + 1])
        inside = levels[max(a - 1, 0) : b]
        mean = (area_until(right, b) - area_until(left, a)) / (right - left)
        points.append(
            {
                "t_s": (left - start_ns) / 1e9,
                "mean": round(mean, 3),
                "max": int(inside.max()) if len(inside) else 0,
            }
        )
    return points


def concurrency_reached(
    asked: int,
    times: Times,
    levels: Times,
    due_ns: int,
    issue_end_ns: int,
    gauge_samples: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """The claim of N in flight, checked at the client and, where its gauges were read, at the server.

    The window runs from when N was reached, at the latest from ``due_ns``, when every stream was to have
    started, to the end of the issuing.
    """
    highest = int(levels.max()) if len(levels) else 0
    reached = np.flatnonzero(levels >= asked)
    start_ns = min(int(times[reached[0]]), due_ns) if len(reached) else due_ns
    mean = mean_in_flight(times, levels, start_ns, issue_end_ns)
    share = _weighted(times, (levels >= asked).astype(np.float64), start_ns, issue_end_ns)
    known = [
        sample["running"] + (sample["waiting"] or 0)
        for sample in gauge_samples
        if start_ns <= sample["t_ns"] <= issue_end_ns and sample.get("running") is not None
    ]
    server_max = max(known, default=None)
    server_agrees = (
        None if len(known) < SERVER_SAMPLES or server_max is None else server_max >= SERVER_SHARE * asked
    )
    good = (
        highest >= asked
        and (mean is None or mean >= REACHED_MEAN_SHARE * asked)
        and server_agrees is not False
    )
    return {
        "name": Screen.CONCURRENCY_REACHED.value,
        "result": (ScreenResult.PASS if good else ScreenResult.FAIL).value,
        "measured": {
            "max": highest,
            "mean": mean,
            "share_at_n": share,
            "t_reached_ns": int(times[reached[0]]) if len(reached) else None,
            "server_max": server_max,
            "server_samples": len(known),
            "server_agrees": server_agrees,
        },
        "threshold": {"n": asked, "mean_share": REACHED_MEAN_SHARE, "server_share": SERVER_SHARE},
    }


def lag_percentile_ms(counts: Sequence[int], quantile: float) -> float | None:
    """Upper bound of the bucket that holds the quantile; None without ticks; +inf never (5 s ends it)."""
    total = sum(counts)
    if not total:
        return None
    seen = 0
    for bound, count in zip((*LAG_BOUNDS_MS, LAG_BOUNDS_MS[-1]), counts, strict=True):
        seen += count
        if seen >= quantile * total:
            return bound
    return LAG_BOUNDS_MS[-1]


def client_bound(processes: Sequence[dict[str, Any]], samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Was the client the bottleneck? ``fail`` means it was.

    Busy is the share of time a client process ran or waited for a CPU: over the whole phase, or in a tenth
    of its one-second samples. The loop's lag is how late its timers fired.
    """
    busy = [process["cpu_share"] + (process["wait_share"] or 0.0) for process in processes]
    busy_samples = [sample["cpu_share"] + (sample["wait_share"] or 0.0) >= BUSY_LIMIT for sample in samples]
    lags = [lag_percentile_ms(process["lag_counts"], 0.99) for process in processes]
    known_lags = [lag for lag in lags if lag is not None]
    share = sum(busy_samples) / len(busy_samples) if busy_samples else None
    measured = {
        "busy_max": max(busy, default=None),
        "cpu_share_max": max((process["cpu_share"] for process in processes), default=None),
        "busy_samples_share": share,
        "n_samples": len(busy_samples),
        "lag_p99_ms": max(known_lags, default=None),
        "lag_max_ms": max((process["lag_max_ms"] for process in processes), default=None),
    }
    if not processes or not known_lags:
        result = ScreenResult.NOT_CHECKED
    else:
        bound = (
            max(busy) >= BUSY_LIMIT
            or (len(busy_samples) >= BUSY_SAMPLES and (share or 0.0) >= BUSY_SAMPLES_SHARE)
            or max(known_lags) > LAG_P99_LIMIT_MS
        )
        result = ScreenResult.FAIL if bound else ScreenResult.PASS
    return {
        "name": Screen.CLIENT_BOUND.value,
        "result": result.value,
        "measured": measured,
        "threshold": {
            "busy": BUSY_LIMIT,
            "busy_samples_share": BUSY_SAMPLES_SHARE,
            "lag_p99_ms": LAG_P99_LIMIT_MS,
        },
    }


def read_pressure() -> dict[str, Any]:
    """Stall totals of the host in microseconds, ``{cpu, memory, io}``; None with a reason when absent."""
    result: dict[str, Any] = {}
    for name in ("cpu", "memory", "io"):
        try:
            line = (_PRESSURE / name).read_text().splitlines()[0]
            result[name] = int(line.rsplit("total=", 1)[1])
        except (OSError, ValueError, IndexError) as error:
            result[name] = None
            result["reason"] = f"{type(error).__name__}: the host tells no pressure"
    return result


def pressure_share(before: dict[str, Any], after: dict[str, Any], wall_s: float) -> dict[str, Any]:
    """Share of the time in which some task of the host was stalled, per resource."""
    shares: dict[str, Any] = {"reason": before.get("reason")}
    for name in ("cpu", "memory", "io"):
        known = before[name] is not None and after[name] is not None and wall_s > 0
        shares[name] = (after[name] - before[name]) / 1e6 / wall_s if known else None
    return shares
