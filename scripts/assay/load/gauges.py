"""The server's own view beside the client's: gauges and counters read while the load runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assay.metrics import prometheus

if TYPE_CHECKING:
    import httpx

GAUGE_SAMPLES_LIMIT = 4_000
NO_GAUGE = f"no gauge of a known engine ({', '.join(prometheus.GAUGES)})"


class ServerWatch:
    """Reads ``/metrics`` of one or several replicas: counters before and after, gauges in between.

    A failed read, or one without a known gauge, is a sample without values and with a ``reason``; it never
    ends a load.
    """

    def __init__(self, urls: Sequence[str], interval_s: float, timeout_s: float = 2.0) -> None:
        self._urls, self._interval_s, self._timeout_s = tuple(urls), interval_s, timeout_s
        self._client: httpx.Client | None = None
        if self._urls:
            import httpx  # only here: a load without it is 10 MB smaller

            self._client = httpx.Client(trust_env=False)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.gauges: list[dict[str, Any]] = []
        self.why_no_gauges: str | None = None
        """Of the last reading; None when it had one."""
        self.before: dict[str, Any] | None = None
        self.after: dict[str, Any] | None = None

    def read(self) -> tuple[dict[str, float] | None, str | None]:
        """(samples summed over the replicas, why there are none)."""
        if self._client is None:
            return None, "no metrics address"
        import httpx

        from assay.answer import ask

        replicas = []
        for url in self._urls:
            try:
                response = ask(self._client, url, self._timeout_s)
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                return None, f"{type(error).__name__}"
            if response.status_code != 200:
                return None, f"HTTP status {response.status_code}"
            try:
                replicas.append(prometheus.parse(response.text))
            except ValueError as error:
                return None, f"not Prometheus text: {error}"[:200]
        return prometheus.add(replicas), None

    def counters(self) -> dict[str, Any]:
        """One reading of the normalised counters."""
        samples, reason = self.read()
        self._gauges_of(samples, reason)
        result: dict[str, Any] = {
            "t_ns": time.monotonic_ns(),
            "metrics": prometheus.normalise(samples or {}),
            "engine": prometheus.engine_of(samples or {}),
        }
        return result if reason is None else result | {"reason": reason}

    def start(self) -> None:
        self.before = self.counters()
        if self._urls:
            self._thread = threading.Thread(target=self._run, name="assay-gauges", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.after = self.counters()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._client is not None:
            self._client.close()

    def record(self) -> dict[str, Any]:
        """The object of ``counters.json``."""
        assert self.before is not None
        assert self.after is not None
        return prometheus.counters_record(self.before, self.after, self.gauges)

    def _gauges_of(self, samples: dict[str, float] | None, reason: str | None) -> dict[str, Any]:
        values = prometheus.gauges(samples or {})
        known = any(value is not None for value in values.values())
        self.why_no_gauges = why = None if known else reason or NO_GAUGE
        return values if why is None else values | {"reason": why}

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            samples, reason = self.read()
            sample = {"t_ns": time.monotonic_ns(), **self._gauges_of(samples, reason)}
            self.gauges.append(sample)
            if len(self.gauges) >= GAUGE_SAMPLES_LIMIT:
                self.gauges = self.gauges[::2]
                self._interval_s *= 2
