"""A timer with the resolution of the clock, to wait on beside sockets (epoll's own is a millisecond)."""

from __future__ import annotations

import ctypes
import os

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_TFD_TIMER_ABSTIME = 1
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("it_interval", _Timespec), ("it_value", _Timespec)]


_libc = ctypes.CDLL(None, use_errno=True)


class Timer:
    """A timerfd on the monotonic clock; readable once its time has come."""

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"timerfd_create: {os.strerror(code)}")
        self._value = _Itimerspec()

    def arm(self, t_ns: int) -> None:
        """Fire at monotonic ``t_ns``, at once when that has passed."""
        value = self._value.it_value
        value.tv_sec, value.tv_nsec = divmod(max(t_ns, 1), 1_000_000_000)
        if _libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._value), None) < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"timerfd_settime: {os.strerror(code)}")

    def clear(self) -> None:
        """Take note that it fired."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass  # it was armed anew before it was read

    def close(self) -> None:
        os.close(self.fd)


def sharpen_timers() -> None:
    """Let the kernel wake this process on time instead of up to 50 microseconds later."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def die_with_parent(signal_number: int) -> None:
    """Get ``signal_number`` when the parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
