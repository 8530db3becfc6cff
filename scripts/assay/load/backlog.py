"""Decoding put off to quiet moments: reading on time comes first, for late reads share a stamp."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from assay.load.exchange import Exchange, redact_row
from assay.load.journal import JournalWriter
from assay.vocab import ErrorClass

SLICE_NS = 500_000
"""Decoding between two looks at the sockets takes no longer than this, and one piece of work ..."""
PIECES = 128
"""... and as much again for each PIECES that wait: a client that cannot keep up must not fill the memory."""
_NEVER = 1 << 62
_monotonic_ns = time.monotonic_ns

Ended = tuple[Exchange, int, tuple[ErrorClass, str] | None, str | None]


class Backlog:
    """Work in the order it came: a running request's bytes to decode, or an ended one to record."""

    __slots__ = ("_journal", "_keep_texts", "_secrets", "waiting")

    def __init__(self, journal: JournalWriter, keep_texts: bool, secrets: Sequence[str] = ()) -> None:
        self._journal, self._keep_texts, self._secrets = journal, keep_texts, secrets
        self.waiting: deque[Exchange | Ended] = deque()

    def decode(self, exchange: Exchange) -> None:
        """Decode what a running request has received, soon."""
        exchange.decode_at = _NEVER
        self.waiting.append(exchange)

    def record(
        self,
        exchange: Exchange,
        t_end_ns: int,
        failure: tuple[ErrorClass, str] | None,
        incomplete: str | None,
    ) -> None:
        """Decode the rest of an ended request and write its row, soon."""
        self.waiting.append((exchange, t_end_ns, failure, incomplete))

    def work(self) -> None:
        """One slice of the work, the longer the more waits."""
        waiting = self.waiting
        end_ns = _monotonic_ns() + SLICE_NS * (1 + len(waiting) // PIECES)
        while waiting:
            self._one(waiting.popleft())
            if _monotonic_ns() >= end_ns:
                break

    def finish(self) -> None:
        """All of the work."""
        while self.waiting:
            self._one(self.waiting.popleft())

    def _one(self, item: Exchange | Ended) -> None:
        if isinstance(item, Exchange):
            item.decode()
        else:
            exchange, t_end_ns, failure, incomplete = item
            row = exchange.row(t_end_ns, failure, incomplete, self._keep_texts)
            if self._secrets:
                redact_row(row, self._secrets)
            self._journal.append(row)
            exchange.release()
