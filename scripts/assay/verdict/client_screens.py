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


def _own(record: LoadRecord, screen: Screen) -> Mapping[str, Any] | None:
    """What the load client itself found: {result, measured, threshold, reason}; None when it does not say."""
    screens = (record.client or {}).get("screens")
    found = screens.get(screen) if isinstance(screens, Mapping) else None
    return found if isinstance(found, Mapping) else None


def screen_concurrency(record: LoadRecord, limits: Limits) -> Finding:
    """The most requests in flight against the N that was asked, and the share of the phase at N.

    The client's own judgement (mean in flight, and the server's gauges beside it) can only make it worse.
    """
    limit = limits[Screen.CONCURRENCY_REACHED]
    asked = record.point.get("concurrency")
    share_min = limit["share_at_n_min"].get(record.point.get("kind"), 0.0)
    threshold = {"in_flight": asked, "share_at_n_min": share_min}
    own = _own(record, Screen.CONCURRENCY_REACHED)
    if record.client is None or own is None or asked is None:
        return unknown(Screen.CONCURRENCY_REACHED, "no record of the client", threshold=threshold)
    told = own.get("measured") or {}
    reached, share = _number(told.get("max")), _number(told.get("share_at_n"))
    names = ("mean", "server_max", "server_agrees")
    measured = {"in_flight_max": reached, "share_at_n": share} | {name: told.get(name) for name in names}
    evidence = record.paths("client")
    if Reason.CLIENT_REFUSED in (record.client.get("reasons") or ()):
        why: str | None = "the host refused threads, sockets or memory to the client"
        result = FAIL
    elif reached is not None and reached < asked:
        why, result = f"{reached:.0f} of {asked} requests were in flight at most", FAIL
    elif own.get("result") == FAIL:
        why, result = "N was not held: the mean in flight or the server's gauges say so", FAIL
    elif share is not None and share < share_min:
        why, result = f"N requests were in flight only {share:.0%} of the phase", FAIL
    elif reached is None or own.get("result") != PASS:
        why, result = own.get("reason") or "the client did not judge its requests in flight", NOT_CHECKED
    elif share is None and share_min > 0:
        why, result = "the share of the phase at N is unknown", NOT_CHECKED
    else:
        why, result = None, PASS
    return Finding(Screen.CONCURRENCY_REACHED, measured, threshold, result, evidence, why)


def screen_client_bound(record: LoadRecord, limits: Limits) -> Finding:
    """Loop lag, CPU share of the busiest client process and the host's CPU pressure, against the limits."""
    limit = limits[Screen.CLIENT_BOUND]
    own = _own(record, Screen.CLIENT_BOUND)
    if record.client is None or own is None:
        return unknown(Screen.CLIENT_BOUND, "no record of the client's health", threshold=dict(limit))
    told = own.get("measured") or {}
    pressure = (record.client.get("health") or {}).get("pressure_share") or {}
    measured = {
        "loop_lag_p99_ms": _number(told.get("lag_p99_ms")),
        "cpu_share": _number(told.get("cpu_share_max")),
        "psi_cpu_some_share": _number(pressure.get("cpu")),
    }
    evidence = record.paths("client")
    over = [
        f"{name} {value:.3g} over {limit[name + '_max']:g}"
        for name, value in measured.items()
        if value is not None and value > limit[name + "_max"]
    ]
    if own.get("result") == FAIL:
        over.append("the client found itself bound")
    if over:
        return Finding(Screen.CLIENT_BOUND, measured, dict(limit), FAIL, evidence, "; ".join(over))
    known = measured["loop_lag_p99_ms"] is not None and measured["cpu_share"] is not None
    if not known or own.get("result") != PASS:
        why = "loop lag or CPU share of the client is unknown"
        return Finding(Screen.CLIENT_BOUND, measured, dict(limit), NOT_CHECKED, evidence, why)
    return Finding(Screen.CLIENT_BOUND, measured, dict(limit), PASS, evidence)
