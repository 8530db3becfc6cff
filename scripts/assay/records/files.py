"""Durable files: a temporary file, fsync, rename, fsync of the folder. A reader never sees a half."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.errors import Incomplete


def fsync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; on success it is synced and takes its place, else it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        handle = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
        fsync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON with sorted keys and a final newline. NaN and infinity are refused."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: Path) -> Any:
    """Read JSON; a missing or broken file raises Incomplete and names it."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Incomplete(f"{path}: not a regular file")
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise Incomplete(f"{path}: not there") from error
    except RecursionError as error:
        raise Incomplete(f"{path}: cannot be read as JSON: nested too deeply") from error
    except (OSError, ValueError) as error:
        raise Incomplete(f"{path}: cannot be read as JSON: {error}") from error
