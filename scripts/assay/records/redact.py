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
    return sorted((word for word in words if len(word) >= SHORTEST_SECRET), key=len, reverse=True)


def redact(text: str, secrets: Sequence[str]) -> str:
    """``text`` without the secrets."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, REDACTED)
    return text
