"""A load's progress, one line on standard error: from what its parent has counted anyway."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import TextIO

from assay.load.spec import LoadSpec
from assay.vocab import RequestStatus

EVERY_S = 10.0
EVERY_AT_TERMINAL_S = 1.0
_ERASE = "\r\x1b[K"


class Progress:
    """Tells a stream at most every EVERY_S; a terminal more often, and there in place."""

    def __init__(self, spec: LoadSpec, stream: TextIO) -> None:
        self._spec, self._stream = spec, stream
        self._in_place = stream.isatty()
        self._interval_s = EVERY_AT_TERMINAL_S if self._in_place else EVERY_S
        self._t_start_s: float | None = None
        self._t_due_s = 0.0

    def tell(self, counts: Mapping[str, int], n_opening: int) -> None:
        """Called as often as one likes; ``counts`` is by status, of the measured phase."""
        now_s = time.monotonic()
        if self._t_start_s is None:
            self._t_start_s, self._t_due_s = now_s, now_s + self._interval_s
        elif now_s >= self._t_due_s:
            self._t_due_s = now_s + self._interval_s
            line = f"assay: {self.line(now_s - self._t_start_s, counts, n_opening)}"
            if self._in_place:  # a line that wraps could not be taken back
                self._write(_ERASE + line[: shutil.get_terminal_size().columns - 1])
            else:
                self._write(f"{line}\n")

    def line(self, elapsed_s: float, counts: Mapping[str, int], n_opening: int) -> str:
        """What is told after ``elapsed_s`` since the first request."""
        n, asked, duration_s = sum(counts.values()), self._spec.requests, self._spec.duration_s
        ended = f"{n} of {asked} requests ended" if asked is not None else f"{n} requests ended"
        parts = [f"{counts.get(status, 0)} {status}" for status in RequestStatus if counts.get(status)]
        if n_opening:
            parts.append(f"{n_opening} more in the opening")
        line = f"{elapsed_s:.0f} s" + (f" (issuing for {duration_s:g} s)" if duration_s is not None else "")
        return f"{line}: {ended}" + (f": {', '.join(parts)}" if parts else "")

    def end(self) -> None:
        """Leave the terminal's line to what comes next."""
        if self._in_place and self._t_start_s is not None:
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody listens any more: no reason to end a load
            self._t_due_s, self._in_place = float("inf"), False
