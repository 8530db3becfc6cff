"""What one answer says is read to its end, and no part of it is taken for the whole."""

from __future__ import annotations

import time
from typing import Any

import pytest

from assay.load import Prompt
from assay.load.body import HEAD_BYTES, TAIL_BYTES, KeptBody, parts
from assay.load.clock import StampClock
from assay.load.sse import EVENT_LIMIT_BYTES, SseParser
from assay.records.redact import REDACTED, redact_cut, secret_words
from engines.scripted_server import (
    DONE,
    STREAM_HEAD,
    Close,
    ScriptedServer,
    Step,
    Wait,
    answer,
    chunk,
    counts,
    delta,
    event,
    plain,
    usage_event,
    words,
)

KEY = "sk-very-secret-0123/4567"


def one_row(load: Any, script: list[Step], **options: Any) -> dict[str, Any]:
    with ScriptedServer(lambda _r: script) as server:
        (row,) = load(server.url, **options).rows
    assert isinstance(row, dict)
    return row


def choice(index: int, text: str | None, finish: str | None = None) -> bytes:
    fields = {} if text is None else {"content": text}
    return event({"choices": [{"index": index, "delta": fields, "finish_reason": finish}]})


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([delta("a"), delta("b", finish="stop"), usage_event(3, 5).rstrip(b"\n")], (2, 5)),
        ([delta("a", usage=counts(3, 1)), delta("b", finish="stop", usage=counts(3, 6)).rstrip()], (2, 6)),
    ],
)
def test_usage_without_its_blank_line_counts(
    load: Any, events: list[bytes], expected: tuple[int, int]
) -> None:
    """The last event may lack its blank line when the body ends: its usage and its output are the row's."""
    row = one_row(load, answer(events))
    assert (len(row["chunk_offsets_ns"]), row["n_output"]) == expected
    assert row["status"] == "ok"


def test_the_rest_of_a_body_came_when_it_came(load: Any) -> None:
    """An event that lacks its blank line has the time of its bytes, not of the close 400 ms later."""
    script = answer([delta("a"), delta("b", finish="stop").rstrip(b"\n"), Wait(400)])
    row = one_row(load, script)
    assert len(row["chunk_offsets_ns"]) == 2
    assert row["t_end_ns"] - row["t_last_token_ns"] > 200e6


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([1, None, None, None], None),
        ([1, 2, None, None], None),
        ([4, 4, 4, 4], 4),
        ([None, None, None, 9], 9),
    ],
)
def test_usage_that_output_followed_is_not_the_count(
    load: Any, told: list[int | None], expected: int | None
) -> None:
    """A usage object counts what came up to it: with output after the last one, the count is unknown."""
    events = [delta(f" w{i}", usage=None if n is None else counts(3, n)) for i, n in enumerate(told)]
    row = one_row(load, answer([*events, delta(finish="stop"), DONE]))
    assert (row["status"], row["n_output"]) == ("ok", expected)


def test_a_first_usage_of_the_whole_is_no_first_chunk(load: Any) -> None:
    """A server that says the final count in every event told nothing about its first one."""
    events = [delta(f" w{i}", usage=counts(3, 4)) for i in range(4)]
    row = one_row(load, answer([*events, delta(finish="stop"), DONE]))
    assert (row["n_output"], row["n_first_chunk"]) == (4, None)


@pytest.mark.parametrize(
    "bad",
    [
        b"event: error\ndata:\n\n",
        b"event: error\n\n",
        b'{"error": {"message": "upstream timed out"}}\n\n',
        event({"choices": [], "code": 500, "message": "internal"}),
        event({"choices": [], "detail": "internal"}),
        event({"status": 500, "message": "internal"}),
        event({"success": False}),
        delta(finish="insufficient_system_resource"),
    ],
)
def test_errors_that_hardly_look_like_events_are_failures(load: Any, bad: bytes) -> None:
    """An error without data, as a bare line, or beside empty choices fails the request like any other."""
    row = one_row(load, answer([delta("a"), bad, usage_event(3, 1), DONE]))
    assert (row["status"], row["error_class"]) == ("failed", "in_stream")


@pytest.mark.parametrize("nothing", [0, {}, [], "", False, None])
def test_an_error_that_is_nothing_is_none(load: Any, nothing: object) -> None:
    """Servers send an empty ``error`` with each chunk; a code of 0 with its message says that all is well."""
    fine = {"choices": [{"index": 0, "delta": {"content": "a"}}], "error": nothing}
    kind = event({"code": 0, "message": "success"})
    row = one_row(load, answer([event(fine), kind, delta(finish="stop"), usage_event(3, 1), DONE]))
    assert row["status"] == "ok"


@pytest.mark.parametrize(
    "events",
    [
        [choice(0, "a"), choice(1, "b"), choice(0, None, "stop"), choice(1, "c")],
        [choice(0, "a", "stop"), choice(0, "b")],
    ],
)
def test_output_after_the_finish_and_then_nothing_is_truncated(load: Any, events: list[bytes]) -> None:
    """A finish of one answer is no end of another, nor of what still comes: cut there, the row is no ok."""
    script: list[Step] = [STREAM_HEAD, *map(chunk, events), Close()]
    row = one_row(load, script)
    assert (row["status"], row["error_class"]) == ("failed", "truncated")


