"""What the simulated model answers: right answers to the project's gate tasks, words to everything else.

A real model finds the answer; here it is looked up in the gates' own task files by the prompt's text, and a
needle by searching the prompt for the sentence that holds the key. What the scheduler does to the answer
(when, how fast, cut at the budget) is the same for all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from assay.digest import PACKAGE_ROOT

TASK_FOLDER = PACKAGE_ROOT / "gates" / "data"
"""Read as data: the room `gates` stands above this one."""

_NEEDLE_KINDS = (
    (re.compile(r"What is the pass key\?"), r"The pass key is (\d+)\."),
    (re.compile(r"What is the access code of ([^?]{1,200})\?"), r"The access code of {} is (\d+)\."),
)
_CODE = {
    "fibonacci": "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "to_roman": (
        "def to_roman(n):\n"
        "    values = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)\n"
        '    texts = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")\n'
        '    out = ""\n'
        "    for value, text in zip(values, texts):\n"
        "        while n >= value:\n"
        "            out += text\n"
        "            n -= value\n"
        "    return out\n"
    ),
    "run_lengths": (
        "def run_lengths(text):\n"
        "    out = []\n"
        "    for char in text:\n"
        "        if out and out[-1][0] == char:\n"
        "            out[-1][1] += 1\n"
        "        else:\n"
        "            out.append([char, 1])\n"
        "    return out\n"
    ),
    "double": "def double(n):\n    return n * 2\n",
}


@dataclass(frozen=True)
class Reply:
    """An answer as a model means it. ``kind`` is the gate's kind, None for a prompt that is no gate task."""

    content: str | None = None
    calls: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)
    kind: str | None = None


@cache
def _tasks() -> dict[str, Reply]:
    """Prompt text -> right answer, of all JSON, tool and code tasks."""
    known: dict[str, Reply] = {}
    for kind in ("json", "tool", "code"):
        data = json.loads((TASK_FOLDER / f"{kind}_tasks.json").read_text(encoding="utf-8"))
        for task in data["tasks"]:
            known[task["prompt"]] = _right(kind, task)
    return known


def _right(kind: str, task: Mapping[str, Any]) -> Reply:
    if kind == "json":
        return Reply(json.dumps(task["expected"], ensure_ascii=False), kind=kind)
    if kind == "tool":
        if task["expected_calls"]:
            return Reply(None, tuple(task["expected_calls"]), kind)
        return Reply(f"It is {task['content_contains'][0]}.", kind=kind)
    code = _CODE.get(task["function"])
    # A function that this model has not learnt is an honest wrong answer.
    return Reply(
        f"```python\n{code or 'def ' + task['function'] + '(*_):' + chr(10) + '    return None' + chr(10)}```",
        kind=kind,
    )


def reply_to(text: str, response_format: Mapping[str, Any] | None = None) -> Reply:
    """The answer to the last message of a chat; a Reply without content when it is no gate task.

    A JSON format is honoured for other prompts too: the smallest value that meets the schema.
    """
    known = _tasks().get(text)
    if known is not None:
        return known
    tail = text[-400:]
    for question, sentence in _NEEDLE_KINDS:
        asked = question.search(tail)
        if asked:
            found = re.search(sentence.format(*(re.escape(part) for part in asked.groups())), text)
            return Reply(found.group(1) if found else "I do not know.", kind="needle")
    kind = (response_format or {}).get("type")
    if kind == "json_object":
        return Reply("{}")
    if kind == "json_schema":
        schema = ((response_format or {}).get("json_schema") or {}).get("schema") or {}
        return Reply(json.dumps(smallest_value(schema), ensure_ascii=False))
    return Reply()


def smallest_value(schema: Any, depth: int = 0) -> Any:
    """A small value that meets a plain JSON schema."""
    if not isinstance(schema, Mapping) or depth > 20:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        names = schema.get("required", list(properties))
        return {name: smallest_value(properties.get(name, {}), depth + 1) for name in names}
    if kind == "array":
        return [smallest_value(schema.get("items", {}), depth + 1)] * int(schema.get("minItems", 0))
    if kind == "string":
        return "a" * max(int(schema.get("minLength", 1)), 1)
    return {"integer": schema.get("minimum", 0), "number": schema.get("minimum", 0), "boolean": True}.get(
        str(kind)
    )
