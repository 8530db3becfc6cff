"""The checkers, one a kind: an answer against its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from assay.gates.answers import Answer, ToolCall
from assay.gates.code_text import read_code
from assay.gates.grade import Grade
from assay.gates.needles import grade_keys, tolerance_tokens
from assay.gates.reasons import GateReason
from assay.gates.strict_json import NotStrict, parse_strict, same_value
from assay.gates.tasks import Task
from assay.vocab import GateOutcome

_CALL_MARKS = ("<tool_call", "<|tool_call", "[TOOL_CALLS]", "<function=", "<|python_tag|>", '"tool_calls"')
_ENDED_WELL = ("stop", "tool_calls", "function_call")
_MAX_DETAIL = 300


def check_json(task: Task, answer: Answer, _record: Mapping[str, Any]) -> Grade:
    """The complete content parses as it stands; then the schema; then the value; then how it ended."""
    try:
        value = parse_strict(answer.content, cut=answer.is_cut)
    except NotStrict as fault:
        return Grade(GateOutcome.MALFORMED, fault.reason, fault.detail)
    broken = _schema_fault(value, task.check["schema"])
    if broken:
        return Grade(GateOutcome.MALFORMED, broken[0], broken[1], value)
    if not same_value(value, task.expected):
        return Grade(GateOutcome.WRONG_VALUE, GateReason.VALUE, "not the expected value", value)
    if answer.finish_reason != "stop":
        return Grade(
            GateOutcome.MALFORMED, GateReason.FINISH_REASON, f"ended by {answer.finish_reason}", value
        )
    return Grade(GateOutcome.PASS, parsed=value)


def check_tool(task: Task, answer: Answer, _record: Mapping[str, Any]) -> Grade:
    """The calls that must come, with arguments that fit the tool's schema and have the expected values."""
    expected: Sequence[Mapping[str, Any]] = task.expected
    if not expected:
        return _check_no_call(task, answer)
    if not answer.calls:
        return _no_call(task, answer)
    fault = _call_fault(task, answer.calls)
    if fault:
        return fault
    calls = [{"name": call.name, "arguments": parse_strict(call.arguments)} for call in answer.calls]
    if sorted(call["name"] for call in calls) != sorted(call["name"] for call in expected):
        names = ", ".join(call["name"] for call in calls)
        return Grade(GateOutcome.WRONG_VALUE, GateReason.WRONG_TOOL, f"called {names}"[:_MAX_DETAIL], calls)
    if not _same_calls(calls, expected):
        return Grade(GateOutcome.WRONG_VALUE, GateReason.VALUE, "not the expected arguments", calls)
    if answer.finish_reason not in _ENDED_WELL:
        return Grade(
            GateOutcome.MALFORMED, GateReason.FINISH_REASON, f"ended by {answer.finish_reason}", calls
        )
    return Grade(GateOutcome.PASS, parsed=calls)


def check_needle(task: Task, answer: Answer, record: Mapping[str, Any]) -> Grade:
    """The key, and no other; asked in a prompt of the length that was meant."""
    measured = record["needle"]["n_tokens"]
    allowed = tolerance_tokens(task.check["length_tokens"], task.check["tolerance_percent"])
    if abs(measured - task.check["length_tokens"]) > allowed:
        return Grade(GateOutcome.COULD_NOT_RUN, GateReason.LENGTH_NOT_REACHED, f"measured {measured} tokens")
    said = answer.prompt_tokens
    if said is not None and abs(said - measured) > allowed:
        detail = f"usage says {said} prompt tokens, measured {measured}"
        return Grade(GateOutcome.COULD_NOT_RUN, GateReason.LENGTH_DISAGREES, detail)
    if not answer.content.strip():
        return Grade(GateOutcome.MALFORMED, GateReason.EMPTY, "the content is empty")
    has_key, has_other, found = grade_keys(answer.content, task.expected)
    if has_key and not has_other:
        return Grade(GateOutcome.PASS, parsed=task.expected)
    if has_other:
        return Grade(GateOutcome.WRONG_VALUE, GateReason.WRONG_KEY, f"found {', '.join(found)}", found)
    return Grade(GateOutcome.WRONG_VALUE, GateReason.KEY_MISSING, "no key in the answer", found)


