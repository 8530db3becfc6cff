"""Where the verbs print tables."""

from __future__ import annotations

from rich.console import Console

PLAIN_WIDTH = 200


def table_console() -> Console:
    """As wide as the terminal; elsewhere, in a file or a pipe, as wide as a table needs."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)
