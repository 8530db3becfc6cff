"""Canonical JSON and sha256 digests: of values, files, folders and of the package's own modules."""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PACKAGE_ROOT = Path(__file__).resolve().parent
_BLOCK_BYTES = 1 << 20


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, no NaN. Equal values give equal strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_of_value(value: Any) -> str:
    """Hex sha256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex sha256 of a file, read in blocks. Raises OSError when it cannot be read, or is no regular file:
    a pipe would wait for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def files_of_tree(folder: Path) -> list[Path]:
    """The files of a folder, sorted; what Python compiled from them is none of its content."""
    return sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def sha256_of_tree(path: Path) -> str:
    """Digest of a file, or of every file of a folder: its name in the folder, and its bytes."""
    if path.is_file():
        return sha256_of_file(path)
    return sha256_of_value(
        [[file.relative_to(path).as_posix(), sha256_of_file(file)] for file in files_of_tree(path)]
    )


def size_of_tree(path: Path) -> int:
    """Bytes of a file, or of the files of a folder that its digest counts."""
    files = [path] if path.is_file() else files_of_tree(path)
    return sum(file.stat().st_size for file in files)


def sha256_of_modules(rooms: Iterable[str], root: Path = PACKAGE_ROOT) -> str:
    """Digest of the Python sources under ``rooms`` (modules or folders of the package, by relative name).

    Derived stages carry it as a parameter, so that changed code reruns them and a changed time stamp
    does not.
    """
    digest = hashlib.sha256()
    for room in sorted(set(rooms)):
        place = root / room
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        for file in files:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()
