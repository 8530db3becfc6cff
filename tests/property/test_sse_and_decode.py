"""Properties of reading a stream: how its bytes are split never changes what is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.load.decode import StreamDecoder
from assay.load.sse import EVENT_LIMIT_BYTES, EventTooLong, SseEvent, SseParser

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=12)
NAME = st.text("abcdefghij", max_size=6)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[SseEvent]]:
    """(bytes of a stream, the events in it), by the rules of the format and not by the parser."""
    out, events, last_id = b"\xef\xbb\xbf" if draw(st.booleans()) else b"", [], b""
    for _ in range(draw(st.integers(0, 6))):
        end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
        colon = draw(st.sampled_from([b":", b": "]))
        name, lines = b"", []
        if draw(st.booleans()):
            out += b": " + draw(LINE).encode() + end
        if draw(st.booleans()):
            name = draw(NAME).encode()
            out += b"event" + colon + name + end
        if draw(st.booleans()):
            last_id = draw(NAME).encode()
            out += b"id" + colon + last_id + end
        if draw(st.booleans()):
            out += b"retry: 10" + end
        for _ in range(draw(st.integers(0, 3))):
            line = draw(LINE)
            lines.append(line.encode())
            # without a space after the colon, a first space of the value would be taken for it
            out += b"data" + (b": " if line.startswith(" ") else colon) + line.encode() + end
        if end == b"\r" and out.endswith(b"\r"):
            end = b"\r"
        out += end
        if lines:
            events.append(SseEvent(b"\n".join(lines), name, last_id))
    return out, events


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@settings(deadline=None)  # a busy host is no wrong answer
@given(streams(), st.data())
def test_any_split_gives_the_same_events(stream: tuple[bytes, list[SseEvent]], data: st.DataObject) -> None:
    """However the bytes are cut, the parser gives exactly the events that were written."""
    raw, expected = stream
    parser = SseParser()
    found = [event for piece in data.draw(cut(raw)) for event in parser.feed(piece)]
    assert [*found, *parser.close()] == expected


@settings(deadline=None)  # a busy host is no wrong answer
@given(streams())
def test_byte_by_byte(stream: tuple[bytes, list[SseEvent]]) -> None:
    """One byte at a time, UTF-8 and line endings split, gives the same events."""
    raw, expected = stream
    parser = SseParser()
    found = [event for i in range(len(raw)) for event in parser.feed(raw[i : i + 1])]
    assert [*found, *parser.close()] == expected


def test_an_event_of_a_megabyte_and_one_too_long() -> None:
    """A megabyte in one event is read whole, in pieces too; an endless one is refused before it fills memory."""
    parser = SseParser()
    raw = b"data: " + b"x" * 1_000_000 + b"\n\n"
    found = [event for i in range(0, len(raw), 997) for event in parser.feed(raw[i : i + 997])]
    assert [len(event.data) for event in found] == [1_000_000]
    endless = SseParser()
    for _ in range(EVENT_LIMIT_BYTES // 65_536):
        endless.feed(b"x" * 65_536)
    with pytest.raises(EventTooLong):
        endless.feed(b"x")


TEXT = st.one_of(
    st.sampled_from(
        [" w1", " w22", "", 'a"b', "c\\d", "\n", "é", "漢字", "<think>", "\t", "\x00", " ", "</"]
    ),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
)
KEYS = ("content", "reasoning_content", "reasoning", "text")


@st.composite
def completions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The objects of one answer, mostly alike as servers send them, with odd ones between."""
    made = []
    key = draw(st.sampled_from(KEYS))
    for i, text in enumerate(draw(st.lists(TEXT, min_size=1, max_size=20))):
        kind = draw(st.integers(0, 9))
        key = draw(st.sampled_from(KEYS)) if kind == 0 else key
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        choice |= {"text": text} if key == "text" else {"delta": {key: text}}
        value: dict[str, Any] = {"id": "c", "choices": [choice], "created": 5 + (i > 7)}
        if kind == 1:
            value["usage"] = {"prompt_tokens": 3, "completion_tokens": i + 1}
        if kind == 2:
            value["note"] = 'has "content":" in it'
        if kind == 3:
            choice["delta"] = {"tool_calls": [{"function": {"arguments": text}}]}
        if kind == 4:
            value["choices"] = [*value["choices"], {"index": 1, "delta": {"content": text}}]
        made.append(value)
    return made


def outcome(decoder: StreamDecoder) -> dict[str, Any]:
    names = ("n_prompt", "n_output", "n_first_chunk", "reasoning_seen", "think_tag_seen", "terminal_seen")
    names += (
        "error_text",
        "protocol_error",
        "finish_reason",
        "n_events",
        "t_first_event_ns",
        "t_first_answer_ns",
    )
    return {name: getattr(decoder, name) for name in names} | {
        "times": decoder.output_times.tolist(),
        "texts": decoder.texts(),
    }


@settings(deadline=None)  # a busy host is no wrong answer
@given(completions(), st.booleans(), st.integers(1, 8), st.booleans())
def test_recognised_events_are_what_decoding_gives(
    values: list[dict[str, Any]], ascii_only: bool, batch: int, spaced: bool
) -> None:
    """Events recognised by their bytes give what decoding each of them gives, and what was written says."""
    separators = (", ", ": ") if spaced else (",", ":")
    chunks = [
        b"data: " + json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode() + b"\n\n"
        for value in values
    ]
    chunks.append(b"data: [DONE]\n\n")
    times = [1_000 + 10 * i for i in range(len(chunks))]
    fast, slow = StreamDecoder(), StreamDecoder()
    for i in range(0, len(chunks), batch):
        fast.feed(chunks[i : i + batch], times[i : i + batch])
    slow._learned_in_vain = 99  # this one never learns a pattern
    for piece, t_ns in zip(chunks, times, strict=True):
        for i in range(len(piece)):
            slow.feed([piece[i : i + 1]], [t_ns])
    fast.close()
    slow.close()
    assert outcome(fast) == outcome(slow)
    written = [
        t_ns
        for value, t_ns in zip(values, times, strict=False)
        if any(
            (choice.get("text") and "delta" not in choice) or any(choice.get("delta", {}).values())
            for choice in value["choices"]
        )
    ]
    assert fast.output_times.tolist() == written


def test_most_events_are_recognised_without_decoding() -> None:
    """The recognition works at all: of a thousand like events, a handful are decoded."""
    from assay.load import decode

    calls = 0
    real = decode.decode_json

    def counting(data: bytes) -> Any:
        nonlocal calls
        calls += 1
        return real(data)

    chunks = [
        b'data: {"choices":[{"index":0,"delta":{"content":" w%d"},"finish_reason":null}]}\n\n' % i
        for i in range(1_000)
    ]
    decode.decode_json = counting  # type: ignore[assignment]
    try:
        decoder = StreamDecoder()
        for i in range(0, 1_000, 50):
            decoder.feed(chunks[i : i + 50], list(range(i, i + 50)))
    finally:
        decode.decode_json = real
    assert len(decoder.output_times) == 1_000
    assert calls < 10


def test_a_body_is_bounded_and_keeps_both_ends() -> None:
    """Of a long failed body the head and the tail are kept, and how much lies between."""
    decoder = StreamDecoder()
    for i in range(3_000):
        decoder.feed([b'data: {"n": %d}\n\n' % i], [i])
    body = decoder.kept.text()
    assert len(body) < 20_000
    assert '"n": 0}' in body
    assert '"n": 2999}' in body
    assert "bytes left out" in body
