"""What a load is asked to do, checked before anything starts, and the bytes of its requests."""

from __future__ import annotations

import json
import math
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from assay.errors import BadInput
from assay.load.prompts import Prompt
from assay.load.schedule import Arrivals
from assay.records.redact import secret_words

STREAMS_PER_PROCESS = 1_024
EVENTS_PER_S_PER_PROCESS = 50_000
SERVER_TOKENIZER = "server"
TOKENS_LIMIT = 2**31 - 1
REQUESTS_LIMIT = 10**9
STREAMS_LIMIT = 10**6
RATES_PER_S = 1e-6, 1e6
BURSTINESS = 0.01, 1e6
"""Under it nearly all gaps are 0, over it they are constant arrivals; far beyond none can be drawn."""
TIME_LIMIT_S = 10.0**7
_PATHS = {"chat": "/chat/completions", "completions": "/completions"}
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
    "User-Agent": "assay",
}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RESERVED = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "authorization"}


@dataclass(frozen=True)
class LoadSpec:
    """One phase of load against one OpenAI-compatible endpoint.

    ``url`` is the server's base, with or without ``/v1``. ``requests`` or ``duration_s`` (or both: what comes
    first) ends the issuing. Without ``rate_per_s`` the loop is closed with ``concurrency`` streams; with it
    the loop is open and ``concurrency``, if not 0, caps what is in flight. ``opening_per_stream`` requests of
    each stream, and all that is sent while the load ramps up over ``ramp_s``, come from the opening prompts
    and are in no measured number. ``tokenizer`` is a tokenizer.json, or ``server`` for the server's
    ``/tokenize``; with neither, the server is asked only for answers it sent no usage for.
    """

    url: str
    model: str
    endpoint: str | None = None
    concurrency: int = 1
    requests: int | None = None
    duration_s: float | None = None
    drain_limit_s: float = 60.0
    rate_per_s: float | None = None
    arrivals: str = "poisson"
    seed: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    api_key_env: str | None = None
    timeout_s: float = 600.0
    extra_body: dict[str, Any] = field(default_factory=dict)
    processes: int | None = None
    planned_prompt_tokens: int | None = None
    point_id: str = "load"
    session_id: str | None = None
    api_key_file: Path | None = None
    burstiness: float = 1.0
    ramp_s: float = 0.0
    opening_per_stream: int = 0
    expected_events_per_s: float | None = None
    tokenizer: str | None = None
    metrics_urls: tuple[str, ...] = ()
    gauge_interval_s: float = 1.0
    ca_file: Path | None = None
    reuse_connections: bool = True
    judge_all: bool = False
    """Lengths and schedule make the phase invalid: for a load whose records no campaign judges later."""

    @property
    def is_open_loop(self) -> bool:
        return self.rate_per_s is not None

    @property
    def has_opening(self) -> bool:
        return self.opening_per_stream > 0 or self.ramp_s > 0


@dataclass(frozen=True)
class Target:
    """Where the requests go: resolved from the URL."""

    scheme: str
    host: str
    port: int
    base_path: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"


