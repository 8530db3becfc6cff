"""The program in an answer: what is handed to the sandbox, or why there is nothing to hand over."""

from __future__ import annotations

import ast
import re

from assay.gates.answers import Answer
from assay.gates.grade import Grade
from assay.gates.reasons import GateReason
from assay.vocab import GateOutcome

_FENCED = re.compile(
    r"^[ \t]*```[ \t]*([A-Za-z0-9_+-]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL
)
_MAX_DETAIL = 300
_MAX_CODE_CHARS = 1 << 16


def read_code(answer: Answer, function: str) -> str | Grade:
    """The program in an answer: its one code block that defines the function, or the whole content.

    A Grade says why there is none: cut before it was complete, no code, a syntax error, no such function.
    """
    if len(answer.content) > _MAX_CODE_CHARS:
        return Grade(GateOutcome.MALFORMED, GateReason.TOO_LARGE, f"more than {_MAX_CODE_CHARS} characters")
    blocks: list[str] = [text for _, text in _FENCED.findall(answer.content)]
    candidates = blocks or [answer.content]
    syntax: SyntaxError | None = None
    for text in candidates:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            syntax = error if isinstance(error, SyntaxError) else SyntaxError(str(error))
            continue
        if any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body):
            return text
    if answer.is_cut:
        return Grade(
            GateOutcome.NO_ANSWER, GateReason.BUDGET, "the output limit came before a complete function"
        )
    if not answer.content.strip():
        return Grade(GateOutcome.MALFORMED, GateReason.EMPTY, "the content is empty")
    if syntax is not None:
        if not blocks and "def " not in answer.content:
            return Grade(
                GateOutcome.MALFORMED, GateReason.NO_CODE, "no code block, and the content is no program"
            )
        return Grade(
            GateOutcome.MALFORMED, GateReason.SYNTAX, f"line {syntax.lineno}: {syntax.msg}"[:_MAX_DETAIL]
        )
    return Grade(GateOutcome.MALFORMED, GateReason.NO_FUNCTION, f"no function {function}")
