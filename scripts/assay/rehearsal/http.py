"""HTTP/1.1 for the rehearsal server: one protocol object a connection, one request at a time on it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast

import httptools

from assay.rehearsal import tokens
from assay.rehearsal.counters import metrics_text
from assay.rehearsal.live import LiveNode, Ticket, error_body
from assay.rehearsal.request import ApiError, Reader

BODY_LIMIT_BYTES = 64 << 20
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
}
_JSON, _TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


class Api:
    """What the routes need: the live node, the reader of requests, and the configuration to tell."""

    def __init__(self, live: LiveNode, reader: Reader, told: dict[str, Any], version: str) -> None:
        self.live, self.reader, self.told, self.version = live, reader, told, version
        self.ids = tokens.TokenIds()

    def get(self, path: str) -> tuple[int, str, str]:
        """(status, content type, body) of a GET."""
        live = self.live
        if path in ("/health", "/ping"):
            return 200, _TEXT, ""
        if path == "/version":
            return 200, _JSON, json.dumps({"version": self.version})
        if path == "/v1/models":
            model = {
                "id": live.served_name,
                "object": "model",
                "owned_by": "rehearsal",
                "max_model_len": live.node.recipe.max_model_len,
            }
            return 200, _JSON, json.dumps({"object": "list", "data": [model]})
        if path == "/metrics":
            own = live.status()
            return 200, _TEXT, metrics_text(live.node, live.served_name, live.finished, own)
        if path == "/rehearsal/config":
            return 200, _JSON, json.dumps(self.told)
        return 404, _JSON, json.dumps(error_body(404, "Not Found"))

    def control(self, path: str, data: bytes) -> dict[str, Any] | None:
        """The answer to a POST that is no completion; None for an unknown path. Raises ApiError."""
        if path == "/tokenize":
            body = self.reader.object_of(data)
            if "messages" in body:
                pieces, _ = self.reader.chat_pieces(body)
            else:
                text = body.get("prompt")
                if not isinstance(text, str):
                    raise ApiError(400, "prompt must be a text")
                pieces = tokens.split(text)
            max_len = self.live.node.recipe.max_model_len
            return {"count": len(pieces), "max_model_len": max_len, "tokens": self.ids.encode(pieces)}
        if path == "/detokenize":
            numbers = self.reader.object_of(data).get("tokens")
            if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
                raise ApiError(400, "tokens must be a list of token ids")
            return {"prompt": self.ids.decode(numbers)}
        return None


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._ticket: Ticket | None = None
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._body: list[bytes] = []
        self._n_body = 0
        self._t_arrival_ns = 0

    # ------------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._api.live.give_up(ticket)

    def data_received(self, data: bytes) -> None:
        if not self._t_arrival_ns:
            # The request's own time: reading and parsing a long body must not count as the model's.
            self._t_arrival_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.cut()

    # ------------------------------------------------------------------ httptools

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"expect" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._n_body += len(data)
        if self._n_body > BODY_LIMIT_BYTES:
            self.send_json(413, error_body(413, "the body is too long"))
            self.cut()
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._transport is None:
            return
        if self._ticket is not None:  # pipelining: answers of two requests would mix
            self._api.live.give_up(self._ticket)
            self.cut()
            return
        path = self._url.decode("latin-1").partition("?")[0]
        method, data, t_arrival_ns = self._parser.get_method(), b"".join(self._body), self._t_arrival_ns
        self._begin()
        if method == b"GET":
            status, kind, text = self._api.get(path)
            self._send_whole(status, kind, text.encode())
            return
        if method != b"POST":
            self.send_json(405, error_body(405, "Method Not Allowed"))
            return
        try:
            if path in ("/v1/chat/completions", "/v1/completions"):
                self._complete(data, path == "/v1/chat/completions", t_arrival_ns)
                return
            answer = self._api.control(path, data)
        except ApiError as error:
            self.send_json(error.status, error_body(error.status, error.message))
            return
        self.send_json(404, error_body(404, "Not Found")) if answer is None else self.send_json(200, answer)

    def _complete(self, data: bytes, is_chat: bool, t_arrival_ns: int) -> None:
        job = self._api.reader.job(data, is_chat)
        self._ticket = self._api.live.take(job, self, t_arrival_ns)
        if self._ticket is not None and job.stream:
            self.send(_STREAM_HEAD)

    # ------------------------------------------------------------------ what the live node uses

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def answer_ended(self) -> None:
        self._ticket = None

    def send_json(self, status: int, value: Any) -> None:
        self._ticket = None
        self._send_whole(status, _JSON, json.dumps(value).encode())

    def cut(self) -> None:
        """Close the connection without ending what is being sent."""
        self._ticket = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _send_whole(self, status: int, kind: str, data: bytes) -> None:
        reason = _REASONS.get(status, "Internal Server Error")
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n\r\n"
        self.send(head.encode() + data)
