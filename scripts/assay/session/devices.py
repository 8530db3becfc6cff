"""Who holds which device: one exclusive file lock per GPU UUID, or one per host when there is no GPU.

The locks lie outside the project, so that two checkouts cannot share a device, and the kernel drops them
when their holder dies. Beside each lock a small JSON note says who holds it, for people and for `lease`.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from assay.records.files import write_json

HOST_DEVICE = "host"


class DeviceBusy(Exception):
    """A lock could not be had within the time allowed."""


def lock_folder() -> Path:
    """`$ASSAY_LOCK_DIR`, else /run/lock/assay, else the user's runtime folder, else a folder in /tmp."""
    choices = [
        os.environ.get("ASSAY_LOCK_DIR"),
        "/run/lock/assay",
        f"{os.environ['XDG_RUNTIME_DIR']}/assay" if os.environ.get("XDG_RUNTIME_DIR") else None,
        f"{tempfile.gettempdir()}/assay-{os.getuid()}",
    ]
    for choice in choices:
        if choice is None:
            continue
        folder = Path(choice)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue  # the next choice is tried; the last one raises below
        if os.access(folder, os.W_OK):
            return folder
    raise OSError(f"no folder for device locks can be written: tried {[c for c in choices if c]}")


@contextmanager
def exclusive_lock(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive flock on ``path``; DeviceBusy after ``timeout_s``."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise DeviceBusy(f"{path.name} is locked by another process") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


@contextmanager
def hold_devices(devices: Sequence[str], timeout_s: float) -> Iterator[None]:
    """Hold the locks of all ``devices``. Sorted, so that two holders cannot wait for each other."""
    with ExitStack() as stack:
        for device in sorted(devices):
            stack.enter_context(exclusive_lock(lock_folder() / f"{device}.lock", timeout_s))
        yield


@contextmanager
def use_devices(devices: Sequence[str], timeout_s: float = 86_400.0) -> Iterator[None]:
    """Held by a stage while it talks to the server, so that no other stage evicts it meanwhile."""
    with ExitStack() as stack:
        for device in sorted(devices):
            stack.enter_context(exclusive_lock(lock_folder() / f"{device}.use.lock", timeout_s))
        yield


def write_note(devices: Sequence[str], note: dict[str, Any]) -> None:
    """Say who holds the devices."""
    for device in devices:
        write_json(lock_folder() / f"{device}.json", note)


def read_note(device: str) -> dict[str, Any] | None:
    """Who holds the device, or held it last; None when nobody ever did."""
    try:
        note = json.loads((lock_folder() / f"{device}.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return note if isinstance(note, dict) else None
