"""What servers print and publish about themselves, as values: log lines, reprs, Prometheus info series."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from assay.metrics import prometheus

MAX_LOG_BYTES = 16_000_000
"""What is read of a log: the start, where servers say what they run."""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def log_lines(log: Path) -> list[str]:
    """The lines of the start of a log, without colours; empty when there is none."""
    try:
        with log.open("rb") as stream:
            text = stream.read(MAX_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return []
    return [ANSI.sub("", line) for line in text.splitlines()]


def first_match(lines: list[str], pattern: re.Pattern[str]) -> re.Match[str] | None:
    """The first line that has the pattern."""
    return next((found for line in lines if (found := pattern.search(line))), None)


def number(text: str) -> int:
    """`1,598,848` as an integer."""
    return int(text.replace(",", ""))


def scalar(text: str) -> Any:
    """`True`, `None`, `16`, `0.9` as values; anything else as the text it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def from_repr(text: str) -> Any:
    """A Python repr as plain values: objects become dicts of their keywords. ValueError when it cannot be read.

    Nothing is evaluated: only the shape of the text counts.
    """
    # Enum members, dtypes and functions print as <...> or module.name: they become text.
    plain = re.sub(r"<([A-Za-z_.]+)[^<>]*>", lambda found: repr(found.group(1)), text)
    try:
        return _plain(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"unreadable: {error}") from error


def _plain(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [_plain(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(_plain(key)): _plain(item)
            for key, item in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    if isinstance(node, ast.Call):
        return {word.arg: _plain(word.value) for word in node.keywords if word.arg is not None}
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        return -node.operand.value  # type: ignore[operator]
    return ast.unparse(node)


def info_labels(text: str, metric: str) -> list[dict[str, str]]:
    """The label sets of an info series. ValueError when the text is not in the format."""
    return [
        dict(sample.labels)
        for family in prometheus.families(text)
        for sample in family.samples
        if sample.name == metric
    ]


class Answers:
    """Values by flag name with where each was read; the first that is told stands."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def tell(self, name: str, value: Any, source: str) -> None:
        if name not in self.values:
            self.values[name], self.sources[name] = value, source

    def tell_all(self, prefix: str, value: Any, source: str) -> None:
        """A value; of an object each key under ``prefix.key``."""
        if isinstance(value, dict):
            for key, item in value.items():
                self.tell_all(f"{prefix}.{key}", item, source)
        else:
            self.tell(prefix, value, source)
