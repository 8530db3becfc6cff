"""A server that plays scripts: exact bytes at given times, faults included, and a log of what it really sent.

    server = ScriptedServer(lambda request: answer([delta("a"), delta("b"), finish(), usage(3, 2), DONE]))
    with server: ... server.url, server.requests, server.log

A script is a list of steps: bytes to send, ``Wait(ms)``, ``Reset()`` (the connection is torn), ``Close()``.
Times are CLOCK_MONOTONIC ns, taken just before the bytes are handed to the kernel.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Wait:
    ms: float


@dataclass(frozen=True)
class Reset:
    """Tear the connection: the client gets ECONNRESET."""


@dataclass(frozen=True)
class Close:
    """Close the connection in good order."""


Step = bytes | Wait | Reset | Close


@dataclass
class Request:
    """One request as it was received."""

    index: int
    path: str
    headers: dict[str, str]
    body: Any
    t_received_ns: int
    connection: int
    sent: list[tuple[int, bytes]] = field(default_factory=list)

    def times_of(self, mark: bytes) -> list[int]:
        """When pieces that contain ``mark`` were sent."""
        return [t_ns for t_ns, data in self.sent if mark in data]


class ScriptedServer:
    """One thread a connection. ``play`` gives the script of each POST; GETs are answered from ``pages``.

    ``scripts`` are for paths of their own, asked in any way; such requests are in no list.
    """

    def __init__(
        self,
        play: Callable[[Request], Iterable[Step]],
        *,
        pages: dict[str, Callable[[], str]] | None = None,
        tls: ssl.SSLContext | None = None,
        tokenize: Callable[[str], int] | None = None,
        port: int = 0,
        scripts: dict[str, Callable[[Request], Iterable[Step]]] | None = None,
    ) -> None:
        self._play, self._pages, self._tls, self._tokenize = play, pages or {}, tls, tokenize
        self._scripts = scripts or {}
        self._lock = threading.Lock()
        self._connections: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []
        self.requests: list[Request] = []
        self.n_connections = 0
        self.in_flight = 0
        self.max_in_flight = 0
        self.stopped = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=2_048)
        self.port = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> ScriptedServer:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for thread in self._threads:
            thread.join(5)

    def kill(self) -> None:
        """End like a killed process: no more listening, every connection torn."""
        self.stopped.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # a second kill
        self._listener.close()
        with self._lock:
            for connection in self._connections.values():
                _tear(connection)

    def _accept(self) -> None:
        while not self.stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                number = self.n_connections
                self.n_connections += 1
                self._connections[number] = connection
            thread = threading.Thread(target=self._serve, args=(number, connection), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, number: int, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            with self._lock:
                self._connections[number] = stream
            rest = b""
            while not self.stopped.is_set():
                head, rest = _read_head(stream, rest)
                if head is None:
                    break
                if not self._answer(number, stream, head, rest):
                    break
                rest = b""
        except (OSError, ssl.SSLError):
            pass  # the client is gone, or this server was killed
        finally:
            with self._lock:
                closing = self._connections.pop(number, connection)
            closing.close()

    def _answer(self, number: int, stream: socket.socket, head: bytes, rest: bytes) -> bool:
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        length = int(headers.get("content-length", "0"))
        while len(rest) < length:
            rest += stream.recv(1 << 16)
        t_ns = time.monotonic_ns()
        if path in self._scripts:
            body = json.loads(rest) if rest else None
            return self._perform(stream, Request(-1, path, headers, body, t_ns, number), self._scripts[path])
        if method == "GET":
            page = self._pages.get(path)
            text = page().encode() if page else b""
            stream.sendall(plain(200 if page else 404, text, "text/plain"))
            return headers.get("connection") != "close"
        if path.endswith("/tokenize"):
            if self._tokenize is None:
                stream.sendall(plain(404, b"{}"))
            else:
                count = self._tokenize(json.loads(rest)["prompt"])
                stream.sendall(plain(200, json.dumps({"count": count, "tokens": [0] * count}).encode()))
            return True
        with self._lock:
            request = Request(len(self.requests), path, headers, json.loads(rest), t_ns, number)
            self.requests.append(request)
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            return self._perform(stream, request, self._play)
        finally:
            with self._lock:
                self.in_flight -= 1

    def _perform(
        self, stream: socket.socket, request: Request, play: Callable[[Request], Iterable[Step]]
    ) -> bool:
        due_ns = request.t_received_ns
        for step in play(request):
            if isinstance(step, Wait):
                due_ns = max(due_ns, request.t_received_ns) + round(step.ms * 1e6)
                if self.stopped.wait(max(due_ns - time.monotonic_ns(), 0) / 1e9):
                    return False
            elif isinstance(step, Reset):
                _tear(stream)
                return False
            elif isinstance(step, Close):
                return False
            else:
                t_ns = time.monotonic_ns()
                request.sent.append((t_ns, step))
                stream.sendall(step)
        return True


def _tear(connection: socket.socket) -> None:
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if isinstance(connection, ssl.SSLSocket):
            connection.shutdown(socket.SHUT_RDWR)
        else:
            # shutdown would send a FIN first; closing the number under a reading thread needs a duplicate
            connection.close()
    except OSError:
        pass  # it is gone already


def _read_head(stream: socket.socket, rest: bytes) -> tuple[bytes | None, bytes]:
    while b"\r\n\r\n" not in rest:
        data = stream.recv(1 << 16)
        if not data:
            return None, b""
        rest += data
    head, _, rest = rest.partition(b"\r\n\r\n")
    return head, rest


# ---------------------------------------------------------------------- bytes

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def plain(status: int, body: bytes, kind: str = "application/json", extra: bytes = b"") -> bytes:
    """A complete response with a length."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n".encode()
    return head + extra + b"\r\n" + body


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def delta(content: str | None = None, *, finish: str | None = None, usage: Any = None, **more: Any) -> bytes:
    """A chat chunk; ``more`` are further keys of the delta (role, reasoning_content, tool_calls)."""
    fields = dict(more) if content is None else {"content": content, **more}
    value: dict[str, Any] = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }
    return event(value if usage is None else value | {"usage": usage})


