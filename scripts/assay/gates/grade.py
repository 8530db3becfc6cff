"""The outcome of one task, from its record alone: an audit reaches the same word on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from assay.gates.answers import Answer, read_answer
from assay.gates.reasons import GateReason
from assay.gates.tasks import Task
from assay.vocab import GateOutcome


@dataclass(frozen=True)
class Grade:
    """An outcome, the word and the sentence for why, and what was read out of the answer."""

    outcome: GateOutcome
    reason: GateReason | None = None
    detail: str | None = None
    parsed: Any = None


PASS = GateOutcome.PASS


def grade_record(task: Task, record: Mapping[str, Any], ask_thinking: bool | None) -> Grade:
    """Grade one line of tasks.jsonl against its task. A checker that raises gives could_not_run."""
    before = record.get("before_sending")
    if before and before["outcome"] in (GateOutcome.UNAVAILABLE, GateOutcome.COULD_NOT_RUN):
        return Grade(GateOutcome(before["outcome"]), GateReason(before["reason"]), before.get("detail"))
    if not record.get("response"):
        return Grade(GateOutcome.COULD_NOT_RUN, GateReason.MISSING_RECORD, "no answer is recorded")
    try:
        return _grade(task, record, ask_thinking)
    except Exception as error:  # noqa: BLE001 - our own fault must not look like the model's
        detail = f"{type(error).__name__}: {error}"[:300]
        return Grade(GateOutcome.COULD_NOT_RUN, GateReason.CHECKER_ERROR, detail)


def _grade(task: Task, record: Mapping[str, Any], ask_thinking: bool | None) -> Grade:
    grade = _grade_exchange(task, record, record["response"], ask_thinking)
    streamed = record.get("streamed")
    if not task.is_streamed_too or not streamed:
        if task.is_streamed_too and grade.outcome is PASS:
            return Grade(
                GateOutcome.COULD_NOT_RUN, GateReason.MISSING_RECORD, "the streamed form was not asked"
            )
        return grade
    if grade.outcome is not PASS:
        return grade
    in_stream = _grade_exchange(task, record, streamed["response"], ask_thinking)
    if in_stream.outcome is not PASS:
        detail = f"streamed: {in_stream.detail}" if in_stream.detail else "streamed"
        return Grade(in_stream.outcome, in_stream.reason, detail, in_stream.parsed)
    whole, assembled = read_answer(record["response"]), read_answer(streamed["response"])
    difference = _stream_difference(whole, assembled, grade.parsed, in_stream.parsed)
    if difference:
        return Grade(GateOutcome.WRONG_VALUE, GateReason.STREAM_DIFFERS, difference, in_stream.parsed)
    return grade


def _grade_exchange(
    task: Task, record: Mapping[str, Any], response: Mapping[str, Any], ask_thinking: bool | None
) -> Grade:
    answer = read_answer(response)
    if answer.fault is not None:
        return Grade(GateOutcome.UNAVAILABLE, answer.fault, answer.detail)
    if ask_thinking is False and answer.has_reasoning:
        return Grade(
            GateOutcome.COULD_NOT_RUN,
            GateReason.THINKING_IGNORED,
            "reasoning came although it was switched off",
        )
    if answer.is_budget_spent:
        spent = f"{answer.completion_tokens} tokens" if answer.completion_tokens else "the output limit"
        return Grade(GateOutcome.NO_ANSWER, GateReason.BUDGET, f"{spent} spent, no final answer")
    # imported here, so that a checker that cannot be imported is an outcome and no crash
    checks = import_module("assay.gates.checks")
    grade: Grade = getattr(checks, f"check_{task.kind.value}")(task, answer, record)
    return grade


def _stream_difference(whole: Answer, assembled: Answer, parsed: Any, parsed_in_stream: Any) -> str | None:
    """What differs between the whole answer and the assembled stream; ids are the server's own and may."""
    if [call.name for call in whole.calls] != [call.name for call in assembled.calls]:
        return "other calls"
    if parsed != parsed_in_stream:
        return "other arguments"
    if whole.finish_reason != assembled.finish_reason:
        return f"finish_reason {whole.finish_reason} whole, {assembled.finish_reason} streamed"
    if whole.content.strip() != assembled.content.strip():
        return "other content"
    return None