def check(spec: LoadSpec, prompts: Sequence[Prompt], opening: Sequence[Prompt] | None) -> None:
    """Raise BadInput naming the option that is wrong."""
    target_of(spec.url)

    def need(good: bool, key: str, message: str, hint: str | None = None) -> None:
        if not good:
            raise BadInput(message, where="load", key=key, hint=hint)

    def positive(value: float) -> bool:
        return math.isfinite(value) and value > 0

    def bounded(value: float | None, low: float, high: float, key: str) -> None:
        # Before anything else: beyond these no plan can be written down, and no such load be run.
        if value is not None and not low <= value <= high:
            raise BadInput(f"must be from {low:g} to {high:g}", where="load", key=key)

    bounded(spec.planned_prompt_tokens, 1, TOKENS_LIMIT, "planned-prompt-tokens")
    bounded(spec.max_tokens, 1, TOKENS_LIMIT, "max-tokens")
    bounded(spec.seed, -(2**62), 2**62, "seed")
    bounded(spec.requests, 1, REQUESTS_LIMIT, "requests")
    bounded(spec.opening_per_stream, 0, REQUESTS_LIMIT, "opening-per-stream")
    bounded(spec.concurrency, 0, STREAMS_LIMIT, "concurrency")
    bounded(spec.processes, 1, STREAMS_LIMIT, "processes")
    bounded(spec.rate_per_s, *RATES_PER_S, "rate")
    bounded(spec.burstiness, *BURSTINESS, "burstiness")
    bounded(spec.duration_s, 0, TIME_LIMIT_S, "duration")
    bounded(spec.drain_limit_s, 0, TIME_LIMIT_S, "drain-limit")
    bounded(spec.ramp_s, 0, TIME_LIMIT_S, "ramp")
    bounded(spec.timeout_s, 0, TIME_LIMIT_S, "timeout")
    need(bool(spec.model), "model", "is empty")
    need(bool(prompts), "prompts", "there are none")
    need(
        spec.endpoint in (None, *_PATHS), "endpoint", f"{spec.endpoint!r} is not known", "chat or completions"
    )
    need(
        spec.concurrency > 0 or (spec.is_open_loop and spec.concurrency == 0),
        "concurrency",
        "must be above 0",
    )
    need(
        spec.requests is not None or spec.duration_s is not None, "requests", "neither requests nor duration"
    )
    need(spec.requests is None or spec.requests > 0, "requests", "must be above 0")
    need(spec.duration_s is None or positive(spec.duration_s), "duration", "must be above 0")
    need(math.isfinite(spec.drain_limit_s) and spec.drain_limit_s >= 0, "drain-limit", "must not be negative")
    need(spec.arrivals in set(Arrivals), "arrivals", f"{spec.arrivals!r} is not known", ", ".join(Arrivals))
    need(math.isfinite(spec.ramp_s) and spec.ramp_s >= 0, "ramp", "must not be negative")
    need(spec.max_tokens is None or spec.max_tokens > 0, "max-tokens", "must be above 0")
    need(positive(spec.timeout_s), "timeout", "must be above 0")
    need(spec.processes is None or spec.processes > 0, "processes", "must be above 0")
    need(spec.opening_per_stream >= 0, "opening-per-stream", "must not be negative")
    need(
        not (spec.opening_per_stream and spec.is_open_loop),
        "opening-per-stream",
        "is for a closed loop",
        "ramp",
    )
    need(not spec.has_opening or bool(opening), "opening-prompts", "the opening needs prompts of its own")
    need(positive(spec.gauge_interval_s), "gauge-interval", "must be above 0")
    need(
        not (spec.api_key_env and spec.api_key_file), "api-key-env", "there is a key file too", "one of them"
    )
    if spec.tokenizer not in (None, SERVER_TOKENIZER) and not Path(str(spec.tokenizer)).is_file():
        raise BadInput("no such file", where="load", key="tokenizer", hint="a tokenizer.json, or server")
    for name, value in spec.headers.items():
        need(bool(_TOKEN.fullmatch(name)), "header", f"{name!r} is not a header name")
        need(
            name.lower() not in _RESERVED, "header", f"{name} is set by the client", "--api-key-env for a key"
        )
        need(
            value.isprintable() and value.isascii(),
            "header",
            f"the value of {name} has characters not allowed",
        )
    try:
        json.dumps(spec.extra_body, allow_nan=False)
    except ValueError as error:
        raise BadInput("NaN and Infinity are not JSON", where="load", key="extra-body") from error
    try:
        json.dumps(public_spec(spec), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadInput("an option has half of a surrogate pair", where="load") from error
    for address in spec.metrics_urls:
        try:
            parts = urlsplit(address)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        need(good, "metrics-url", f"{address!r} is not a URL", "http://127.0.0.1:8000/metrics")
    if spec.ca_file is not None:
        try:
            ssl.create_default_context(cafile=str(spec.ca_file))
        except OSError as error:  # an ssl.SSLError is one
            why = error.strerror if not isinstance(error, ssl.SSLError) else None
            raise BadInput(why or "holds no certificate", where=spec.ca_file, key="ca-file") from error
    for prompt in [*prompts, *(opening or ())]:
        body_of(spec, prompt)
    api_key(spec)


def target_of(url: str) -> Target:
    """Split a base URL; it may end in /v1 or in an endpoint's own path. Raises BadInput."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput(str(error), where="load", key="url") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{url!r} is not a URL", where="load", key="url", hint="http://127.0.0.1:8000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadInput("must have no user, query or fragment", where="load", key="url", hint="--api-key-env")
    path = parts.path.rstrip("/")
    for suffix in _PATHS.values():
        path = path.removesuffix(suffix)
    if not path.isascii() or not path.isprintable() or " " in path:
        raise BadInput("its path has characters not allowed", where="load", key="url")
    base = path if path.endswith("/v1") else f"{path}/v1"
    default_port = 443 if parts.scheme == "https" else 80
    return Target(parts.scheme, parts.hostname, port or default_port, base)


def api_key(spec: LoadSpec) -> str | None:
    """The bearer key, from the environment or a file. Raises BadInput; the key is in no message."""
    if spec.api_key_env:
        key = os.environ.get(spec.api_key_env, "").strip()
        if not key:
            raise BadInput(f"{spec.api_key_env} is not set", where="load", key="api-key-env")
    elif spec.api_key_file:
        try:
            key = spec.api_key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput("cannot be read", where=spec.api_key_file, key="api-key-file") from error
    else:
        return None
    if not key or not key.isascii() or not key.isprintable():
        raise BadInput("is empty or has characters not allowed", where="load", key="api-key")
    return key


def secrets_of(spec: LoadSpec) -> list[str]:
    """The key and the header values: in no record, whatever a server echoes."""
    return secret_words([api_key(spec) or "", *spec.headers.values()])


def endpoint_of(spec: LoadSpec, prompt: Prompt) -> str:
    """``chat`` or ``completions``: asked for, or by the prompt's form."""
    return spec.endpoint or ("chat" if prompt.messages is not None else "completions")


def with_endpoint(spec: LoadSpec, prompts: Sequence[Prompt]) -> LoadSpec:
    """The spec with the endpoint that all ``prompts`` go to, if it is one: its records then tell it."""
    used = {endpoint_of(spec, prompt) for prompt in prompts}
    return replace(spec, endpoint=used.pop()) if len(used) == 1 else spec


def body_of(spec: LoadSpec, prompt: Prompt) -> dict[str, Any]:
    """The JSON body of one request: the load's settings, then its extra body, then the prompt's own."""
    endpoint = endpoint_of(spec, prompt)
    body: dict[str, Any] = {"model": spec.model}
    if endpoint == "chat":
        if prompt.messages is not None:
            body["messages"] = prompt.messages
        elif prompt.prompt is not None:
            body["messages"] = [{"role": "user", "content": prompt.prompt}]
        else:
            raise BadInput(
                "token_ids cannot go to chat", where=f"prompt {prompt.id}", hint="--endpoint completions"
            )
    elif prompt.messages is not None:
        raise BadInput(
            "messages cannot go to completions", where=f"prompt {prompt.id}", hint="--endpoint chat"
        )
    else:
        body["prompt"] = prompt.prompt if prompt.prompt is not None else prompt.token_ids
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    max_tokens = prompt.max_tokens or spec.max_tokens
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if spec.ignore_eos:
        body["ignore_eos"] = True
    body |= spec.extra_body
    body |= prompt.extra_body or {}
    if body["stream"] is not True:
        raise BadInput("must stay true", where=f"prompt {prompt.id}", key="extra_body.stream")
    return body


def requested_tokens(body: dict[str, Any]) -> int | None:
    """The most output a body asks for, of its ``n`` answers together as usage counts them; or None."""
    n = body.get("n")
    n_answers = n if type(n) is int and n > 0 else 1
    for key in ("max_completion_tokens", "max_tokens"):
        value = body.get(key)
        if type(value) is int and 0 < value * n_answers < 2**31:
            return value * n_answers
    return None


def encode_body(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def heads_of(spec: LoadSpec, target: Target) -> dict[str, bytes]:
    """For each endpoint the request head up to the Content-Length value. Holds the key: goes in no record."""
    given = {name.lower() for name in spec.headers}
    lines = [
        f"Host: {target.host_header}",
        *(f"{name}: {value}" for name, value in _HEADERS.items() if name.lower() not in given),
        *(f"{name}: {value}" for name, value in spec.headers.items()),
    ]
    key = api_key(spec)
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    rest = "\r\n".join(lines)
    return {
        name: f"POST {target.base_path}{path} HTTP/1.1\r\n{rest}\r\nContent-Length: ".encode()
        for name, path in _PATHS.items()
    }


def process_count(spec: LoadSpec, n_cores: int) -> int:
    """How many client processes: one per 1,024 streams or 50,000 events/s expected, at most one per core."""
    if spec.processes is not None:
        # Each process has its part of the streams, or of an open loop's cap: at least one.
        return min(spec.processes, spec.concurrency) if spec.concurrency else spec.processes
    wanted = max(
        math.ceil(spec.concurrency / STREAMS_PER_PROCESS),
        math.ceil((spec.expected_events_per_s or 0) / EVENTS_PER_S_PER_PROCESS),
        1,
    )
    return min(wanted, max(n_cores, 1))


def public_spec(spec: LoadSpec) -> dict[str, Any]:
    """The spec as it may stand in a record: header values and keys left out."""
    hidden = {"headers", "api_key_file", "ca_file", "tokenizer", "metrics_urls"}
    record = {name: getattr(spec, name) for name in spec.__dataclass_fields__ if name not in hidden}
    record["header_names"] = sorted(spec.headers)
    record["tokenizer"] = (
        spec.tokenizer if spec.tokenizer in (None, SERVER_TOKENIZER) else Path(spec.tokenizer).name
    )
    record["n_metrics_urls"] = len(spec.metrics_urls)
    return record
