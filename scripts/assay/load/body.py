"""What is kept of a response's body for the record of a failure: its head and its tail, bounded."""

from __future__ import annotations

import re

HEAD_BYTES = 8 << 10
TAIL_BYTES = 8 << 10
_TAIL_PIECES = 16
_LEFT_OUT = re.compile(r"(\n\[\.\.\. \d+ bytes left out \.\.\.\]\n)")


class KeptBody:
    """Takes all pieces of a body, keeps HEAD_BYTES and TAIL_BYTES of it."""

    __slots__ = ("_head", "_n_head", "_tail", "n_bytes")

    def __init__(self) -> None:
        self._head: list[bytes] = []
        self._n_head = 0
        self._tail: list[bytes] = []
        self.n_bytes = 0

    @property
    def head(self) -> bytes:
        """The first bytes, HEAD_BYTES at most."""
        return b"".join(self._head)

    def keep(self, chunks: list[bytes]) -> None:
        """The next pieces."""
        self.n_bytes += sum(map(len, chunks))
        if self._n_head < HEAD_BYTES:
            piece = b"".join(chunks)[: HEAD_BYTES - self._n_head]
            self._head.append(piece)
            self._n_head += len(piece)
        last = [chunk[-TAIL_BYTES:] for chunk in chunks[-_TAIL_PIECES:]]
        self._tail = [*self._tail, *last][-_TAIL_PIECES:]

    def text(self) -> str:
        """Head and tail, with a word between them on what was left out."""
        head = self.head
        rest = self.n_bytes - len(head)
        if rest <= 0:
            return head.decode("utf-8", "replace")
        tail = b"".join(self._tail)[-min(rest, TAIL_BYTES) :]
        gap = rest - len(tail)
        middle = left_out(gap) if gap else ""
        return head.decode("utf-8", "replace") + middle + tail.decode("utf-8", "replace")


def left_out(n_bytes: int) -> str:
    """The line that stands for what was not kept."""
    return f"\n[... {n_bytes} bytes left out ...]\n"


def parts(text: str) -> list[str]:
    """A kept text cut at the lines that stand for what was not kept, these lines among the parts."""
    return _LEFT_OUT.split(text)
