"""How many tokens a chat prompt is for the model that serves it: counted by the server, proven by its usage.

No tokenizer is loaded here: the serving engine's own one counts. Each engine has its own way to be asked;
a way is believed only after its answer for one small probe chat equals ``usage.prompt_tokens`` of a
one-token request with the same chat.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import httpx

from assay.answer import ask
from assay.errors import BadInput, Incomplete

_PROBE_CHAT: tuple[Mapping[str, Any], ...] = (
    {"role": "user", "content": "Count me: naïve 東京 <|im_end|> 12345."},
)
_CHAT_PATH = "/v1/chat/completions"
_DEFAULT_TIMEOUT_S = 120.0


class CountSource(StrEnum):
    """Where a chat token count came from."""

    TOKENIZE_MESSAGES = "tokenize_messages"
    """``/tokenize`` with messages (vLLM, SGLang)."""
    APPLY_TEMPLATE = "apply_template"
    """``/apply-template``, then ``/tokenize`` of the rendered text (llama.cpp)."""
    USAGE = "usage"
    """``usage.prompt_tokens`` of a request for one token."""


class CountFailed(Incomplete):
    """The server cannot say how long a chat is. ``transport`` tells a dead server from a silent one."""

    def __init__(self, message: str, *, transport: bool = False):
        self.transport = transport
        super().__init__(message)


@dataclass(frozen=True)
class Endpoint:
    """One OpenAI-compatible server. ``url`` may end in ``/v1`` or not; the key is in the environment."""

    url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    api_key_env: str | None = None
    timeout_s: float | None = None
    """Seconds a request may take; None leaves it to the caller's policy."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(f"not an http address: {self.url!r}", where="--url", hint="http://127.0.0.1:8000")
        if parts.username or parts.password:
            raise BadInput(
                "a password in the address would enter records", where="--url", hint="--api-key-env"
            )
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise BadInput(f"must be above 0, is {self.timeout_s}", where="--timeout")

    @property
    def base_url(self) -> str:
        """The address without ``/v1`` and without ``/v1/chat/completions``."""
        base = self.url.rstrip("/").removesuffix(_CHAT_PATH)
        return base.removesuffix("/v1").rstrip("/")

    @property
    def chat_url(self) -> str:
        return self.base_url + _CHAT_PATH

    def api_key(self) -> str | None:
        """The key itself: never put it in a record. Raises BadInput when the named variable is not set."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise BadInput("is not set in the environment", where="--api-key-env", key=self.api_key_env)
        return key

    def request_headers(self) -> dict[str, str]:
        """Headers to send, the key included: never put them in a record."""
        headers = {"accept": "application/json, text/event-stream", **self.headers}
        key = self.api_key()
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        return headers

    def client(self) -> httpx.Client:
        """A client that follows no redirect, uses no proxy and never retries."""
        return httpx.Client(
            headers=self.request_headers(),
            timeout=httpx.Timeout(_DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s),
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )


class ChatCounter:
    """Counts chats on one server; finds the way once, at the first count, and keeps it."""

    def __init__(self, endpoint: Endpoint, *, extra_body: Mapping[str, Any] | None = None):
        self._endpoint = endpoint
        self._extra = dict(extra_body or {})
        self._client = endpoint.client()
        self._source: CountSource | None = None
        self._add_special = True
        self.rejected: dict[str, str] = {}
        """Ways that were tried and not believed, with the reason."""

    def __enter__(self) -> ChatCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def count(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, CountSource]:
        """Tokens of the rendered chat with its generation prompt. Raises CountFailed."""
        if self._source is None:
            self._source = self._find_source()
        return self._ask(self._source, messages), self._source

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        """The text the server's chat template makes of ``messages``; None when it has no way to say."""
        try:
            answer = self._post("/apply-template", self._chat_body(messages))
            if isinstance(answer.get("prompt"), str):
                return str(answer["prompt"])
        except CountFailed as error:
            if error.transport:
                raise
        try:
            tokens = self._post("/tokenize", self._tokenize_body(messages)).get("tokens")
            answer = self._post("/detokenize", {"model": self._endpoint.model, "tokens": tokens})
        except CountFailed as error:
            if error.transport:
                raise
            return None
        text = answer.get("prompt")
        return text if isinstance(text, str) and text else None

    def _find_source(self) -> CountSource:
        """The first way whose answer for the probe chat equals the server's own usage."""
        truth = self._ask(CountSource.USAGE, _PROBE_CHAT)
        for source, add_special in (
            (CountSource.TOKENIZE_MESSAGES, True),
            (CountSource.APPLY_TEMPLATE, True),
            (CountSource.APPLY_TEMPLATE, False),
        ):
            self._add_special = add_special
            name = source if add_special else f"{source} without special tokens"
            try:
                counted = self._ask(source, _PROBE_CHAT)
            except CountFailed as error:
                if error.transport:
                    raise
                self.rejected[name] = str(error)
                continue
            if counted == truth:
                return source
            self.rejected[name] = f"says {counted} where usage says {truth}"
        return CountSource.USAGE

    def _ask(self, source: CountSource, messages: Sequence[Mapping[str, Any]]) -> int:
        if source is CountSource.TOKENIZE_MESSAGES:
            return _positive(self._post("/tokenize", self._tokenize_body(messages)).get("count"), "count")
        if source is CountSource.APPLY_TEMPLATE:
            prompt = self._post("/apply-template", self._chat_body(messages)).get("prompt")
            if not isinstance(prompt, str):
                raise CountFailed("/apply-template gave no prompt")
            body = {"content": prompt, "add_special": self._add_special, "parse_special": True}
            tokens = self._post("/tokenize", body).get("tokens")
            return _positive(len(tokens) if isinstance(tokens, list) else None, "tokens")
        body = {**self._chat_body(messages), "max_tokens": 1, "temperature": 0, "stream": False}
        usage = self._post(_CHAT_PATH, body).get("usage")
        return _positive(
            usage.get("prompt_tokens") if isinstance(usage, dict) else None, "usage.prompt_tokens"
        )

    def _chat_body(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**self._extra, "model": self._endpoint.model, "messages": list(messages)}

    def _tokenize_body(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        body = {"model": self._endpoint.model, "messages": list(messages), "add_generation_prompt": True}
        if "chat_template_kwargs" in self._extra:
            body["chat_template_kwargs"] = self._extra["chat_template_kwargs"]
        return body

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            limit_s = self._endpoint.timeout_s or _DEFAULT_TIMEOUT_S
            reply = ask(self._client, self._endpoint.base_url + path, limit_s, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CountFailed(f"{path}: {type(error).__name__}", transport=True) from error
        if reply.status_code != httpx.codes.OK:
            raise CountFailed(f"{path}: HTTP {reply.status_code}")
        try:
            value = reply.json()
        except ValueError as error:
            raise CountFailed(f"{path}: not JSON") from error
        if not isinstance(value, dict):
            raise CountFailed(f"{path}: not an object")
        return value


def count_chat_tokens(endpoint: Endpoint, messages: Sequence[Mapping[str, Any]]) -> tuple[int, CountSource]:
    """Tokens of ``messages`` once rendered by the server's chat template, and how that was found out.

    Raises CountFailed. For many counts on one server keep a ``ChatCounter``: it probes the server once.
    """
    with ChatCounter(endpoint) as counter:
        return counter.count(messages)


def _positive(value: object, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise CountFailed(f"no {what} in the answer")
