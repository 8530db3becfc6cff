"""Receive stamps: the kernel's wall-clock stamp of a segment on the monotonic axis.

``SO_TIMESTAMPNS`` stamps with CLOCK_REALTIME. The offset to CLOCK_MONOTONIC is read in pairs, monotonic
before and after, of which the tightest counts, and again every half second: a step of the wall clock moves
the offset, slewing moves both clocks alike.
"""

from __future__ import annotations

import socket
import struct
import time

SO_TIMESTAMPNS = 35
ANCILLARY_BYTES = 64
PAIRINGS = 9
_SLACK_NS = 20_000

unpack_timespec = struct.Struct("qq").unpack


def realtime_offset_ns() -> tuple[int, int]:
    """(CLOCK_REALTIME - CLOCK_MONOTONIC, half the width of the reading that gave it), in ns."""
    best_width, best_offset = None, 0
    for _ in range(PAIRINGS):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if best_width is None or after - before < best_width:
            best_width, best_offset = after - before, real - (before + after) // 2
    return best_offset, (best_width or 0) // 2


def can_stamp() -> bool:
    """Does a socket here take the option? Whether a read then carries a stamp is seen read by read."""
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError:
            return False
    return True


class StampClock:
    """Holds the offset; ``offset_ns`` is read directly in the hot path."""

    __slots__ = ("is_used", "n_steps", "offset_ns", "uncertainty_ns")

    def __init__(self) -> None:
        self.offset_ns, self.uncertainty_ns = realtime_offset_ns()
        self.n_steps = 0
        self.is_used = can_stamp()

    def refresh(self) -> None:
        """Read the offset again; a jump beyond the readings' width is a step of the wall clock."""
        offset, uncertainty = realtime_offset_ns()
        if abs(offset - self.offset_ns) > uncertainty + self.uncertainty_ns + _SLACK_NS:
            self.n_steps += 1
        self.offset_ns, self.uncertainty_ns = offset, uncertainty

    def is_wrong(self, stamp_ns: int, t_send_ns: int) -> bool:
        """Of a stamp before its request was sent, or in the future: pair the clocks again, was it the clock?

        False: the stamp is right, and what it is of came before the request.
        """
        realtime_ns, n_steps = stamp_ns + self.offset_ns, self.n_steps
        self.refresh()
        earliest_ns = t_send_ns - self.uncertainty_ns - _SLACK_NS
        return self.n_steps != n_steps or realtime_ns - self.offset_ns >= earliest_ns
