"""Properties of reading what a server publishes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from assay.metrics import prometheus

PIECES = [
    "a",
    "a_total",
    "# TYPE ",
    "# HELP ",
    "counter",
    "{",
    "}",
    "=",
    ",",
    '"',
    "\\",
    " ",
    "\t",
    "\n",
    "#",
    "1",
    "-1e999",
]
PIECES += ['a="1"', ' ="2"', "NaN", "1" * 400, "__name__", "é", "\x00"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever a server sends is finite numbers by name, or a ValueError."""
    try:
        samples = prometheus.parse(text)
    except ValueError:
        return
    assert all(math.isfinite(value) for value in samples.values())
