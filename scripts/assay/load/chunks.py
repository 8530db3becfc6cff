"""What one chunk of a streamed completion says: pure functions over its decoded JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec

decode_json = msgspec.json.Decoder().decode
NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
COUNT_LIMIT = 1 << 24
"""No request has sixteen million tokens: a count above is not believed."""
_FAILED_FINISHES = frozenset(
    {
        *("abort", "aborted", "cancel", "cancelled", "canceled", "error", "fail", "failed", "failure"),
        *("timeout", "insufficient_system_resource"),
    }
)


def decode_loosely(data: bytes) -> Any:
    """JSON as servers write it too: NaN and Infinity in logprobs, half a surrogate pair. Raises NOT_JSON."""
    return json.loads(data.decode("utf-8"))


def count_or_none(value: object) -> int | None:
    """A token count as servers send it; anything that is not a plain non-negative integer is unknown."""
    return value if type(value) is int and 0 <= value <= COUNT_LIMIT else None


def is_error_object(value: dict[str, Any]) -> bool:
    """An error as servers put it into a stream.

    An ``error`` that is something, at the top, in a choice or in a delta; ``object`` or ``type`` that says
    so; or, where neither choices nor usage came, the other shapes: ``detail``, ``errors``, ``error_code``,
    ``code`` or a ``status`` of 400 or more with ``message``, ``success`` that is false.
    """
    if value.get("error") or value.get("object") == "error" or value.get("type") == "error":
        return True
    choices = value.get("choices")
    if choices and isinstance(choices, list):
        return any(_choice_has_error(choice) for choice in choices if isinstance(choice, dict))
    if (choices is not None and not isinstance(choices, list)) or isinstance(value.get("usage"), dict):
        return False
    status = value.get("status")
    has_status = type(status) is int and status >= 400
    return (
        any(value.get(key) for key in ("detail", "errors", "error_code", "error_message"))
        or ((bool(value.get("code")) or has_status) and isinstance(value.get("message"), str))
        or status in ("error", "failed")
        or value.get("success") is False
        or str(value.get("type", "")).lower().endswith("error")
    )


def _choice_has_error(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    return bool(choice.get("error")) or (isinstance(delta, dict) and bool(delta.get("error")))


def is_failed_finish(reason: str) -> bool:
    """A finish reason that says the server gave the answer up."""
    word = reason.lower()
    return word in _FAILED_FINISHES or word.endswith("error")


def output_of_choice(choice: dict[str, Any]) -> tuple[str, str, bool]:
    """(answer text, reasoning text, has tool-call delta) of one choice of a chunk."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return (text if isinstance(text, str) else ""), "", False
    answer, reasoning = delta.get("content"), delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(answer, list):  # content in typed parts
        parts = [part for part in answer if isinstance(part, dict)]
        answer = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    tools = bool(delta.get("tool_calls")) or bool(delta.get("function_call"))
    return (
        answer if isinstance(answer, str) else "",
        reasoning if isinstance(reasoning, str) else "",
        tools,
    )


def index_of_choice(choice: dict[str, Any]) -> int:
    """Which of the answers to one prompt it belongs to; 0 where it does not say."""
    index = choice.get("index")
    return index if type(index) is int else 0


def text_event(data: bytes) -> tuple[str, bool, int, object] | None:
    """(its text, is it answer text, index of its choice, all else) of an event with one text, nothing to count.

    None when the event carries more than one text, a finish, a usage, a tool call or an error: such events
    are always decoded.
    """
    try:
        value = decode_json(data)
    except NOT_JSON:
        return None
    if not isinstance(value, dict) or is_error_object(value) or value.get("usage") is not None:
        return None
    choices = value.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    answer, reasoning, tools = output_of_choice(choice)
    if tools or choice.get("finish_reason") is not None or bool(answer) == bool(reasoning):
        return None
    place = choice["delta"] if isinstance(choice.get("delta"), dict) else choice
    text = answer or reasoning
    keys = [key for key in ("content", "text", "reasoning_content", "reasoning") if place.get(key) == text]
    if len(keys) != 1:
        return None
    place[keys[0]] = None
    return text, bool(answer), index_of_choice(choice), value
