"""Server-sent events out of bytes: any line ending, any split, bounded size.

Follows the event stream grammar of the HTML standard, with differences that servers make necessary: a last
event whose blank line is missing counts when the body ends cleanly; a line with the field name ``error``
(llama.cpp wrote such lines) is an event named ``error``, and an event of that name counts without data; a line
that is bare JSON, as proxies put their errors into a stream, is an event of its own, named BARE_JSON.
"""

from __future__ import annotations

import re
from typing import NamedTuple

EVENT_LIMIT_BYTES = 16 << 20
"""A longer event is not what a server of tokens sends; it would only fill the memory."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_FIELDS = frozenset({b"", b"data", b"event", b"id", b"retry", b"error"})
_BOM = b"\xef\xbb\xbf"
ERROR = b"error"
BARE_JSON = b"\0json"
"""Name of an event that was a line without a field name; no ``event:`` line can give it."""


class EventTooLong(ValueError):
    """An event is longer than EVENT_LIMIT_BYTES."""


class SseEvent(NamedTuple):
    """One dispatched event: its joined ``data`` lines, its ``event:`` name, the last ``id:`` seen."""

    data: bytes
    name: bytes
    id: bytes


class SseParser:
    """Incremental parser. ``feed`` takes bytes split anywhere and gives the events they complete."""

    __slots__ = ("_bom", "_data", "_id", "_n_pending", "_name", "_pieces", "_size", "_skip_lf", "is_stream")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line whose end has not come
        self._data: list[bytes] = []
        self._name = b""
        self._id = b""
        self._size = 0  # bytes of the open event's complete lines
        self._n_pending = 0  # bytes in _pieces
        self.is_stream = False  # a line of an event stream came, a comment or an empty event at least
        self._skip_lf = False  # the last byte was CR: a following LF belongs to it
        self._bom: bytes | None = b""  # the first bytes, until they can be told from a byte order mark

    @property
    def at_boundary(self) -> bool:
        """True when the next byte starts a new event: nothing of an earlier one is pending."""
        return not (self._pieces or self._data or self._name or self._skip_lf or self._bom is not None)

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take the next bytes of the body; raises EventTooLong."""
        if not data:
            return []
        if self._bom is not None:
            data = self._bom + data
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._bom = data
                return []
            self._bom = None
            data = data.removeprefix(_BOM)
        if self._skip_lf:
            self._skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        if b"\r" in data:
            lines = _LINE_END.split(data)
            self._skip_lf = data.endswith(b"\r")
        else:
            lines = data.split(b"\n")
        rest = lines.pop()
        events: list[SseEvent] = []
        if lines:
            self._pieces.append(lines[0])
            lines[0] = b"".join(self._pieces)
            self._pieces, self._n_pending = [], 0
            for line in lines:
                self._line(line, events)
        if rest:
            self._pieces.append(rest)
            self._n_pending += len(rest)
            self._grow(0)
        return events

    def close(self) -> list[SseEvent]:
        """The body ended cleanly: an event without its blank line is given, if a line of it came."""
        events: list[SseEvent] = []
        if self._bom:
            self._pieces.insert(0, self._bom)
        self._bom = None
        if self._pieces:
            line, self._pieces, self._n_pending = b"".join(self._pieces), [], 0
            self._line(line, events)
        self._line(b"", events)
        return events

    def _grow(self, n_bytes: int) -> None:
        self._size += n_bytes
        if self._size + self._n_pending > EVENT_LIMIT_BYTES:
            raise EventTooLong(f"an event of more than {EVENT_LIMIT_BYTES} bytes")

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            if self._data or self._name == ERROR:
                events.append(SseEvent(b"\n".join(self._data), self._name, self._id))
                self._data = []
            self._name = b""
            self._size = 0
            return
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        self.is_stream = self.is_stream or field in _FIELDS
        if field == b"data":
            self._grow(len(value))
            self._data.append(value)
        elif field == b"event":
            self._name = value
        elif field == b"id":
            if b"\0" not in value:
                self._id = value
        elif field == ERROR:
            self._grow(len(value))
            self._name = ERROR
            self._data.append(value)
        elif line.startswith(b"{"):
            events.append(SseEvent(line, BARE_JSON, self._id))
        # a comment (empty field name), retry and unknown fields carry nothing for a measurement
