"""One chat answer out of a recorded exchange: whole, or assembled from a stream, or why there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.gates.reasons import GateReason

THINK_TAGS = ("<think>", "</think>", "<thinking>", "</thinking>", "[THINK]", "<|begin_of_thought|>")
_HTTP_OK = 200


@dataclass(frozen=True)
class ToolCall:
    """One call as the server gave it; ``arguments`` is its raw text."""

    id: str | None
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """What one exchange gave. ``fault`` set: no answer came, and the rest may be a part of one."""

    fault: GateReason | None = None
    detail: str | None = None
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def has_think_tag(self) -> bool:
        return any(tag in self.content for tag in THINK_TAGS)

    @property
    def has_reasoning(self) -> bool:
        """Reasoning was seen: in its own channel, in the usage, or as a tag in the content."""
        return bool(self.reasoning.strip()) or bool(self.reasoning_tokens) or self.has_think_tag

    @property
    def is_cut(self) -> bool:
        return self.finish_reason == "length"

    @property
    def is_budget_spent(self) -> bool:
        """The output limit came before a final answer began: no content, or an open thinking block."""
        if not self.is_cut or self.calls:
            return False
        if not self.content.strip():
            return True
        return any(
            self.content.rfind(opened) > self.content.rfind(closed)
            for opened, closed in (("<think>", "</think>"), ("<thinking>", "</thinking>"))
        )


@dataclass
class _Parts:
    content: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, str | None]] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)


def read_answer(response: Mapping[str, Any]) -> Answer:
    """The answer in a recorded response (``ChatClient.exchange``). Never raises for what is in it."""
    status, fault = response.get("status"), response.get("fault")
    streamed = "events" in response
    if status is not None and status != _HTTP_OK:
        return Answer(GateReason.HTTP_STATUS, f"HTTP {status}")
    if fault:
        # an error object that came before the break says more than the break
        inner = _error_in_events(response.get("events") or [])
        if inner is not None:
            return Answer(GateReason.IN_STREAM, inner)
        return Answer(GateReason(fault["reason"]), fault.get("detail"))
    if status is None:
        return Answer(GateReason.PROTOCOL, "no status")
    try:
        return _from_events(response["events"]) if streamed else _from_body(response.get("body") or "")
    except (_NotChat, RecursionError) as error:
        return Answer(GateReason.PROTOCOL, str(error)[:300])


class _NotChat(Exception):
    pass


def _load(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _NotChat(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise _NotChat(f"{what} is no object")
    return value


def _from_body(text: str) -> Answer:
    value = _load(text, "the body")
    if value.get("error"):
        return Answer(GateReason.IN_STREAM, _error_text(value["error"]))
    choice = _first_choice(value)
    message = choice.get("message") if choice else None
    if not isinstance(message, dict):
        raise _NotChat("the body has no message")
    parts = _Parts(usage=_mapping(value.get("usage")))
    _add_text(parts, message)
    for index, call in enumerate(message.get("tool_calls") or []):
        _add_call(parts, {"index": index, **_mapping(call)})
    if choice and isinstance(choice.get("finish_reason"), str):
        parts.finish_reason = choice["finish_reason"]
    return _answer(parts)


def _from_events(events: list[Mapping[str, Any]]) -> Answer:
    parts = _Parts()
    done = False
    for event in events:
        data = str(event["data"])
        if data.strip() == "[DONE]":
            done = True
            break
        value = _load(data, "an event")
        if value.get("error"):
            return Answer(GateReason.IN_STREAM, _error_text(value["error"]))
        if isinstance(value.get("usage"), dict):
            parts.usage = value["usage"]
        choice = _first_choice(value)
        if choice is None:
            continue
        delta = _mapping(choice.get("delta"))
        _add_text(parts, delta)
        for call in delta.get("tool_calls") or []:
            _add_call(parts, _mapping(call))
        if isinstance(choice.get("finish_reason"), str):
            parts.finish_reason = choice["finish_reason"]
    if not done and parts.finish_reason is None:
        return Answer(GateReason.TRUNCATED_STREAM, "no finish_reason and no [DONE]")
    return _answer(parts)


def _add_text(parts: _Parts, message: Mapping[str, Any]) -> None:
    if isinstance(message.get("content"), str):
        parts.content += message["content"]
    # two names for one channel: a server that sends both sends the same text twice
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        parts.reasoning += reasoning


def _add_call(parts: _Parts, call: Mapping[str, Any]) -> None:
    index = call.get("index", 0)
    if not isinstance(index, int):
        raise _NotChat("a tool call has no numeric index")
    entry = parts.calls.setdefault(index, {"id": None, "name": "", "arguments": ""})
    function = _mapping(call.get("function"))
    if isinstance(call.get("id"), str) and call["id"]:
        entry["id"] = call["id"]
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(name, str) and name != entry["name"]:
        entry["name"] = (entry["name"] or "") + name
    if isinstance(arguments, str):
        entry["arguments"] = (entry["arguments"] or "") + arguments
    elif arguments is not None:
        # the API says text; some servers send the object itself: kept visible as what it is
        entry["arguments"] = f"(not text) {json.dumps(arguments)}"


def _answer(parts: _Parts) -> Answer:
    details = _mapping(parts.usage.get("completion_tokens_details"))
    return Answer(
        content=parts.content,
        reasoning=parts.reasoning,
        calls=tuple(
            ToolCall(entry["id"], entry["name"] or "", entry["arguments"] or "")
            for _, entry in sorted(parts.calls.items())
        ),
        finish_reason=parts.finish_reason,
        prompt_tokens=_count(parts.usage.get("prompt_tokens")),
        completion_tokens=_count(parts.usage.get("completion_tokens")),
        reasoning_tokens=_count(details.get("reasoning_tokens")),
    )


def _first_choice(value: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


def _error_in_events(events: list[Mapping[str, Any]]) -> str | None:
    for event in events:
        try:
            value = json.loads(str(event["data"]))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and value.get("error"):
            return _error_text(value["error"])
    return None


def _error_text(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:300]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
