"""One answer of a server to a question beside the load, in bounded time and memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

ANSWER_LIMIT_BYTES = 8 << 20


class AnswerTooLarge(httpx.HTTPError):
    """The server sent more than an answer may have."""


@contextmanager
def answering(
    client: httpx.Client,
    url: str,
    limit_s: float,
    *,
    json: Any = None,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[httpx.Response]:
    """GET ``url``, or POST ``json`` or ``content`` to it; the answer while it comes.

    Raises httpx.RequestError: ``ReadTimeout`` when it has not ended ``limit_s`` after the start, however its
    headers or its body drip (a time-out of httpx is for a single read). The connection is no longer used after
    it: a kept one would hold a thread of some servers, and could not be cut.
    """
    deadline = _Deadline()
    timer = threading.Timer(limit_s, deadline.cut)
    timer.daemon = True
    timer.start()
    try:
        with client.stream(
            "GET" if json is None and content is None else "POST",
            url,
            json=json,
            content=content,
            headers={"accept-encoding": "identity", **(headers or {}), "connection": "close"},
            timeout=limit_s,
            extensions={"trace": deadline.note},
        ) as reply:
            yield reply
    except httpx.RequestError as error:
        if deadline.passed:
            raise _late(limit_s) from error
        raise
    finally:
        timer.cancel()
    if deadline.passed:  # an answer without a length ends like this too
        raise _late(limit_s)


def pieces(reply: httpx.Response) -> Iterator[bytes]:
    """The body as it comes. Raises AnswerTooLarge before a piece that goes over ANSWER_LIMIT_BYTES."""
    n_bytes = 0
    for piece in reply.iter_bytes():
        n_bytes += len(piece)
        if n_bytes > ANSWER_LIMIT_BYTES:
            raise AnswerTooLarge(f"more than {ANSWER_LIMIT_BYTES} bytes")
        yield piece


def ask(client: httpx.Client, url: str, limit_s: float, *, json: Any = None) -> httpx.Response:
    """GET ``url``, or POST ``json`` to it; the complete answer.

    Raises httpx.HTTPError: what ``answering`` raises, and ``AnswerTooLarge``.
    """
    with answering(client, url, limit_s, json=json) as reply:
        whole = b"".join(pieces(reply))
    kind = {"content-type": reply.headers.get("content-type", "text/plain")}
    return httpx.Response(reply.status_code, headers=kind, content=whole, request=reply.request)


def _late(limit_s: float) -> httpx.ReadTimeout:
    return httpx.ReadTimeout(f"no complete answer in {limit_s:g} s")


class _Deadline:
    """Ends a connection under its reader: headers that drip never give control back."""

    def __init__(self) -> None:
        self.passed = False
        self._lock = threading.Lock()
        self._stream: Any = None

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        """A trace hook of httpx: keep the connection that was made."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            with self._lock:
                self._stream = info["return_value"]
                if self.passed:
                    self._end()

    def cut(self) -> None:
        with self._lock:
            self.passed = True
            if self._stream is not None:
                self._end()

    def _end(self) -> None:
        try:
            # The socket's own: that of TLS would first drop its state, under the thread that reads.
            socket.socket.shutdown(self._stream.get_extra_info("socket"), socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already
