"""Control calls of the gates: one request and its complete answer, bounded in bytes and time."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx

from assay.answer import AnswerTooLarge, answering, pieces
from assay.gates.reasons import GateReason
from assay.records.redact import redact, redact_cut, secret_words
from assay.session.chat_tokens import Endpoint

_KEPT_HEADERS = (
    "content-type",
    "content-length",
    "transfer-encoding",
    "server",
    "date",
    "x-request-id",
    "retry-after",
)
_MAX_HEADER_CHARS = 300


class ChatClient:
    """Sends chat requests of one run of gates. Safe for use from several threads."""

    def __init__(self, endpoint: Endpoint, policy_timeout_s: float):
        self._endpoint = endpoint
        self._timeout_s = policy_timeout_s if endpoint.timeout_s is None else endpoint.timeout_s
        self._secrets = _secrets(endpoint)
        self._client = endpoint.client()

    def close(self) -> None:
        self._client.close()

    def exchange(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one chat request; the record of it. Never raises for what the server or the network does.

        ``{"request": {"method", "url_path", "body"}, "response": {"status", "headers", "body" | "events",
        "fault": null | {"reason", "detail"}}, "t_start_utc", "elapsed_ms"}``. A streamed answer has
        ``events``: ``[{"t_ms", "data"}]``, times from the send. A broken answer keeps what came of it.
        """
        stream = bool(body.get("stream"))
        request = {"method": "POST", "url_path": httpx.URL(self._endpoint.chat_url).path, "body": dict(body)}
        response: dict[str, Any] = {"status": None, "headers": {}, "fault": None}
        response["events" if stream else "body"] = [] if stream else None
        t_start_utc = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        t0_ns = time.monotonic_ns()
        try:
            self._receive(body, stream, response, t0_ns)
        except httpx.TimeoutException as error:
            response["fault"] = _fault(GateReason.TIMEOUT, _short(error))
        except AnswerTooLarge as error:
            response["fault"] = _fault(GateReason.TOO_LARGE, _short(error))
        except (httpx.RemoteProtocolError, httpx.DecodingError) as error:
            closed = response["status"] is None and "disconnected" in str(error)
            reason = GateReason.CONNECT if closed else GateReason.PROTOCOL
            if response["status"] is not None and isinstance(error, httpx.RemoteProtocolError):
                reason = GateReason.TRUNCATED_STREAM
            response["fault"] = _fault(reason, _short(error))
        except httpx.TransportError as error:
            broken = response["status"] is not None
            response["fault"] = _fault(
                GateReason.TRUNCATED_STREAM if broken else GateReason.CONNECT, _short(error)
            )
        elapsed_ms = (time.monotonic_ns() - t0_ns) / 1e6
        record = {
            "request": request,
            "response": response,
            "t_start_utc": t_start_utc,
            "elapsed_ms": round(elapsed_ms, 3),
        }
        return self._redact(record)

    def _receive(self, body: Mapping[str, Any], stream: bool, response: dict[str, Any], t0_ns: int) -> None:
        sent = json.dumps(body, ensure_ascii=True).encode()
        headers = {"content-type": "application/json"}
        with answering(
            self._client, self._endpoint.chat_url, self._timeout_s, headers=headers, content=sent
        ) as reply:
            response["status"] = reply.status_code
            response["headers"] = _kept_headers(reply.headers)
            events: list[dict[str, Any]] | None = response["events"] if stream else None
            is_sse = stream and reply.status_code == httpx.codes.OK
            splitter = EventSplitter()
            whole = bytearray()
            try:
                for chunk in pieces(reply):
                    whole += chunk
                    if is_sse and events is not None:
                        t_ms = round((time.monotonic_ns() - t0_ns) / 1e6, 3)
                        events.extend({"t_ms": t_ms, "data": data} for data in splitter.feed(chunk))
            finally:
                if not is_sse:
                    response["body"] = whole.decode("utf-8", "replace")
            if is_sse and events is not None and not events:
                response["body"] = whole[:65536].decode("utf-8", "replace")

    def _redact(self, record: dict[str, Any]) -> dict[str, Any]:
        """A server that echoes the key must not get it into a record."""
        for secret in self._secrets:
            if secret in json.dumps(record["response"], ensure_ascii=False):
                record["response"] = _replaced(record["response"], secret)
        response = record["response"]  # headers and a body without events were cut, maybe inside a key
        response["headers"] = {
            name: redact_cut(value, self._secrets) for name, value in response["headers"].items()
        }
        if response.get("body"):
            response["body"] = redact_cut(response["body"], self._secrets)
        return record


class EventSplitter:
    """Server-sent events out of bytes: the data of each event; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of every event that ``chunk`` completes. Lines may end in LF, CR LF or CR."""
        buffer = self._rest + chunk
        # a CR at the very end may be half of a CR LF: wait for the next chunk
        held = buffer.endswith(b"\r")
        text = buffer[:-1] if held else buffer
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + (b"\r" if held else b"")
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append("\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
        return events


def _fault(reason: GateReason, detail: str) -> dict[str, str]:
    return {"reason": reason.value, "detail": detail}


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _kept_headers(headers: httpx.Headers) -> dict[str, str]:
    return {name: headers[name][:_MAX_HEADER_CHARS] for name in _KEPT_HEADERS if name in headers}


def _secrets(endpoint: Endpoint) -> list[str]:
    """The key and the values of headers the user gave: sent, never recorded."""
    return secret_words([endpoint.api_key() or "", *endpoint.headers.values()])


def _replaced(value: Any, secret: str) -> Any:
    if isinstance(value, str):
        return redact(value, [secret])
    if isinstance(value, list):
        return [_replaced(item, secret) for item in value]
    if isinstance(value, dict):
        return {redact(key, [secret]): _replaced(item, secret) for key, item in value.items()}
    return value
