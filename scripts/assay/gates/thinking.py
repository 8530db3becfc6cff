"""The thinking toggle: what the request asked, what the chat template rendered, what the answers did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.gates.answers import THINK_TAGS, read_answer
from assay.session.chat_tokens import ChatCounter, CountFailed
from assay.vocab import ScreenResult

TEMPLATE_CHAT = [{"role": "user", "content": "Say yes."}]
_TAIL_CHARS = 200


def read_template(counter: ChatCounter) -> dict[str, Any]:
    """How the template ends a prompt under this request: ``{"tail", "opens_thinking", "why_unknown"}``.

    ``opens_thinking`` is true when the prompt leaves a thinking block open for the model, false when it
    leaves none or closes it; null, with the reason, when the server cannot show its template.
    """
    try:
        text = counter.render(TEMPLATE_CHAT)
    except CountFailed as error:
        return {"tail": None, "opens_thinking": None, "why_unknown": str(error)}
    if text is None:
        return {
            "tail": None,
            "opens_thinking": None,
            "why_unknown": "the server has no way to show its template",
        }
    tail = text[-_TAIL_CHARS:].encode("utf-8", "replace").decode()
    return {"tail": tail, "opens_thinking": _is_open(text), "why_unknown": None}


def judge_thinking(records: Sequence[Mapping[str, Any]], ask: bool | None) -> dict[str, Any]:
    """Was the toggle obeyed? Counted over the answers that came; population: every exchange of every task.

    asked false: fail when any answer holds reasoning. asked true: fail when none does. asked nothing: pass.
    Without a single answer, or a template to read, it is not checked.
    """
    n = n_reasoning = n_tags = 0
    template: Mapping[str, Any] | None = None
    for record in records:
        template = template or record.get("template")
        for exchange in (record, record.get("streamed")):
            if not exchange or not exchange.get("response"):
                continue
            answer = read_answer(exchange["response"])
            if answer.fault is not None:
                continue
            n += 1
            n_reasoning += answer.has_reasoning
            n_tags += answer.has_think_tag
    if n == 0:
        verdict, why = ScreenResult.NOT_CHECKED, "no answer came"
    elif ask is None:
        verdict, why = ScreenResult.PASS, "nothing was asked"
    elif ask is False and n_reasoning:
        verdict, why = ScreenResult.FAIL, f"switched off, but {n_reasoning} of {n} answers hold reasoning"
    elif ask is False and template and template.get("opens_thinking"):
        verdict, why = ScreenResult.FAIL, "switched off, but the template opens a thinking block"
    elif ask is True and not n_reasoning:
        verdict, why = ScreenResult.FAIL, f"switched on, but none of {n} answers holds reasoning"
    else:
        verdict, why = ScreenResult.PASS, "obeyed"
    return {
        "asked": ask,
        "n": n,
        "n_reasoning": n_reasoning,
        "n_think_tags_in_content": n_tags,
        "template": dict(template) if template else None,
        "verdict": verdict.value,
        "why": why,
    }


def _is_open(text: str) -> bool:
    """The last thinking tag of the rendered prompt opens a block."""
    last = max(((text.rfind(tag), tag) for tag in THINK_TAGS), default=(-1, ""))
    return last[0] >= 0 and "/" not in last[1]
