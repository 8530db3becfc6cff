"""Strict JSON: every way of not being JSON has its own word."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.gates.reasons import GateReason
from assay.gates.strict_json import MAX_DEPTH, NotStrict, parse_strict, same_value

FAULTS = [
    ('{"a":"b', True, GateReason.TRUNCATED),
    ('{"a":"b', False, GateReason.TRUNCATED),
    ('{"a": [1, 2', True, GateReason.TRUNCATED),
    ('{"a": tru', True, GateReason.TRUNCATED),
    ('```json\n{"a": 1}\n```', False, GateReason.FENCE),
    ('Sure:\n```json\n{"a": 1}\n```', False, GateReason.FENCE),
    ('Here it is: {"a": 1}', False, GateReason.PROSE_AROUND),
    ('{"a": 1} I hope this helps.', False, GateReason.PROSE_AROUND),
    ('<think>hm</think>{"a": 1}', False, GateReason.PROSE_AROUND),
    ('{"a": 1}{"a": 1}', False, GateReason.PROSE_AROUND),
    ('{"a": 1, "a": 1}', False, GateReason.DUPLICATE_KEY),
    ('{"x": [{"a": 1, "b": 2, "a": 3}]}', False, GateReason.DUPLICATE_KEY),
    ('{"a": NaN}', False, GateReason.NAN),
    ('{"a": -Infinity}', False, GateReason.NAN),
    ('{"a": 1e999}', False, GateReason.NAN),
    ('{"a": ' + "9" * 5000 + "}", False, GateReason.NAN),
    ("", False, GateReason.EMPTY),
    (" \n", False, GateReason.EMPTY),
    ("I cannot do that.", False, GateReason.NOT_JSON),
    ("{'a': 1}", False, GateReason.NOT_JSON),
    ('{"a": 1,}', False, GateReason.NOT_JSON),
    ('{"a": "line\nbreak"}', False, GateReason.NOT_JSON),
    ('\ufeff{"a": 1}', False, GateReason.PROSE_AROUND),
    ("[" * 100_000, False, GateReason.TOO_DEEP),
    ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), False, GateReason.TOO_DEEP),
]


@pytest.mark.parametrize(("text", "cut", "reason"), FAULTS)
def test_each_fault_has_its_reason(text: str, cut: bool, reason: GateReason) -> None:
    """Text that is not one JSON value as it stands is refused with the word for how."""
    with pytest.raises(NotStrict) as caught:
        parse_strict(text, cut=cut)
    assert caught.value.reason is reason


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


@given(value=JSON_VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_every_json_value_is_read_as_itself(value: Any, ascii_only: bool, indent: int | None) -> None:
    """Any value, escaped or not, indented or not, is parsed to the same value."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert same_value(parse_strict(text), value)
    assert same_value(parse_strict(f"\n {text} \n"), value)


@given(value=st.dictionaries(st.text(max_size=5), JSON_VALUES, min_size=1, max_size=3), data=st.data())
def test_no_cut_of_an_object_is_accepted(value: Any, data: st.DataObject) -> None:
    """An object that the output limit cut anywhere is refused, and called truncated."""
    text = json.dumps(value)
    end = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(NotStrict) as caught:
        parse_strict(text[:end], cut=True)
    assert caught.value.reason is GateReason.TRUNCATED


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, True, False),
        (0, False, False),
        (3, 3.0, True),
        ("3", 3, False),
        (None, False, False),
        ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([], {}, False),
    ],
)
def test_values_are_compared_as_json(one: Any, other: Any, equal: bool) -> None:
    """true is not 1, text is not a number, arrays have an order and objects have none."""
    assert same_value(one, other) is equal
    assert same_value([one], [other]) is equal
