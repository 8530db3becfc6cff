"""The server's own counters around a phase of load: `counters.json`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import httpx

from assay.answer import ask
from assay.metrics import prometheus

TIMEOUT_S = 10.0


def read_counters(urls: Sequence[str], engine_name: str) -> dict[str, Any]:
    """`{"t_ns", "metrics"}` summed over servers, under the names all engines share.

    Unreadable counters are null, with a reason; a sum without one of its servers is unknown.
    """
    t_ns = time.monotonic_ns()
    try:
        with httpx.Client(trust_env=False) as client:
            texts = [ask(client, f"{url}/metrics", TIMEOUT_S).raise_for_status().text for url in urls]
        samples = prometheus.add(prometheus.parse(text) for text in texts)
        return {"t_ns": t_ns, "metrics": prometheus.normalise(samples, engine_name)}
    except (httpx.HTTPError, ValueError) as error:
        # A server that died, or that has no metrics, has unknown counters.
        return {
            "t_ns": t_ns,
            "metrics": dict.fromkeys(prometheus.NAMES),
            "error": f"{type(error).__name__}: {error}",
        }


def record_counters(before: dict[str, Any], after: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    """The object of counters.json: both readings, their growth, and the gauges that the client sampled."""
    return prometheus.counters_record(before, after, client.get("server_gauges") or [])