def counts(
    prompt: int, output: int, cached: int | None = None, reasoning: int | None = None
) -> dict[str, Any]:
    """A usage object."""
    value: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
    if cached is not None:
        value["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        value["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return value


def usage_event(prompt: int, output: int, **more: Any) -> bytes:
    return event(
        {
            "id": "c-1",
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": counts(prompt, output, **more),
        }
    )


def answer(events: Iterable[bytes | Wait], *, head: bytes = STREAM_HEAD, end: bytes = END) -> list[Step]:
    """A streamed answer: each event a chunk and a write of its own."""
    steps: list[Step] = [head]
    steps += [chunk(one) if isinstance(one, bytes) else one for one in events]
    return [*steps, end]


def words(
    n: int, *, prompt: int = 7, gap_ms: float = 0.0, first_ms: float = 0.0, finish: str = "length"
) -> list[Step]:
    """``n`` one-word events, ``first_ms`` then every ``gap_ms``, and usage."""
    events: list[bytes | Wait] = [Wait(first_ms)] if first_ms else []
    for i in range(n):
        if i and gap_ms:
            events.append(Wait(gap_ms))
        events.append(delta(f" w{i}"))
    return answer([*events, delta(finish=finish), usage_event(prompt, n), DONE])


def drip(_request: Request) -> Iterator[Step]:
    """A body without an end, a few bytes at a time."""
    yield STREAM_HEAD
    while True:
        yield chunk(b"# x\n")
        yield Wait(50)


def drip_headers(_request: Request) -> Iterator[Step]:
    """A header without an end."""
    yield b"HTTP/1.1 200 OK\r\nx: "
    while True:
        yield b"y"
        yield Wait(50)


def flood(_request: Request) -> Iterator[Step]:
    """A body without an end, as fast as it is taken."""
    yield STREAM_HEAD
    while True:
        yield chunk(b"# " + b"x" * 65_000 + b"\n")
