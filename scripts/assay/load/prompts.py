"""Prompts of a load: one JSON object a line."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import BadInput

_KEYS = {"id", "use", "messages", "prompt", "token_ids", "max_tokens", "extra_body"}
_FORMS = ("messages", "prompt", "token_ids")


@dataclass(frozen=True)
class Prompt:
    """One prompt in exactly one of three forms; ``max_tokens`` and ``extra_body`` override the load's own."""

    id: str
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    token_ids: list[int] | None = None
    max_tokens: int | None = None
    extra_body: dict[str, Any] | None = None

    @property
    def form(self) -> str:
        """``messages``, ``prompt`` or ``token_ids``."""
        return next(form for form in _FORMS if getattr(self, form) is not None)


def read_prompts(path: Path) -> list[Prompt]:
    """Read a JSONL file of prompts. Raises BadInput naming file and line; blank lines are skipped."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=path) from error
    prompts: list[Prompt] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            value = json.loads(
                line, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_twice
            )
        except (ValueError, RecursionError) as error:
            raise BadInput(f"not JSON: {error}", where=where, hint="one JSON object a line") from error
        prompt = parse_prompt(value, where)
        if prompt.id in seen:
            raise BadInput(f"{prompt.id!r} is also on line {seen[prompt.id]}", where=where, key="id")
        seen[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise BadInput("no prompts", where=path, hint="one JSON object a line")
    return prompts


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return value


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word} is beyond every number")
    return value


def parse_prompt(value: Any, where: str) -> Prompt:
    """Check one decoded line. Raises BadInput naming ``where`` and the key."""
    if not isinstance(value, dict):
        raise BadInput("not a JSON object", where=where)
    unknown = sorted(set(value) - _KEYS)
    if unknown:
        raise BadInput("unknown key", where=where, key=unknown[0], hint=f"known: {', '.join(sorted(_KEYS))}")
    if "id" not in value:
        raise BadInput("missing", where=where, key="id", hint="a name of its own for each prompt")
    identity = value["id"]
    if not isinstance(identity, str) or not identity or len(identity) > 200:
        raise BadInput("must be a string of 1 to 200 characters", where=where, key="id")
    for key, part in value.items():
        try:
            json.dumps(part, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise BadInput("has half of a surrogate pair", where=where, key=key) from error
    forms = [form for form in _FORMS if value.get(form) is not None]
    if len(forms) != 1:
        raise BadInput(f"has {len(forms)} of {', '.join(_FORMS)}", where=where, hint="exactly one is due")
    messages, text, token_ids = (value.get(form) for form in _FORMS)
    if messages is not None and not (
        isinstance(messages, list)
        and messages
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages)
    ):
        raise BadInput("must be a list of objects with a role", where=where, key="messages")
    if messages is not None and not all("content" in one or "tool_calls" in one for one in messages):
        raise BadInput("a message has no content", where=where, key="messages")
    if text is not None and not (isinstance(text, str) and text):
        raise BadInput("must be a string that is not empty", where=where, key="prompt")
    if token_ids is not None and not (
        isinstance(token_ids, list)
        and token_ids
        and all(type(token) is int and 0 <= token < 2**31 for token in token_ids)
    ):
        raise BadInput("must be a list of token numbers", where=where, key="token_ids")
    max_tokens = value.get("max_tokens")
    if max_tokens is not None and not (type(max_tokens) is int and 0 < max_tokens < 2**31):
        raise BadInput("must be a whole number above 0", where=where, key="max_tokens")
    extra = value.get("extra_body")
    if extra is not None and not isinstance(extra, dict):
        raise BadInput("must be an object", where=where, key="extra_body")
    if extra is not None and extra.get("stream", True) is not True:
        raise BadInput("must stay true", where=where, key="extra_body.stream")
    return Prompt(identity, messages, text, token_ids, max_tokens, extra)
