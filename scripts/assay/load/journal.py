"""The journal: each finished request as one frame, appended as it ends, readable after a crash.

A frame is a little-endian u32 length and a msgpack array. A torn last frame is what a crash leaves; it is
skipped and counted.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from assay.errors import Incomplete

FLUSH_BYTES = 256 << 10
FRAME_LIMIT_BYTES = 1 << 30
_LENGTH = struct.Struct("<I")


class Row(msgspec.Struct, array_like=True):
    """One finished request as a client process saw it. Times: monotonic ns, None where nothing happened."""

    index: int
    prompt: int
    worker: int
    measured: bool
    status: str
    error_class: str | None
    error_text: str | None
    body: str | None
    http_status: int | None
    finish_reason: str | None
    terminal_seen: bool
    timestamp_source: str | None
    t_scheduled_ns: int
    t_send_ns: int | None
    t_headers_ns: int | None
    t_first_event_ns: int | None
    t_first_answer_ns: int | None
    t_end_ns: int
    output_times: bytes  # int64, absolute
    n_prompt: int | None
    n_cached: int | None
    n_output: int | None
    n_reasoning: int | None
    n_first_chunk: int | None
    reasoning_seen: bool
    think_tag_seen: bool
    n_resent: int
    texts: tuple[str, str] | None  # reasoning and answer, where they may have to be counted
    n_loose: int = 0  # events that are JSON only to a lenient reader


def _lock(handle: int, how: int) -> bool:
    """Lock a journal as long as it is open; False when another holds it otherwise. The kernel frees it on death."""
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: a load does not fail for that
    return True


class JournalWriter:
    """Appends frames; ``flush`` hands them to the kernel, so that they survive the end of the process."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        _lock(self._handle, fcntl.LOCK_SH)
        self._encode = msgspec.msgpack.Encoder().encode
        self._pending: list[bytes] = []
        self._n_pending = 0

    def append(self, row: Row) -> None:
        data = self._encode(row)
        self._pending.append(_LENGTH.pack(len(data)))
        self._pending.append(data)
        self._n_pending += len(data)
        if self._n_pending >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            view = memoryview(b"".join(self._pending))
            self._pending, self._n_pending = [], 0
            while view:
                view = view[os.write(self._handle, view) :]

    def close(self) -> None:
        self.flush()
        os.close(self._handle)
        self._handle = -1


class JournalReader:
    """Reads frames from where it stopped; a frame that is not complete yet is left for later.

    ``alone``: raises Incomplete while a load that runs has the journal open.
    """

    def __init__(self, path: Path, *, alone: bool = False) -> None:
        self._stream = path.open("rb")
        if not _lock(self._stream.fileno(), fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            self._stream.close()
            raise Incomplete(f"{path}: the load that writes it still runs")
        self._decode = msgspec.msgpack.Decoder(Row).decode
        self._rest = b""

    def rows(self, block_bytes: int = 1 << 20) -> Iterator[Row]:
        """All rows that are complete now. Raises Incomplete when the file is no journal."""
        while block := self._stream.read(block_bytes):
            data = self._rest + block if self._rest else block
            at = 0
            while len(data) - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(data, at)
                if length > FRAME_LIMIT_BYTES:
                    raise Incomplete(f"{self._stream.name}: a frame of {length} bytes: not a journal")
                if len(data) - at - _LENGTH.size < length:
                    break
                start = at + _LENGTH.size
                try:
                    yield self._decode(memoryview(data)[start : start + length])
                except msgspec.MsgspecError as error:
                    raise Incomplete(f"{self._stream.name}: a broken frame: {error}") from error
                at = start + length
            self._rest = data[at:]

    @property
    def torn_bytes(self) -> int:
        """Bytes of a frame whose rest is not there."""
        return len(self._rest)

    def sync(self) -> None:
        """Make what was read durable, without stopping the process that writes."""
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()