def test_several_answers_are_as_long_as_all_of_them(load: Any) -> None:
    """With n answers a prompt, n times the tokens were asked for, and usage counts them together."""
    events = [choice(i % 2, f" w{i}") for i in range(20)]
    ends = [choice(0, None, "length"), choice(1, None, "length"), usage_event(3, 20), DONE]
    prompt = Prompt("p", messages=[{"role": "user", "content": "x"}], extra_body={"n": 2})
    with ScriptedServer(lambda _r: answer([*events, *ends])) as server:
        outcome = load(server.url, prompts=[prompt], max_tokens=10)
    assert outcome.rows[0]["n_requested"] == 20
    assert outcome.client["state"] == "completed", outcome.client["reasons"]


def test_a_large_event_is_counted_once() -> None:
    """An event of just under the limit is read whole, in pieces or at once; one byte over is refused."""
    line = b"data: " + b"x" * (EVENT_LIMIT_BYTES - 6)
    parser = SseParser()
    found = [one for i in range(0, len(line), 1 << 20) for one in parser.feed(line[i : i + (1 << 20)])]
    found += parser.feed(b"\n\n")
    assert [len(one.data) for one in found] == [EVENT_LIMIT_BYTES - 6]


def test_a_response_that_pings_on_after_done_is_ended(load: Any) -> None:
    """Comments after [DONE] keep no request open: after a second it is ended, as ok."""
    pings: list[bytes | Wait] = [one for _ in range(60) for one in (Wait(100), b": ping\n\n")]
    row = one_row(load, answer([delta("a", finish="stop"), usage_event(3, 1), DONE, *pings]), timeout_s=30.0)
    assert row["status"] == "ok"
    assert row["t_end_ns"] - row["t_send_ns"] < 1e9


def test_an_interim_response_says_nothing_of_the_answer(load: Any) -> None:
    """A 103 with headers of its own comes before the answer and changes nothing in it."""
    early = b"HTTP/1.1 103 Early Hints\r\ncontent-encoding: gzip\r\n\r\n"
    row = one_row(load, [early, *words(3)])
    assert (row["status"], row["n_output"]) == ("ok", 3)


def test_a_stamp_from_before_the_send_is_told_from_a_set_clock() -> None:
    """With the clocks as they were, an early stamp is of bytes that answer nothing; after a step it is not."""
    clock = StampClock()
    t_send_ns = time.monotonic_ns()
    assert not clock.is_wrong(t_send_ns - 1_000_000, t_send_ns)
    assert clock.n_steps == 0
    clock.offset_ns += 5_000_000_000  # as if the wall clock had been set back since it was read
    assert clock.is_wrong(t_send_ns + 1_000_000 - 5_000_000_000, t_send_ns)
    assert clock.n_steps == 1


def test_of_an_error_page_head_and_tail_are_kept(load: Any) -> None:
    """The reason at the end of a long error page is in the record, with a word on what was left out."""
    row = one_row(load, [plain(500, b"HEAD " + b"x" * 50_000 + b" THE REASON")])
    assert row["body"].startswith("HEAD ")
    assert row["body"].endswith(" THE REASON")
    assert len(row["body"]) < HEAD_BYTES + TAIL_BYTES + 100
    assert "bytes left out" in row["body"]


@pytest.mark.parametrize("at", [HEAD_BYTES - 10, HEAD_BYTES - len(KEY) + 2])
@pytest.mark.parametrize("status", [200, 500])
def test_a_key_across_a_cut_is_in_no_record(
    load: Any, monkeypatch: pytest.MonkeyPatch, at: int, status: int
) -> None:
    """A key that an answer repeats is not in its record, not in part where the body was cut either."""
    monkeypatch.setenv("LOAD_TEST_KEY", KEY)
    page = b"x" * at + KEY.encode() + b"y" * 40_000 + KEY.encode()
    page += b"z" * (TAIL_BYTES - 7)
    row = one_row(load, [plain(status, page)], api_key_env="LOAD_TEST_KEY")
    for text in (row["body"], row["error_text"]):
        assert KEY[:6] not in text
        assert KEY[-6:] not in text


def test_parts_of_a_secret_at_a_cut_are_found() -> None:
    """Whatever a cut leaves of a secret, from six characters on, goes; what is no part of it stays."""
    secrets = secret_words([f"Bearer {KEY}"])
    for n in range(6, len(KEY)):
        assert redact_cut(f"it was {KEY[:n]}", secrets) == f"it was {REDACTED}"
        assert redact_cut(f"{KEY[-n:]} it was", secrets) == f"{REDACTED} it was"
    assert redact_cut("sk-v is short, and 4567", secrets) == "sk-v is short, and 4567"
    assert redact_cut(KEY.replace("/", "\\/"), secrets) == REDACTED


def test_a_kept_body_falls_into_its_parts() -> None:
    """Head, the line on what was left out, and tail can be told apart again."""
    kept = KeptBody()
    kept.keep([b"a" * 20_000, b"b" * 20_000])
    head, line, tail = parts(kept.text())
    assert (head, tail) == ("a" * HEAD_BYTES, "b" * TAIL_BYTES)
    assert f"{40_000 - HEAD_BYTES - TAIL_BYTES} bytes left out" in line
