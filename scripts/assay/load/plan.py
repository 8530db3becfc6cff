"""What a client process is told, and the index of requests that several of them share."""

from __future__ import annotations

import fcntl
import mmap
import struct

import msgspec

_COUNTER = struct.Struct("<q")


class BodyEntry(msgspec.Struct, array_like=True):
    """Where one prompt's body lies in the bodies file."""

    offset: int
    length: int
    endpoint: str


class WorkerPlan(msgspec.Struct):
    """All a client process needs. Comes through a pipe, since it holds the key."""

    process: int
    n_processes: int
    addresses: list[tuple[int, list[str | int]]]
    tls: bool
    server_name: str
    ca_file: str | None
    heads: dict[str, str]
    bodies_path: str
    bodies: list[BodyEntry]
    opening_bodies: list[BodyEntry]
    journal_path: str
    counter_fd: int
    streams: list[int]
    requests: int | None
    duration_s: float | None
    drain_limit_s: float
    rate_per_s: float | None
    arrivals: str
    burstiness: float
    seed: int
    in_flight_cap: int
    timeout_s: float
    ramp_s: float
    n_streams: int
    opening_per_stream: int
    keep_texts: bool
    reuse_connections: bool
    secrets: list[str] = []


class SharedCounter:
    """A number in shared memory that processes take turns to raise; of use to one process too."""

    def __init__(self, handle: int, shared: bool) -> None:
        self._handle, self._shared = handle, shared
        self._memory = mmap.mmap(handle, mmap.PAGESIZE)

    def take(self) -> int:
        """The next number: 0, 1, 2, ... over all processes."""
        if self._shared:
            fcntl.lockf(self._handle, fcntl.LOCK_EX, 8)
        try:
            (value,) = _COUNTER.unpack_from(self._memory, 0)
            _COUNTER.pack_into(self._memory, 0, value + 1)
        finally:
            if self._shared:
                fcntl.lockf(self._handle, fcntl.LOCK_UN, 8)
        return int(value)

    def close(self) -> None:
        self._memory.close()
