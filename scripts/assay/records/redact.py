"""Keys and header values of the user: sent to servers, kept out of records even when a server echoes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

REDACTED = "[redacted]"
SHORTEST_SECRET = 6
"""Shorter ones (``EMPTY``, ``none``) are no secrets, and would be found everywhere."""


def secret_words(values: Iterable[str]) -> list[str]:
    """What must not stand in a record: each value, its last word (the key after ``Bearer``), and both as JSON
    writes them; the longest first."""
    words = {word for value in values for word in (value, value.rpartition(" ")[2])}
    words |= {json.dumps(word)[1:-1] for word in words}
    words |= {word.replace("/", "\\/") for word in words}
    return sorted((word for word in words if len(word) >= SHORTEST_SECRET), key=len, reverse=True)


def redact(text: str, secrets: Sequence[str]) -> str:
    """``text`` without the secrets."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, REDACTED)
    return text


def redact_cut(text: str, secrets: Sequence[str]) -> str:
    """The same of a text that was cut at both ends: the part of a secret that a cut left there goes too."""
    text = redact(text, secrets)
    longest_begin = max((_overlap(secret, text) for secret in secrets), default=0)
    if longest_begin:
        text = text[:-longest_begin] + REDACTED
    longest_end = max((_overlap(text, secret) for secret in secrets), default=0)
    return REDACTED + text[longest_end:] if longest_end else text


def _overlap(left: str, right: str) -> int:
    """How many characters, SHORTEST_SECRET at least, begin ``left`` and end ``right``; 0 when none do."""
    longest = min(len(left), len(right))
    return next((n for n in range(longest, SHORTEST_SECRET - 1, -1) if right.endswith(left[:n])), 0)
