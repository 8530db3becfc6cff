"""Answers: the stream assembled, the whole read, and every fault told apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.gates.answers import read_answer
from assay.gates.client import EventSplitter
from assay.gates.reasons import GateReason


def streamed(*values: Any) -> dict[str, Any]:
    events = [
        {"t_ms": 1.0, "data": value if isinstance(value, str) else json.dumps(value)} for value in values
    ]
    return {"status": 200, "fault": None, "events": events}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


EVENTS = ['{"a": "é"}', "[DONE]", "two\nlines", "", "x" * 300]


@given(
    chosen=st.lists(st.sampled_from(EVENTS), max_size=6),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    space=st.sampled_from(["", " "]),
    data=st.data(),
)
def test_events_survive_any_cut(chosen: list[str], newline: str, space: str, data: st.DataObject) -> None:
    """However the bytes arrive, the same events come out; comments and other fields are skipped."""
    text = f": ping{newline}{newline}event: x{newline}id: 1{newline}{newline}"
    for event in chosen:
        text += "".join(f"data:{space}{line}{newline}" for line in event.split("\n")) + newline
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    splitter = EventSplitter()
    got: list[str] = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        got += splitter.feed(raw[start:end])
    got += splitter.feed(b"\n") if newline == "\r" else []
    assert got == chosen


def test_a_stream_is_assembled() -> None:
    """Text, reasoning and interleaved parallel calls are put together by index; usage may come last."""
    call = {"index": 0, "id": "a", "function": {"name": "one", "arguments": ""}}
    other = {"index": 1, "id": "b", "function": {"name": "two", "arguments": "{"}}
    answer = read_answer(
        streamed(
            delta(role="assistant", content=None),
            delta(reasoning_content="hm"),
            delta(content="He"),
            delta(content="llo"),
            delta(tool_calls=[call]),
            delta(tool_calls=[other]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"x"'}}]),
            delta(tool_calls=[{"index": 1, "function": {"arguments": "}"}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
            delta("tool_calls"),
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 8}},
            "[DONE]",
        )
    )
    assert answer.fault is None
    assert (answer.content, answer.reasoning, answer.finish_reason) == ("Hello", "hm", "tool_calls")
    assert [(c.id, c.name, c.arguments) for c in answer.calls] == [
        ("a", "one", '{"x": 1}'),
        ("b", "two", "{}"),
    ]
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 8)


FAULTS = [
    ({"status": 500, "fault": None, "body": "x"}, GateReason.HTTP_STATUS),
    ({"status": 200, "fault": None, "body": "<html>"}, GateReason.PROTOCOL),
    ({"status": 200, "fault": None, "body": "[]"}, GateReason.PROTOCOL),
    ({"status": 200, "fault": None, "body": '{"choices": [{"message": null}]}'}, GateReason.PROTOCOL),
    ({"status": 200, "fault": None, "body": "[" * 100_000}, GateReason.PROTOCOL),
    ({"status": 200, "fault": None, "body": '{"error": "no memory"}'}, GateReason.IN_STREAM),
    ({"status": None, "fault": {"reason": "connect", "detail": "refused"}, "body": None}, GateReason.CONNECT),
    (streamed(delta(content="a"), {"error": {"message": "lost"}}, "[DONE]"), GateReason.IN_STREAM),
    (streamed(delta(content="a")), GateReason.TRUNCATED_STREAM),
    (streamed(), GateReason.TRUNCATED_STREAM),
    (streamed("not json"), GateReason.PROTOCOL),
    (
        {
            **streamed({"error": {"message": "lost"}}),
            "fault": {"reason": "truncated_stream", "detail": "broke"},
        },
        GateReason.IN_STREAM,
    ),
]


@pytest.mark.parametrize(("response", "fault"), FAULTS)
def test_faults_are_told_apart(response: dict[str, Any], fault: GateReason) -> None:
    """A broken answer is never an answer, and the fault says at which layer it broke."""
    assert read_answer(response).fault is fault


@given(st.text(max_size=200))
def test_no_body_makes_the_reader_raise(body: str) -> None:
    """Whatever stands in a body or an event, reading it gives an answer or a fault."""
    read_answer({"status": 200, "fault": None, "body": body})
    read_answer(streamed(body))


ODD = [
    {"choices": [{"message": {"content": 5, "tool_calls": [7]}, "finish_reason": 3}], "usage": []},
    {"choices": "no"},
    {
        "choices": [
            {"message": {"content": None, "tool_calls": [{"function": {"name": 1, "arguments": {"a": 1}}}]}}
        ]
    },
]


@pytest.mark.parametrize("value", ODD)
def test_odd_shapes_do_not_raise(value: dict[str, Any]) -> None:
    """Fields of the wrong type are read as absent or as a fault, not as a crash; arguments must be text."""
    answer = read_answer({"status": 200, "fault": None, "body": json.dumps(value)})
    assert answer.fault is GateReason.PROTOCOL or all(
        call.arguments == "" or call.arguments.startswith("(not text)") for call in answer.calls
    )
