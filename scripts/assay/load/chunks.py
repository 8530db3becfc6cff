"""What one chunk of a streamed completion says: pure functions over its decoded JSON."""

from __future__ import annotations

from typing import Any

import msgspec

decode_json = msgspec.json.Decoder().decode
NOT_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_INT32_MAX = 2**31 - 1


def count_or_none(value: object) -> int | None:
    """A token count as servers send it; anything that is not a plain non-negative integer is unknown."""
    return value if type(value) is int and 0 <= value <= _INT32_MAX else None


def is_error_object(value: dict[str, Any]) -> bool:
    """An error as servers put it into a stream: an ``error`` that is something, or ``object: error``."""
    error = value.get("error")
    return (
        (error is not None and error is not False and error != "")
        or value.get("object") == "error"
        or value.get("type") == "error"
    )


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


def text_event(data: bytes) -> tuple[str, bool, object] | None:
    """(its text, is it answer text, everything else) of an event with one text and nothing to count.

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
    return text, bool(answer), value
