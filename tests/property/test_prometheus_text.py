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
]
PIECES += ['a="1"', ' ="2"', "NaN", "-1e999", "1" * 400, "__name__", "é", "\x00"]
LABELS = st.lists(st.sampled_from(['a="1"', 'b="2"', ' ="2"', "", " ", '"x"', "a=b", 'é="\\"']), max_size=4)
NUMBERS = st.sampled_from(["1", "NaN", "-1e999", "1.7e308", "1" * 400, "1 5", "1 " + "1" * 400, ""])
LINES = st.builds(lambda labels, number: f"a{{{','.join(labels)}}} {number}\n", LABELS, NUMBERS)


@given(
    st.lists(LINES, max_size=3).map("".join)
    | st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
    | st.text(max_size=40)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever a server sends is finite numbers by name, or a ValueError."""
    try:
        samples = prometheus.parse(text)
    except ValueError:
        return
    assert all(math.isfinite(value) for value in samples.values())
