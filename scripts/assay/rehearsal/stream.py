"""Answers as bytes: server-sent events in HTTP chunks, or one JSON object."""

from __future__ import annotations

import json
from typing import Any

from assay.rehearsal.request import Job

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz ")
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _escaped(text: str) -> str:
    """Text as it stands inside a JSON string."""
    return text if _PLAIN.issuperset(text) else json.dumps(text)[1:-1]


def usage_of(job: Job, n_output: int, n_cached: int | None) -> dict[str, Any]:
    """The usage object after ``n_output`` tokens; a scripted fault may make it wrong."""
    n = max(n_output + job.usage_offset, 0)
    usage: dict[str, Any] = {
        "prompt_tokens": job.n_prompt,
        "completion_tokens": n,
        "total_tokens": job.n_prompt + n,
    }
    if n_cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": n_cached}
    if job.n_reasoning:
        usage["completion_tokens_details"] = {"reasoning_tokens": min(job.n_reasoning, n)}
    return usage


class EventStream:
    """The events of one streamed answer. ``tokens`` gives the bytes of the next n tokens.

    Most events of a load differ in their text alone, so the rest is made once.
    """

    __slots__ = ("_at", "_base", "_head", "_is_first", "_job", "_model", "_n_cached", "_plain_from", "_tail")

    def __init__(self, job: Job, model: str, created: int) -> None:
        self._job, self._model = job, model
        kind = "chat.completion.chunk" if job.is_chat else "text_completion"
        name = f"{'chatcmpl' if job.is_chat else 'cmpl'}-{job.number:08x}"
        self._base = f'{{"id":"{name}","object":"{kind}","created":{created},"model":{json.dumps(model)}'
        self._head = (
            self._base + ',"choices":[{"index":0,' + ('"delta":{"content":"' if job.is_chat else '"text":"')
        )
        self._tail = ('"}' if job.is_chat else '"') + ',"logprobs":null,"finish_reason":null}]'
        self._at = 0
        self._is_first = True
        self._n_cached: int | None = None
        self._plain_from = job.n_reasoning if not job.calls else len(job.pieces)

    def tokens(self, n: int, done: bool, n_cached: int | None) -> bytes:
        """Events of the next ``n`` tokens; with ``done`` the finish, the usage and the end of the body."""
        job, start = self._job, self._at
        end = self._at = start + n
        self._n_cached = n_cached
        if start >= self._plain_from and not self._is_first and not done and not job.continuous_usage:
            # The hot path: words only, one event.
            data = f"data: {self._head}{_escaped(''.join(job.pieces[start:end]))}{self._tail}}}\n\n".encode()
            return b"%x\r\n%b\r\n" % (len(data), data)
        out: list[str] = []
        if self._is_first and job.is_chat:
            out.append(self._choice('"delta":{"role":"assistant","content":""}'))
        self._is_first = False
        for delta in self._deltas(start, end):
            out.append(self._choice(delta))
        if done:
            empty = '"delta":{}' if job.is_chat else '"text":""'
            out.append(self._choice(empty, job.finish_reason))
            if job.include_usage:
                usage = json.dumps(usage_of(job, end, n_cached), separators=(",", ":"))
                out.append(f'{self._base},"choices":[],"usage":{usage}}}')
        body = b"".join(http_chunk(f"data: {event}\n\n".encode()) for event in out)
        return body + DONE if done else body

    def _choice(self, delta: str, finish: str | None = None) -> str:
        reason = json.dumps(finish)
        event = f'{self._base},"choices":[{{"index":0,{delta},"logprobs":null,"finish_reason":{reason}}}]'
        if self._job.continuous_usage:
            event += (
                f',"usage":{json.dumps(usage_of(self._job, self._at, self._n_cached), separators=(",", ":"))}'
            )
        return event + "}"

    def _deltas(self, start: int, end: int) -> list[str]:
        """The choices' contents of tokens ``start`` to ``end``: reasoning, then text or tool calls."""
        job, deltas = self._job, []
        middle = min(max(job.n_reasoning, start), end)
        if start < middle:
            text = _escaped("".join(job.pieces[start:middle]))
            deltas.append(f'"delta":{{"reasoning_content":"{text}"}}')
        if middle == end:
            return deltas
        if not job.calls:
            text = _escaped("".join(job.pieces[middle:end]))
            deltas.append(f'"delta":{{"content":"{text}"}}' if job.is_chat else f'"text":"{text}"')
            return deltas
        bounds = [*(at for at, _ in job.calls), len(job.pieces)]
        if middle < bounds[0]:
            text = _escaped("".join(job.pieces[middle : min(end, bounds[0])]))
            deltas.append(f'"delta":{{"content":"{text}"}}')
        for index, (at, name) in enumerate(job.calls):
            first, last = max(middle, at), min(end, bounds[index + 1])
            if first >= last:
                continue
            call: dict[str, Any] = {
                "index": index,
                "function": {"arguments": "".join(job.pieces[first:last])},
            }
            if first == at:
                call |= {"id": f"call_{job.number}_{index}", "type": "function"}
                call["function"]["name"] = name
            deltas.append(f'"delta":{json.dumps({"tool_calls": [call]}, separators=(",", ":"))}')
        return deltas


def whole_answer(job: Job, model: str, created: int, n_cached: int | None) -> dict[str, Any]:
    """The object of an answer that is not streamed."""
    bounds = [*(at for at, _ in job.calls), len(job.pieces)]
    content = "".join(job.pieces[job.n_reasoning : bounds[0]])
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": job.finish_reason}
    if job.is_chat:
        message: dict[str, Any] = {"role": "assistant", "content": content or None}
        if not job.calls:
            message["content"] = content
        if job.n_reasoning:
            message["reasoning_content"] = "".join(job.pieces[: job.n_reasoning])
        if job.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{job.number}_{index}",
                    "type": "function",
                    "function": {"name": name, "arguments": "".join(job.pieces[at : bounds[index + 1]])},
                }
                for index, (at, name) in enumerate(job.calls)
            ]
        choice["message"] = message
    else:
        choice["text"] = content
    return {
        "id": f"{'chatcmpl' if job.is_chat else 'cmpl'}-{job.number:08x}",
        "object": "chat.completion" if job.is_chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": usage_of(job, job.n_output, n_cached),
    }
