"""One request and its response: what is noted while it runs, and the row it ends as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.load.body import parts
from assay.load.decode import ERROR_TEXT_LIMIT, StreamDecoder
from assay.load.journal import Row
from assay.records.redact import redact, redact_cut
from assay.vocab import ErrorClass, RequestStatus

DECODE_BATCH = 64
"""Pieces of a body that may wait before they are decoded: bounds what a long answer holds."""
HELD_OPEN_NS = 1_000_000_000
"""After ``[DONE]`` nothing is due: a response that a server still holds open then is ended by us."""


class Exchange:
    """State of one request. The connection appends ``chunks`` and ``times``; nothing is decoded there."""

    __slots__ = (
        "chunks",
        "connection",
        "content_encoding",
        "deadline_ns",
        "decode_at",
        "decoder",
        "done",
        "index",
        "measured",
        "n_resent",
        "prompt",
        "stamped_by_kernel",
        "status_code",
        "t_headers_ns",
        "t_scheduled_ns",
        "t_send_ns",
        "times",
        "worker",
    )

    def __init__(self, index: int, prompt: int, worker: int, measured: bool, t_scheduled_ns: int) -> None:
        self.index, self.prompt, self.worker, self.measured = index, prompt, worker, measured
        self.t_scheduled_ns = t_scheduled_ns
        self.deadline_ns = 0
        self.t_send_ns: int | None = None
        self.t_headers_ns: int | None = None
        self.status_code: int | None = None
        self.content_encoding: str | None = None
        self.stamped_by_kernel = True
        # Spread, or streams that started together would all be decoded in the same instant.
        self.decode_at = DECODE_BATCH // 2 + worker % DECODE_BATCH
        self.chunks: list[bytes] = []
        self.times: list[int] = []
        self.decoder = StreamDecoder()
        self.done = False
        self.n_resent = 0
        self.connection: Any = None  # the one that carries it, while it runs

    def decode(self) -> None:
        """Decode what waits. A body that is not a 200 stream is only kept, bounded."""
        self.decode_at = DECODE_BATCH
        chunks, times = self.chunks, self.times
        if not chunks:
            return
        if self.status_code == 200 and self.content_encoding is None:
            self.decoder.feed(chunks, times)
        else:
            self.decoder.kept.keep(chunks)
        chunks.clear()  # the connection holds on to these two lists
        times.clear()

    def is_held_open(self, now_ns: int) -> bool:
        """The stream said that it is done a while ago, and the server did not end the response."""
        before_ns = now_ns - HELD_OPEN_NS
        if self.decoder.t_done_ns is None:
            if self.times and self.times[-1] > before_ns:
                return False  # decoding all that runs at once would hold the loop
            self.decode()
        done_ns = self.decoder.t_done_ns
        return done_ns is not None and done_ns <= before_ns

    def release(self) -> None:
        """Drop what is on record now: the list of deadlines may hold this object for a while yet."""
        self.decoder = StreamDecoder.__new__(StreamDecoder)

    def row(
        self, t_end_ns: int, failure: tuple[ErrorClass, str] | None, incomplete: str | None, texts: bool
    ) -> Row:
        """The record. ``failure`` is what the transport saw, ``incomplete`` why we ended it ourselves.

        The body ended cleanly when both are None. ``texts`` asks for the text even where usage came.
        """
        self.decode()
        decoder = self.decoder
        ended_by_us = incomplete is not None or (failure is not None and failure[0] is ErrorClass.TIMEOUT)
        if ended_by_us and decoder.t_done_ns is not None:
            # All had come; only the end of the response was missing.
            failure, incomplete = None, None
            t_end_ns = max([decoder.t_done_ns, *decoder.output_times[-1:]])
        if (
            failure is None
            and incomplete is None
            and self.status_code == 200
            and self.content_encoding is None
        ):
            decoder.close()
        status, error_class, error_text = self._judge(failure, incomplete)
        ok = status is RequestStatus.OK
        body = None if ok else decoder.kept.text()
        n_output = decoder.n_output_told
        stamped = self.t_headers_ns is not None
        return Row(
            self.index,
            self.prompt,
            self.worker,
            self.measured,
            status.value,
            None if error_class is None else error_class.value,
            None if error_text is None else error_text[:ERROR_TEXT_LIMIT],
            body or None,
            self.status_code,
            decoder.finish_reason,
            decoder.terminal_seen,
            ("kernel" if self.stamped_by_kernel else "user") if stamped else None,
            self.t_scheduled_ns,
            self.t_send_ns,
            self.t_headers_ns,
            decoder.t_first_event_ns,
            decoder.t_first_answer_ns,
            t_end_ns,
            decoder.output_times.tobytes(),
            decoder.n_prompt,
            _within(decoder.n_cached, decoder.n_prompt),
            n_output,
            _within(decoder.n_reasoning, n_output),
            decoder.n_first_told,
            decoder.reasoning_seen,
            decoder.think_tag_seen,
            self.n_resent,
            decoder.texts() if ok and (texts or n_output is None) else None,
            decoder.n_loose,
        )

    def _judge(
        self, failure: tuple[ErrorClass, str] | None, incomplete: str | None
    ) -> tuple[RequestStatus, ErrorClass | None, str | None]:
        """``ok`` takes all of: status 200, an output token, a terminal marker, no error object."""
        decoder = self.decoder
        if incomplete is not None:
            return RequestStatus.INCOMPLETE, None, incomplete
        failed = RequestStatus.FAILED
        if failure is not None and failure[0] is ErrorClass.CLIENT:
            return failed, *failure
        if failure is not None and failure[0] is ErrorClass.TIMEOUT and decoder.error_text is None:
            return failed, *failure
        if self.status_code is not None and self.status_code != 200:
            return failed, ErrorClass.HTTP_STATUS, f"HTTP status {self.status_code}"
        if self.content_encoding is not None:
            return failed, ErrorClass.PROTOCOL, f"content-encoding {self.content_encoding} was not asked for"
        if decoder.error_text is not None:
            return failed, ErrorClass.IN_STREAM, decoder.error_text
        if failure is not None and failure[0] is not ErrorClass.TRUNCATED:
            return failed, *failure
        if decoder.protocol_error is not None:
            return failed, ErrorClass.PROTOCOL, decoder.protocol_error
        if not decoder.is_whole:
            why = failure[1] if failure else "the body ended"
            if decoder.terminal_seen:
                return failed, ErrorClass.TRUNCATED, f"output without a finish after it: {why}"
            return failed, ErrorClass.TRUNCATED, f"no terminal marker: {why}"
        if not decoder.output_times:
            return failed, ErrorClass.NO_OUTPUT, "a terminal marker, but no output"
        return RequestStatus.OK, None, None


def _within(part: int | None, whole: int | None) -> int | None:
    """A part that is more than its whole is no count."""
    return None if part is not None and whole is not None and part > whole else part


def redact_row(row: Row, secrets: Sequence[str]) -> None:
    """Take keys and header values that the server echoed out of what is kept of its answer."""
    for name in ("body", "error_text", "finish_reason"):
        text = getattr(row, name)
        if text:
            setattr(row, name, "".join(redact_cut(part, secrets) for part in parts(text)))
    if row.texts is not None and any(redact(text, secrets) != text for text in row.texts):
        row.texts = None  # its tokens cannot be counted later: unknown is better than wrong