def check_code(task: Task, answer: Answer, record: Mapping[str, Any]) -> Grade:
    """What the recorded runs returned, against the expected values of every call in every run."""
    code = read_code(answer, task.check["function"])
    if isinstance(code, Grade):
        return code
    runs: Sequence[Mapping[str, Any]] = record.get("runs") or []
    if len(runs) != task.check["runs"]:
        detail = f"{len(runs)} runs recorded, {task.check['runs']} asked"
        return Grade(GateOutcome.COULD_NOT_RUN, GateReason.MISSING_RECORD, detail)
    if any(run["ended"] == "no_isolation" for run in runs):
        return Grade(GateOutcome.COULD_NOT_RUN, GateReason.NO_ISOLATION, "the host allows no sandbox")
    right = [run["ended"] == "ok" and same_value(run["values"], task.expected) for run in runs]
    if all(right):
        return Grade(GateOutcome.PASS, parsed=code)
    if any(right):
        detail = f"right in {sum(right)} of {len(runs)} runs"
        return Grade(GateOutcome.WRONG_VALUE, GateReason.RUNS_DIFFER, detail, code)
    first = runs[0]
    if first["ended"] == "ok":
        return Grade(GateOutcome.WRONG_VALUE, GateReason.VALUE, "not the expected values", code)
    is_memory = str(first.get("error") or "").startswith("MemoryError")
    is_limit = is_memory or first["ended"] in ("killed", "timeout", "output_limit")
    reason = GateReason.RUN_LIMIT if is_limit else GateReason.RUN_ERROR
    detail = f"{first['ended']}: {first.get('error') or 'exit ' + str(first.get('exit_code'))}"
    return Grade(GateOutcome.WRONG_VALUE, reason, detail[:_MAX_DETAIL], code)


def _schema_fault(value: Any, schema: Mapping[str, Any]) -> tuple[GateReason, str] | None:
    errors = sorted(
        Draft202012Validator(schema).iter_errors(value), key=lambda error: list(map(str, error.path))
    )
    if not errors:
        return None
    # an extra key beside other faults is the lesser one: the reason names the first fault of weight
    heavy = [error for error in errors if error.validator != "additionalProperties"]
    error = (heavy or errors)[0]
    place = "/".join(map(str, error.absolute_path)) or "(top)"
    reason = GateReason.SCHEMA if heavy else GateReason.EXTRA_KEY
    return reason, f"{place}: {error.message}"[:_MAX_DETAIL]


def _check_no_call(task: Task, answer: Answer) -> Grade:
    if answer.calls:
        names = ", ".join(call.name for call in answer.calls)
        return Grade(GateOutcome.WRONG_VALUE, GateReason.UNWANTED_CALL, f"called {names}"[:_MAX_DETAIL])
    text = answer.content
    if not text.strip():
        return Grade(GateOutcome.MALFORMED, GateReason.EMPTY, "no call, and no content")
    if any(mark in text for mark in _CALL_MARKS):
        return Grade(GateOutcome.MALFORMED, GateReason.CALL_IN_CONTENT, "a call as text in the content")
    if answer.is_cut:
        return Grade(GateOutcome.MALFORMED, GateReason.TRUNCATED, "cut by the output limit")
    wanted = task.check.get("content_contains")
    if wanted and not any(word.casefold() in text.casefold() for word in wanted):
        return Grade(GateOutcome.WRONG_VALUE, GateReason.VALUE, "not the expected answer", text[:_MAX_DETAIL])
    if answer.finish_reason != "stop":
        return Grade(GateOutcome.MALFORMED, GateReason.FINISH_REASON, f"ended by {answer.finish_reason}")
    return Grade(GateOutcome.PASS, parsed=[])


def _no_call(task: Task, answer: Answer) -> Grade:
    if any(mark in answer.content for mark in _CALL_MARKS):
        return Grade(GateOutcome.MALFORMED, GateReason.CALL_IN_CONTENT, "the call is text in the content")
    if not answer.content.strip():
        return Grade(GateOutcome.MALFORMED, GateReason.EMPTY, "no call, and no content")
    was_free = task.check["choice"] == "auto"
    outcome = GateOutcome.WRONG_VALUE if was_free else GateOutcome.MALFORMED
    return Grade(outcome, GateReason.NO_TOOL_CALL, "content instead of a call")


def _call_fault(task: Task, calls: Sequence[ToolCall]) -> Grade | None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.check["tools"]}
    for call in calls:
        if call.name not in schemas:
            return _malformed(GateReason.UNKNOWN_TOOL, f"no tool {call.name[:80]!r} was offered")
        try:
            arguments = parse_strict(call.arguments)
        except NotStrict as fault:
            return _malformed(GateReason.ARGUMENTS_NOT_JSON, f"{fault.reason}: {fault.detail}")
        broken = _schema_fault(arguments, schemas[call.name])
        if broken:
            return _malformed(GateReason.ARGUMENTS_SCHEMA, broken[1])
    ids = [call.id for call in calls]
    if None in ids or len(set(ids)) != len(ids):
        return _malformed(GateReason.CALL_ID, "a call has no id, or two have one")
    return None


def _malformed(reason: GateReason, detail: str) -> Grade:
    return Grade(GateOutcome.MALFORMED, reason, detail[:_MAX_DETAIL])


def _same_calls(calls: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> bool:
    """The same calls in any order: parallel calls have none."""
    left = list(calls)
    for wanted in expected:
        for call in left:
            if same_value(dict(call), dict(wanted)):
                left.remove(call)
                break
        else:
            return False
    return not left
