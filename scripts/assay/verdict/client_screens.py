"""The row screens on the client: did it put the load on that it claims, and could it keep up?

Reads client.json (docs/metrics.md has its fields). A value that is not there is unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.verdict.findings import Finding
from assay.verdict.record import LoadRecord
from assay.verdict.screens import FAIL, NOT_CHECKED, PASS, Limits, unknown
from assay.vocab import Reason, Screen


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def screen_concurrency(record: LoadRecord, limits: Limits) -> Finding:
    """The most requests in flight against the N that was asked, and the share of the phase at N."""
    limit = limits[Screen.CONCURRENCY_REACHED]
    asked = record.point.get("concurrency")
    share_min = limit["share_at_n_min"].get(record.point.get("kind"), 0.0)
    threshold = {"in_flight": asked, "share_at_n_min": share_min}
    if record.client is None or asked is None:
        return unknown(Screen.CONCURRENCY_REACHED, "no record of the client", threshold=threshold)
    reached, share = (
        _number(record.client.get("concurrency_reached")),
        _number(record.client.get("share_at_n")),
    )
    measured: dict[str, Any] = {
        "in_flight_max": reached,
        "share_at_n": share,
        "server_in_flight_max": _server_in_flight(record.counters),
    }
    evidence = record.paths("client", "counters")
    if Reason.CLIENT_REFUSED in (record.client.get("reasons") or ()):
        why = "the host refused threads, sockets or memory to the client"
        return Finding(Screen.CONCURRENCY_REACHED, measured, threshold, FAIL, evidence, why)
    if reached is None:
        why = "the client did not count its requests in flight"
        return Finding(Screen.CONCURRENCY_REACHED, measured, threshold, NOT_CHECKED, evidence, why)
    if reached < asked:
        why = f"{reached:.0f} of {asked} requests were in flight at most"
        return Finding(Screen.CONCURRENCY_REACHED, measured, threshold, FAIL, evidence, why)
    if share is None and share_min > 0:
        why = "the share of the phase at N is unknown"
        return Finding(Screen.CONCURRENCY_REACHED, measured, threshold, NOT_CHECKED, evidence, why)
    if share is not None and share < share_min:
        why = f"N requests were in flight only {share:.0%} of the phase"
        return Finding(Screen.CONCURRENCY_REACHED, measured, threshold, FAIL, evidence, why)
    return Finding(Screen.CONCURRENCY_REACHED, measured, threshold, PASS, evidence)


def _server_in_flight(counters: Mapping[str, Any] | None) -> float | None:
    """The largest running + waiting that the server's own gauges showed."""
    totals = [
        sample["running"] + (sample.get("waiting") or 0)
        for sample in (counters or {}).get("gauges") or ()
        if sample.get("running") is not None
    ]
    return max(totals, default=None)


def screen_client_bound(record: LoadRecord, limits: Limits) -> Finding:
    """Event-loop lag, CPU share of the busiest client process, and the host's CPU pressure, against the
    limits."""
    limit = limits[Screen.CLIENT_BOUND]
    health = (record.client or {}).get("health")
    if not isinstance(health, Mapping):
        return unknown(Screen.CLIENT_BOUND, "no record of the client's health", threshold=dict(limit))
    measured = {
        "loop_lag_p99_ms": _number(health.get("loop_lag_p99_ms")),
        "cpu_share": _number(health.get("cpu_share_max")),
        "psi_cpu_some_share": _number(health.get("psi_cpu_some_share")),
    }
    evidence = record.paths("client")
    over = [
        f"{name} {value:.3g} over {limit[name + '_max']:g}"
        for name, value in measured.items()
        if value is not None and value > limit[name + "_max"]
    ]
    if over:
        return Finding(Screen.CLIENT_BOUND, measured, dict(limit), FAIL, evidence, "; ".join(over))
    if measured["loop_lag_p99_ms"] is None or measured["cpu_share"] is None:
        why = "loop lag or CPU share of the client is unknown"
        return Finding(Screen.CLIENT_BOUND, measured, dict(limit), NOT_CHECKED, evidence, why)
    return Finding(Screen.CLIENT_BOUND, measured, dict(limit), PASS, evidence)
