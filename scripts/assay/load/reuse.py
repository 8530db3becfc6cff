"""Does the server keep connections? Seen once, on the first that could be used again.

A server that closes connections without saying so would otherwise lose every second request to the race
between its close and our send. So the first kept connections rest for GRACE_NS before they are used again;
when one of them is closed meanwhile, each request gets a connection of its own. Nothing is ever sent twice.
"""

from __future__ import annotations

from typing import NamedTuple

from assay.load.connection import Connection

GRACE_NS = 10_000_000
IDLE_LIMIT_NS = 2_000_000_000
"""A kept connection idle for longer is replaced: servers close theirs after about five seconds."""


class Freed(NamedTuple):
    """A slot whose request ended."""

    connection: Connection
    t_ns: int
    measured: bool
    refused: bool


class Reuse:
    """``keeps`` is None until it is known."""

    def __init__(self) -> None:
        self.keeps: bool | None = None
        self.until_ns: int | None = None
        self._held: list[Freed] = []

    def hold(self, freed: Freed, now_ns: int) -> bool:
        """Let a slot rest; True for the first, which sets ``until_ns``."""
        self._held.append(freed)
        first = self.until_ns is None
        if first:
            self.until_ns = now_ns + GRACE_NS
        return first

    def settle(self, keeps: bool) -> list[Freed]:
        """Now it is known: the slots that rested."""
        held, self._held, self.until_ns = self._held, [], None
        self.keeps = keeps
        return held
