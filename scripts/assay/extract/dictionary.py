"""The data dictionary of docs/extracts.md, made from the columns themselves; a test holds the page to it."""

from __future__ import annotations

from assay.extract import attempts
from assay.extract.columns import COLUMNS, FLAG, INT, REAL, TEXTS

START, END = "<!-- dictionary: made by assay.extract.dictionary -->", "<!-- end of dictionary -->"
_KINDS = {INT: "integer", REAL: "real", FLAG: "true/false", TEXTS: "list"}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def make_dictionary() -> str:
    """The tables between the marks, marks included."""
    lines = [
        START,
        "",
        "### rows.csv, rows.parquet",
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
    ]
    for column in COLUMNS:
        kind = _KINDS.get(column.kind, "text")
        lines.append(f"| `{column.name}` | {kind} | {column.unit} | {_cell(column.meaning)} |")
    lines += ["", "### attempts.csv", "", "| column | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(meaning)} |" for name, meaning in attempts.COLUMNS.items()]
    return "\n".join([*lines, "", END])


def replace_dictionary(page: str) -> str:
    """``page`` with a fresh dictionary between its marks. Raises ValueError when it has no marks."""
    head, _, rest = page.partition(START)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError("the page has no marks for the dictionary")
    return head + make_dictionary() + tail
