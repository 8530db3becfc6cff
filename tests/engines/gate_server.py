"""A scripted chat server for the gates: it knows the right answers, and gives what a test scripts.

It logs every request and what it really sent, so that a test compares with that and not with a plan.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from assay.gates import Policy
from assay.gates.tasks import Task

RIGHT_CODE = {
    "double": """
def double(n):
    return n * 2
""",
    "fibonacci": """
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
""",
    "to_roman": """
def to_roman(n):
    values = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
    texts = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")
    out = ""
    for value, text in zip(values, texts):
        while n >= value:
            out += text
            n -= value
    return out
""",
    "run_lengths": """
def run_lengths(text):
    out = []
    for char in text:
        if out and out[-1][0] == char:
            out[-1][1] += 1
        else:
            out.append([char, 1])
    return out
""",
}


@dataclass(frozen=True)
class Reply:
    """What the server sends for one request."""

    content: str | None = None
    calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = "stop"
    reasoning: str | None = None
    status: int = 200
    raw_body: str | None = None
    """Sent instead of a chat completion."""
    drop_before_headers: bool = False
    drop_in_body: bool = False
    error_in_stream: bool = False
    no_done: bool = False
    delay_s: float = 0.0
    prompt_tokens: int | None = None
    """Instead of what the server counts."""


def right_reply(task: Task, body: Mapping[str, Any]) -> Reply:
    """The answer that passes ``task``."""
    if task.kind == "json":
        return Reply(json.dumps(task.expected, ensure_ascii=False))
    if task.kind == "tool":
        if not task.expected:
            return Reply(f"{task.check['content_contains'][0]}")
        return Reply(None, tuple(task.expected), "tool_calls")
    if task.kind == "needle":
        text = body["messages"][-1]["content"]
        found = re.search(r"(?:pass key|access code of [^.]+) is (\d{6})\.", text)
        assert found is not None, "the server finds no needle"
        return Reply(f"It is {found.group(1)}.")
    return Reply(f"```python{RIGHT_CODE[task.check['function']]}```")


@dataclass
class GateServer:
    """Serves ``policy``; ``script`` maps a task id to a reply, a list of replies, or a function of the body.

    ``counting`` is how it can be asked for token counts: ``messages`` (vLLM), ``template`` (llama.cpp) or
    ``none``; every word is a token, and a chat has seven more.
    """

    policy: Policy
    script: dict[str, Any] = field(default_factory=dict)
    counting: str = "template"
    counting_is_wrong: bool = False
    gives_usage: bool = True
    template_tail: str = "<|assistant|>"
    log: list[dict[str, Any]] = field(default_factory=list)
    fragment_chars: int = 5

    def __enter__(self) -> GateServer:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.handle(self, self.path, body)

            def log_message(self, *_: object) -> None:
                pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a client that gave up is part of the script

        self._listener = Listener(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._listener.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    def asked(self, task_id: str) -> list[dict[str, Any]]:
        """The logged requests of one task."""
        return [entry for entry in self.log if entry["task_id"] == task_id]

    def tokens(self, messages: list[Mapping[str, Any]]) -> int:
        return 7 + sum(len(str(message["content"]).split()) for message in messages)

    def handle(self, handler: BaseHTTPRequestHandler, path: str, body: dict[str, Any]) -> None:
        if path != "/v1/chat/completions":
            self._handle_counting(handler, path, body)
            return
        task = self._task_of(body)
        reply = self._reply(task, body)
        entry = {
            "task_id": task.id if task else None,
            "body": body,
            "headers": dict(handler.headers),
            "reply": reply,
        }
        self.log.append(entry)
        time.sleep(reply.delay_s)
        self._send(handler, body, reply)

    def _handle_counting(self, handler: BaseHTTPRequestHandler, path: str, body: dict[str, Any]) -> None:
        off = 3 if self.counting_is_wrong else 0
        if path == "/tokenize" and "messages" in body and self.counting == "messages":
            _send_json(handler, 200, {"count": self.tokens(body["messages"]) + off, "tokens": [1, 2]})
        elif path == "/apply-template" and self.counting == "template":
            text = " ".join(str(message["content"]) for message in body["messages"])
            _send_json(handler, 200, {"prompt": f"<1> <2> <3> <4> <5> <6> {text} {self.template_tail}"})
        elif path == "/tokenize" and "content" in body and self.counting == "template":
            _send_json(handler, 200, {"tokens": list(range(len(body["content"].split()) + off))})
        else:
            _send_json(handler, 404, {"error": {"message": "no such route"}})

    def _task_of(self, body: Mapping[str, Any]) -> Task | None:
        text = body["messages"][-1]["content"]
        for task in self.policy.tasks:
            if task.messages is None:
                if f" is {task.expected}." in text:
                    return task
            elif [dict(message) for message in task.messages] == body["messages"]:
                return task
        return None

    def _reply(self, task: Task | None, body: Mapping[str, Any]) -> Reply:
        if task is None:
            return Reply("yes")
        scripted = self.script.get(task.id)
        if isinstance(scripted, list):
            return scripted[min(len(self.asked(task.id)), len(scripted) - 1)]
        if isinstance(scripted, Reply):
            return scripted
        if isinstance(scripted, Callable):  # type: ignore[arg-type]
            return scripted(right_reply(task, body), body)
        return right_reply(task, body)

    def _send(self, handler: BaseHTTPRequestHandler, body: Mapping[str, Any], reply: Reply) -> None:
        if reply.drop_before_headers:
            _drop(handler)
            return
        if reply.status != 200:
            _send_json(handler, reply.status, {"error": {"message": "scripted failure"}})
            return
        if reply.raw_body is not None:
            _send_text(handler, 200, reply.raw_body)
            return
        prompt_tokens = reply.prompt_tokens or self.tokens(body["messages"])
        usage = (
            None
            if not self.gives_usage
            else {"prompt_tokens": prompt_tokens, "completion_tokens": 9, "total_tokens": prompt_tokens + 9}
        )
        if body.get("stream"):
            self._send_stream(handler, reply, usage)
            return
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [_call(number, call) for number, call in enumerate(reply.calls)]
        choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
        text = json.dumps({"object": "chat.completion", "choices": [choice], "usage": usage})
        _send_text(handler, 200, text, cut=reply.drop_in_body)

    def _send_stream(
        self, handler: BaseHTTPRequestHandler, reply: Reply, usage: Mapping[str, Any] | None
    ) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
        if reply.reasoning is not None:
            deltas.append({"reasoning_content": reply.reasoning})
        text = reply.content or ""
        deltas += [{"content": part} for part in _parts(text, self.fragment_chars)]
        for number, call in enumerate(reply.calls):
            whole = _call(number, call)
            head = {"name": whole["function"]["name"], "arguments": ""}
            deltas.append(
                {"tool_calls": [{"index": number, "id": whole["id"], "type": "function", "function": head}]}
            )
            for part in _parts(whole["function"]["arguments"], self.fragment_chars):
                deltas.append({"tool_calls": [{"index": number, "function": {"arguments": part}}]})
        events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        if reply.error_in_stream:
            events = [*events[:3], {"error": {"message": "scripted failure in the stream"}}]
        elif reply.finish_reason is not None:
            events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}]})
            events.append({"choices": [], "usage": usage})
        _chunk(handler, ": ping\n\n")
        for event in events:
            _chunk(handler, f"data: {json.dumps(event)}\n\n")
        if reply.drop_in_body:
            _drop(handler)
            return
        if not reply.no_done:
            _chunk(handler, "data: [DONE]\n\n")
        _chunk(handler, "")


def after(right: Reply, **changes: Any) -> Reply:
    """The right reply with something changed."""
    return replace(right, **changes)


def _call(number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {
        "id": call.get("id", f"call-{number}"),
        "type": "function",
        "function": {"name": call["name"], "arguments": text},
    }


def _parts(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _chunk(handler: BaseHTTPRequestHandler, text: str) -> None:
    data = text.encode()
    handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _send_json(handler: BaseHTTPRequestHandler, status: int, value: Any) -> None:
    _send_text(handler, status, json.dumps(value))


def _send_text(handler: BaseHTTPRequestHandler, status: int, text: str, *, cut: bool = False) -> None:
    data = text.encode("utf-8", "surrogatepass")
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2] if cut else data)
    if cut:
        _drop(handler)


def _drop(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.flush()
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)
