"""Processes named safely: a pid alone may be reused, a pid with its start time is not."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ProcessId:
    """``start_ticks`` is field 22 of /proc/<pid>/stat: clock ticks after boot."""

    pid: int
    start_ticks: str

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_record(record: dict[str, Any] | None) -> ProcessId | None:
        return ProcessId(int(record["pid"]), str(record["start_ticks"])) if record else None


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            # The command may hold spaces and parentheses: fields are counted after its last ")".
            return stream.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def identify(pid: int) -> ProcessId | None:
    """The process that has ``pid`` now, or None."""
    fields = _stat(pid)
    return ProcessId(pid, fields[19]) if fields else None


def is_alive(process: ProcessId | None) -> bool:
    """True while the very process runs; a zombie is dead."""
    if process is None:
        return False
    fields = _stat(process.pid)
    return fields is not None and fields[19] == process.start_ticks and fields[0] not in "ZX"


def read_environment(process: ProcessId, names: Iterable[str]) -> dict[str, str]:
    """The named variables that a running process was started with; those it has not are absent. OSError."""
    with open(f"/proc/{process.pid}/environ", "rb") as stream:
        pairs = [entry.partition(b"=") for entry in stream.read().split(b"\0")]
    told = {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}
    return {name: told[name] for name in names if name in told}


def send_signal(process: ProcessId | None, signal_number: int) -> bool:
    """Signal the very process, never a successor of its pid. False when it is gone."""
    if process is None or not is_alive(process):
        return False
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):  # the pid may have changed hands before the descriptor was taken
            return False
        import signal as signal_module

        signal_module.pidfd_send_signal(handle, signal_number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def open_pidfd(process: ProcessId) -> int | None:
    """A descriptor that becomes readable when the process ends; None when it has ended already."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if not is_alive(process):
        os.close(handle)
        return None
    return handle


def wait_until_gone(process: ProcessId | None, timeout_s: float) -> bool:
    """Wait for the end of a process; False when it still lives after ``timeout_s``."""
    if process is None:
        return True
    deadline = time.monotonic() + timeout_s
    while is_alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def call_when_gone(process: ProcessId, action: Callable[[], None]) -> threading.Thread:
    """Call ``action`` from a daemon thread once the process has ended."""

    def watch() -> None:
        handle = open_pidfd(process)
        if handle is not None:
            select.select([handle], [], [])
            os.close(handle)
        action()

    thread = threading.Thread(target=watch, name=f"watch-{process.pid}", daemon=True)
    thread.start()
    return thread
