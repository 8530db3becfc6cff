"""Is the client itself well? Loop lag, CPU share and waiting for a CPU, per client process.

Standard library only: client processes import this.
"""

from __future__ import annotations

import bisect
import time
from pathlib import Path
from typing import Any

TICK_NS = 20_000_000
LAG_BOUNDS_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 5_000.0)
_SCHEDSTAT = Path("/proc/self/schedstat")
_STATUS = Path("/proc/self/status")


def read_run_delay_ns() -> int | None:
    """Nanoseconds this process was runnable but not running; None where the kernel does not say."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def read_peak_rss_mib() -> float | None:
    """Peak resident memory of this program; getrusage would tell its parent's at the time of the fork."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except (OSError, ValueError, IndexError):
        pass  # not this kernel: unknown
    return None


class HealthMeter:
    """Samples one process. ``tick`` is called when a timer fires, with when it was due."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was seen: the measured phase begins."""
        self.lag_counts = [0] * (len(LAG_BOUNDS_MS) + 1)
        self.lag_max_ns = 0
        self._window_lag_max_ns = 0
        self._wall_ns = self._start_wall_ns = time.monotonic_ns()
        self._cpu_ns = self._start_cpu_ns = time.process_time_ns()
        self._delay_ns = self._start_delay_ns = read_run_delay_ns()

    def tick(self, due_ns: int, now_ns: int) -> None:
        lag_ns = max(now_ns - due_ns, 0)
        self.lag_counts[bisect.bisect_left(LAG_BOUNDS_MS, lag_ns / 1e6)] += 1
        self.lag_max_ns = max(self.lag_max_ns, lag_ns)
        self._window_lag_max_ns = max(self._window_lag_max_ns, lag_ns)

    def sample(self) -> dict[str, Any]:
        """What happened since the last sample."""
        wall_ns, cpu_ns, delay_ns = time.monotonic_ns(), time.process_time_ns(), read_run_delay_ns()
        result = {
            "t_ns": wall_ns,
            "cpu_share": _share(cpu_ns - self._cpu_ns, wall_ns - self._wall_ns),
            "wait_share": _share_or_none(self._delay_ns, delay_ns, wall_ns - self._wall_ns),
            "lag_max_ms": self._window_lag_max_ns / 1e6,
        }
        self._wall_ns, self._cpu_ns, self._delay_ns = wall_ns, cpu_ns, delay_ns
        self._window_lag_max_ns = 0
        return result

    def total(self) -> dict[str, Any]:
        """The whole phase."""
        wall_ns = time.monotonic_ns() - self._start_wall_ns
        cpu_ns = time.process_time_ns() - self._start_cpu_ns
        return {
            "wall_s": wall_ns / 1e9,
            "cpu_s": cpu_ns / 1e9,
            "cpu_share": _share(cpu_ns, wall_ns),
            "wait_share": _share_or_none(self._start_delay_ns, read_run_delay_ns(), wall_ns),
            "lag_counts": self.lag_counts,
            "lag_max_ms": self.lag_max_ns / 1e6,
            "max_rss_mib": read_peak_rss_mib(),
        }


def _share(part_ns: int, whole_ns: int) -> float:
    return part_ns / whole_ns if whole_ns > 0 else 0.0


def _share_or_none(before_ns: int | None, after_ns: int | None, whole_ns: int) -> float | None:
    return None if before_ns is None or after_ns is None else _share(after_ns - before_ns, whole_ns)
