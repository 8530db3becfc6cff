"""What one streamed response says: output events and their times, usage, finish, errors.

Decoding is incremental: a request's bytes are decoded in batches while it runs, so that a long answer is
held as eight bytes an event. Events of one stream differ mostly in their text. Once an event has been
decoded fully, later ones that share its bytes before and after that text are recognised by these bytes; that
this is exact is proven once per pattern, by decoding a probe.
"""

from __future__ import annotations

import re
from array import array
from typing import Any

from assay.load.body import KeptBody
from assay.load.chunks import (
    NOT_JSON,
    count_or_none,
    decode_json,
    decode_loosely,
    index_of_choice,
    is_error_object,
    is_failed_finish,
    output_of_choice,
    text_event,
)
from assay.load.sse import BARE_JSON, ERROR, EventTooLong, SseEvent, SseParser

TEXT_LIMIT_BYTES = 4 << 20
ERROR_TEXT_LIMIT = 2_000

_UNSAFE = re.compile(rb'[\x00-\x1f"\\]')  # what may not stand in a string literal as it is, or ends it
_TEXT_KEY = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"')
_THINK = b"<think>"
_PROBE = "a probe 7f3c"
_GIVE_UP_LEARNING = 4


class StreamDecoder:
    """Decodes the body of one 200 response. Times are nanoseconds of the client's monotonic clock."""

    __slots__ = (
        "_answer",
        "_delimiter",
        "_is_plain",
        "_learned_in_vain",
        "_n_counted",
        "_open",
        "_prefix",
        "_reasoning",
        "_sse",
        "_suffix",
        "_t_last_ns",
        "_template_choice",
        "_template_is_answer",
        "_text_bytes",
        "_think_tail",
        "error_text",
        "finish_reason",
        "kept",
        "n_cached",
        "n_events",
        "n_first_chunk",
        "n_loose",
        "n_output",
        "n_prompt",
        "n_reasoning",
        "output_times",
        "protocol_error",
        "reasoning_seen",
        "t_done_ns",
        "t_first_answer_ns",
        "t_first_event_ns",
        "terminal_seen",
        "text_complete",
        "think_tag_seen",
    )

    def __init__(self) -> None:
        self._sse = SseParser()
        self._prefix: bytes | None = None
        self._suffix = self._delimiter = b""
        self._template_is_answer = True
        self._template_choice = 0
        self._learned_in_vain = 0
        self._open: set[int] = set()  # choices with output and, since then, no finish
        self._n_counted = 0  # output events that had come when usage last told their tokens
        self._t_last_ns = 0
        self._is_plain = False  # the event just decoded had one text and no finish, usage or tool call
        self._answer: list[bytes] = []
        self._reasoning: list[bytes] = []
        self._text_bytes = 0
        self._think_tail = b""
        self.kept = KeptBody()
        self.n_events = 0
        self.output_times = array("q")
        self.t_first_event_ns: int | None = None
        self.t_first_answer_ns: int | None = None
        self.t_done_ns: int | None = None  # when [DONE] came
        self.terminal_seen = False
        self.finish_reason: str | None = None
        self.error_text: str | None = None
        self.protocol_error: str | None = None
        self.n_prompt: int | None = None
        self.n_cached: int | None = None
        self.n_output: int | None = None
        self.n_reasoning: int | None = None
        self.n_first_chunk: int | None = None
        self.n_loose = 0  # events that are JSON only to a lenient reader
        self.reasoning_seen = False
        self.think_tag_seen = False
        self.text_complete = True

    # ------------------------------------------------------------------ bytes

    def feed(self, chunks: list[bytes], times: list[int]) -> None:
        """Take the next pieces of the body, each with the time it was received."""
        self.kept.keep(chunks)
        self._t_last_ns = times[-1]
        at, n = 0, len(chunks)
        while at < n:
            chunk = chunks[at]
            prefix = self._prefix
            if prefix is not None and chunk.startswith(prefix) and self._sse.at_boundary:
                taken = self._take_run(chunks, times, at)
                if taken:
                    at += taken
                    continue
            self._feed_slowly(chunk, times[at])
            at += 1

    def close(self) -> None:
        """The body ended cleanly. What was left of it came with its last bytes, not with its end."""
        for event in self._sse.close():
            self._event(event, self._t_last_ns)
        if self.kept.n_bytes and self.protocol_error is None and not self._sse.is_stream:
            self._not_a_stream()

    def texts(self) -> tuple[str, str] | None:
        """(reasoning, answer) as text, or None when it was too long or partly tool calls."""
        if not self.text_complete:
            return None
        try:
            return _text(self._reasoning), _text(self._answer)
        except UnicodeDecodeError:
            return None

    @property
    def is_whole(self) -> bool:
        """All that was to come came: ``[DONE]``, or a finish of every choice with no output after it."""
        return self.t_done_ns is not None or (self.terminal_seen and not self._open)

    @property
    def n_output_told(self) -> int | None:
        """Output tokens as usage says; None where output came after it, or it says 0 of what has output."""
        if self._n_counted < len(self.output_times):
            return None
        return self.n_output or (None if self.output_times else self.n_output)

    @property
    def n_first_told(self) -> int | None:
        """Tokens of the first output event; None where usage said no more later on: it told the whole."""
        whole = len(self.output_times) > 1 and self.n_first_chunk == self.n_output
        return None if whole else self.n_first_chunk

    # ------------------------------------------------------------------ events

    def _feed_slowly(self, chunk: bytes, t_ns: int) -> None:
        try:
            events = self._sse.feed(chunk)
        except EventTooLong as error:
            self.protocol_error = self.protocol_error or str(error)
            self._sse = SseParser()
            return
        self._is_plain = False
        for event in events:
            self._event(event, t_ns)
        if self._is_plain and len(events) == 1 and self._learned_in_vain < _GIVE_UP_LEARNING:
            data = events[0].data
            if len(chunk) == len(data) + 8 and chunk.startswith(b"data: ") and chunk.endswith(b"\n\n"):
                self._learn(data)

    def _take_run(self, chunks: list[bytes], times: list[int], at: int) -> int:
        """Recognise the chunks from ``at`` on that are one event of the learned pattern each; how many."""
        prefix, suffix = self._prefix, self._suffix
        assert prefix is not None
        run = chunks[at:] if at else chunks
        n = len(run)
        while n and not (run[n - 1].startswith(prefix) and run[n - 1].endswith(suffix)):
            n -= 1  # the end of a stream: finish, usage, [DONE]
        if n < len(run):
            run = run[:n]
        start, end = len(prefix), -len(suffix)
        texts = [chunk[start:end] for chunk in run]
        # Put together again, they are the same bytes: each chunk is prefix, text, suffix, and nothing else.
        if b"".join((prefix, self._delimiter.join(texts), suffix)) != b"".join(run):
            n = _count_while(chunk == prefix + text + suffix for chunk, text in zip(run, texts, strict=True))
        if not all(texts[:n]):
            n = _count_while(bool(text) for text in texts[:n])
        text = b"".join(texts[:n])
        if _UNSAFE.search(text):
            n = _count_while(not _UNSAFE.search(text) for text in texts[:n])
            text = b"".join(texts[:n])
        if not n:
            return 0
        if not text.isascii():
            try:
                for piece in texts[:n]:
                    piece.decode()
            except UnicodeDecodeError:
                return 0
        self._learned_in_vain = 0
        self.n_events += n
        self.output_times.extend(times[at : at + n])
        self._open.add(self._template_choice)
        if self._template_is_answer and self.t_first_answer_ns is None:
            self.t_first_answer_ns = times[at]
        self._keep_text(text, self._template_is_answer)
        return n

    def _learn(self, data: bytes) -> None:
        """Make a pattern of an event just decoded, if its text can stand apart from the rest."""
        matches = list(_TEXT_KEY.finditer(data))
        for match in matches:
            start = match.end()
            end = data.find(b'"', start)
            if end <= start or b"\\" in data[start:end]:
                continue
            found = text_event(data)
            probe = text_event(data[:start] + _PROBE.encode() + data[end:])
            if found is None or probe is None or probe[0] != _PROBE or probe[1:] != found[1:]:
                continue
            self._prefix = b"data: " + data[:start]
            self._suffix = data[end:] + b"\n\n"
            self._delimiter = self._suffix + self._prefix
            self._template_is_answer = found[1]
            self._template_choice = found[2]
            self._learned_in_vain += 1
            return

    def _event(self, event: SseEvent, t_ns: int) -> None:
        data = event.data.strip()
        if event.name == BARE_JSON:
            self._bare_json(data)
            return
        if not data and event.name != ERROR:
            return  # a keep-alive
        self.n_events += 1
        if self.t_first_event_ns is None:
            self.t_first_event_ns = t_ns
        if data == b"[DONE]":
            self.terminal_seen = True
            self.t_done_ns = self.t_done_ns or t_ns
            return
        value: Any = None
        why = None
        try:
            value = self._decoded(data)
            if not isinstance(value, dict):
                why = "an event is not a JSON object"
        except NOT_JSON as error:
            why = f"an event is not JSON: {error}"[:ERROR_TEXT_LIMIT]
        if event.name == ERROR or (why is None and is_error_object(value)):
            self._error(data.decode("utf-8", "replace") or "an error event without data")
        elif why is not None:
            self.protocol_error = self.protocol_error or why
        if why is None:
            self._object(value, t_ns)

    def _bare_json(self, line: bytes) -> None:
        try:
            value = decode_json(line)
        except NOT_JSON:
            return  # a line that is no field carries nothing
        if isinstance(value, dict) and is_error_object(value):
            self._error(line.decode("utf-8", "replace"))

    def _decoded(self, data: bytes) -> Any:
        try:
            return decode_json(data)
        except NOT_JSON as error:
            try:
                value = decode_loosely(data)
            except NOT_JSON:
                raise error from None
            self.n_loose += 1
            return value

    def _object(self, value: dict[str, Any], t_ns: int) -> None:
        answer, reasoning, tools, finish = "", "", False, None
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            a, r, tool = output_of_choice(choice)
            number = index_of_choice(choice)
            if a or r or tool:
                self._open.add(number)
            answer, reasoning, tools = answer + a, reasoning + r, tools or tool
            reason = choice.get("finish_reason")
            if isinstance(reason, dict):  # SGLang's own form
                reason = reason.get("type")
            if isinstance(reason, str) and reason:
                finish = reason
                self._open.discard(number)
            if number:
                self.text_complete = False  # one of several answers: their texts are mixed here
        if finish is not None:
            self.finish_reason = finish[:100].encode("utf-8", "replace").decode()
            self.terminal_seen = True
            if is_failed_finish(finish):
                self._error(f"finish_reason {self.finish_reason}")
        usage = value.get("usage")
        n_output = self._usage(usage) if isinstance(usage, dict) else None
        has_output = bool(answer or reasoning or tools)
        if n_output is not None:
            self._n_counted = len(self.output_times) + has_output
        if not has_output:
            return
        if not self.output_times and finish is None and n_output:
            self.n_first_chunk = n_output
        self.output_times.append(t_ns)
        self._is_plain = finish is None and n_output is None and not tools and bool(answer) != bool(reasoning)
        if reasoning:
            self._keep_text(reasoning.encode("utf-8", "surrogatepass"), False)
        if (answer or tools) and self.t_first_answer_ns is None:
            self.t_first_answer_ns = t_ns
        if answer:
            self._keep_text(answer.encode("utf-8", "surrogatepass"), True)
        if tools:
            self.text_complete = False

    def _usage(self, usage: dict[str, Any]) -> int | None:
        """Take what a usage object says; later ones overwrite earlier ones, but no number with a zero."""
        n_prompt = count_or_none(usage.get("prompt_tokens"))
        n_output = count_or_none(usage.get("completion_tokens"))
        prompt_details = usage.get("prompt_tokens_details")
        output_details = usage.get("completion_tokens_details")
        n_cached = (
            count_or_none(prompt_details.get("cached_tokens")) if isinstance(prompt_details, dict) else None
        )
        n_reasoning = (
            count_or_none(output_details.get("reasoning_tokens"))
            if isinstance(output_details, dict)
            else None
        )
        if n_reasoning is None:
            n_reasoning = count_or_none(usage.get("reasoning_tokens"))  # SGLang's place
        self.n_prompt = n_prompt or self.n_prompt  # no prompt has 0 tokens
        self.n_output = n_output or (self.n_output if n_output is None else self.n_output or 0)
        self.n_cached = self.n_cached if n_cached is None else n_cached
        self.n_reasoning = self.n_reasoning if n_reasoning is None else n_reasoning
        return n_output

    def _keep_text(self, text: bytes, is_answer: bool) -> None:
        if is_answer:
            if not self.think_tag_seen:
                window = self._think_tail + text
                if _THINK in window:
                    self.think_tag_seen = True
                self._think_tail = window[-len(_THINK) + 1 :]
        else:
            self.reasoning_seen = True
        if self.text_complete:
            self._text_bytes += len(text)
            if self._text_bytes > TEXT_LIMIT_BYTES:
                self.text_complete = False
                self._answer, self._reasoning = [], []
            else:
                (self._answer if is_answer else self._reasoning).append(text)

    def _error(self, text: str) -> None:
        if self.error_text is None:
            self.error_text = text[:ERROR_TEXT_LIMIT]

    def _not_a_stream(self) -> None:
        """A 200 body without one event: an error object in plain JSON is an error, all else no stream."""
        try:
            value = decode_json(self.kept.head)
        except NOT_JSON:
            value = None
        if isinstance(value, dict) and is_error_object(value):
            self._error(self.kept.text())
        else:
            self.protocol_error = "the body has no server-sent event"


def _text(pieces: list[bytes]) -> str:
    """The text; a surrogate pair that was split over two events is whole again, half a pair is replaced."""
    text = b"".join(pieces).decode("utf-8", "surrogatepass")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _count_while(answers: Any) -> int:
    n = 0
    for answer in answers:
        if not answer:
            break
        n += 1
    return n
