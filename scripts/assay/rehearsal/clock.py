"""Simulated time on the wall clock, and a timer with the resolution of the clock."""

from __future__ import annotations

import ctypes
import os
import time

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_TFD_TIMER_ABSTIME = 1
_PR_SET_TIMERSLACK = 29


class SimulatedClock:
    """Runs ``scale`` times as fast as CLOCK_MONOTONIC, from 0 at its making."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.start_ns = time.monotonic_ns()

    def seconds_at(self, wall_ns: int) -> float:
        """Simulated seconds at a monotonic time."""
        return (wall_ns - self.start_ns) * self.scale / 1e9

    def wall_ns_of(self, t_s: float) -> int:
        """The monotonic time of a simulated one."""
        return self.start_ns + round(t_s / self.scale * 1e9)


class _Itimerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


_libc = ctypes.CDLL(None, use_errno=True)


class WakeTimer:
    """A timerfd: readable at a monotonic time. Event loops' own timers are milliseconds coarse."""

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._value = _Itimerspec()
        _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def arm(self, wall_ns: int) -> None:
        """Fire at ``wall_ns``, at once when that is over."""
        self._value.value_s, self._value.value_ns = divmod(max(wall_ns, 1), 1_000_000_000)
        if _libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._value), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Take note that it fired."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass  # it was armed anew before it was read

    def close(self) -> None:
        os.close(self.fd)
