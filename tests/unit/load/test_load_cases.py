"""Cases from public bug reports, each against a scripted server and its log of what it sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from assay.load import Prompt
from assay.metrics.latency import derive
from engines.scripted_server import (
    DONE,
    END,
    STREAM_HEAD,
    Close,
    Request,
    Reset,
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


def play(*events: bytes | Wait) -> Callable[[Request], list[Step]]:
    return lambda _request: answer(events)


def assert_stamped(t_ns: int, request: Request, mark: bytes, before: bytes) -> None:
    """``t_ns`` is the arrival of the piece with ``mark``: not before it was sent (one clock for both), and not
    that of the piece with ``before``, which was sent long before. A busy host can only make it later."""
    assert t_ns >= request.times_of(mark)[0] > request.times_of(before)[0]


def test_first_token_is_not_the_role(load: Any) -> None:
    """C1: a role-only delta comes first; the first token is the first content, and one event counts."""
    script = play(
        Wait(10),
        delta("", role="assistant"),
        Wait(190),
        delta("a"),
        delta(finish="stop"),
        usage_event(3, 1),
        DONE,
    )
    with ScriptedServer(script) as server:
        outcome = load(server.url)
        (row,) = outcome.rows
        derived = derive(outcome.table)
        assert_stamped(row["t_first_token_ns"], server.requests[0], b'"a"', before=b"assistant")
        assert derived.ttft_ms[0] >= 190
        assert row["t_first_event_ns"] < row["t_first_token_ns"]
        assert derived.n_chunks.tolist() == [1]
        assert row["status"] == "ok"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_output_but_no_answer(load: Any, key: str) -> None:
    """C2: reasoning starts the first-token clock, content the first-answer clock, and both are counted."""
    script = play(
        Wait(100),
        delta(**{key: "hm"}),
        Wait(300),
        delta("yes"),
        delta(finish="stop"),
        usage_event(3, 9, reasoning=5),
        DONE,
    )
    with ScriptedServer(script) as server:
        outcome = load(server.url)
        (row,) = outcome.rows
        derived = derive(outcome.table)
        assert_stamped(row["t_first_token_ns"], server.requests[0], b'"hm"', before=b"HTTP/1.1")
        assert_stamped(row["t_first_answer_ns"], server.requests[0], b'"yes"', before=b'"hm"')
        assert row["t_first_token_ns"] < server.requests[0].times_of(b'"yes"')[0]
        assert derived.ttfa_ms[0] >= 400
        assert (row["n_output"], row["n_reasoning"], row["reasoning_seen"]) == (9, 5, True)


def test_tool_calls_are_output(load: Any) -> None:
    """C3: an answer of tool-call deltas alone succeeds, and its first token is the first of them."""
    call = [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]
    more = [{"index": 0, "function": {"arguments": "{}"}}]
    script = play(
        delta(role="assistant"),
        Wait(60),
        delta(tool_calls=call),
        delta(tool_calls=more),
        delta(finish="tool_calls"),
        usage_event(3, 6),
        DONE,
    )
    with ScriptedServer(script) as server:
        outcome = load(server.url)
        (row,) = outcome.rows
        assert (row["status"], row["finish_reason"], row["n_output"]) == ("ok", "tool_calls", 6)
        assert_stamped(row["t_first_token_ns"], server.requests[0], b'"f"', before=b"assistant")
        assert derive(outcome.table).ttft_ms[0] >= 60


@pytest.mark.parametrize("continuous", [True, False])
def test_a_chunk_is_not_a_token(load: Any, continuous: bool) -> None:
    """C4: four events of four tokens 40 ms apart are gaps of 40 ms and 10 ms a token, or 8, flagged."""
    events: list[bytes | Wait] = []
    for i in range(4):
        events += [Wait(40), delta(f"w{i} x y z", usage=counts(3, 4 * (i + 1)) if continuous else None)]
    script = play(*events, delta(finish="stop"), usage_event(3, 16), DONE)
    with ScriptedServer(script) as server:
        outcome = load(server.url)
        (row,) = outcome.rows
        derived = derive(outcome.table)
        sent = [server.requests[0].times_of(b"w%d x" % i)[0] for i in range(4)]
        assert row["n_output"] == 16
        assert float(derived.tokens_per_chunk[0]) == 4.0
        assert len(derived.icl_ms) == 3
        arrived = [row["t_send_ns"] + offset for offset in row["chunk_offsets_ns"]]
        assert all(got >= at for got, at in zip(arrived, sent, strict=True))
        assert float(derived.icl_ms.sum()) == pytest.approx((arrived[3] - arrived[0]) / 1e6)
        tokens = 12 if continuous else 15
        assert float(derived.tpot_ms[0]) == pytest.approx(float(derived.icl_ms.sum()) / tokens)
        assert bool(derived.first_chunk_assumed[0]) is not continuous
        assert row["n_first_chunk"] == (4 if continuous else None)


USAGE_PLACES = {
    "in the last event with a choice": [delta("b", finish="length", usage=counts(5, 16)), DONE],
    "alone after it": [delta("b", finish="length"), usage_event(5, 16), DONE],
    "in an event with empty text": [delta("b"), delta("", finish="length", usage=counts(5, 16)), DONE],
}


@pytest.mark.parametrize("place", USAGE_PLACES)
def test_usage_is_found_wherever_it_stands(load: Any, place: str) -> None:
    """C5: the number of output tokens is that of usage in each of the places servers put it."""
    with ScriptedServer(play(delta("a"), *USAGE_PLACES[place])) as server:
        (row,) = load(server.url).rows
        assert (row["n_output"], row["n_output_source"], row["n_prompt"]) == (16, "usage", 5)


def test_without_usage_the_text_is_counted(load: Any) -> None:
    """C6: no usage: the server's tokenizer counts the text, and what was requested is never taken for it."""
    text = [delta(f" w{i}") for i in range(37)]
    with ScriptedServer(
        play(*text, delta(finish="stop"), DONE), tokenize=lambda text: len(text.split())
    ) as server:
        outcome = load(server.url, max_tokens=128, requests=2)
        for row in outcome.rows:
            assert (row["n_output"], row["n_output_source"], row["n_requested"]) == (37, "tokenizer", 128)
        assert outcome.summary["output"]["output_tokens"] == 74


def test_without_usage_and_tokenizer_the_count_is_unknown(load: Any) -> None:
    """C6: neither usage nor a tokenizer: the count is null, and so is the rate, with the reason."""
    with ScriptedServer(play(delta("a"), delta("b"), delta(finish="stop"), DONE)) as server:
        outcome = load(server.url, max_tokens=128)
        (row,) = outcome.rows
        assert (row["status"], row["n_output"], row["n_output_source"]) == ("ok", None, None)
        assert outcome.summary["throughput"]["output_tok_s"] is None
        assert "unknown" in outcome.summary["throughput"]["reason"]
        assert outcome.client["tokenizer"]["why_not_counted"]


def test_usage_and_tokenizer_may_disagree(load: Any, tmp_path: Any) -> None:
    """C7: usage says 16 and the tokenizer 7: usage counts, and the other number is stored beside it."""
    vocabulary = {"[UNK]": 0} | {f"w{i}": i + 1 for i in range(7)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer))
    script = play(*(delta(f" w{i}") for i in range(7)), delta(finish="stop"), usage_event(3, 16), DONE)
    with ScriptedServer(script) as server:
        (row,) = load(server.url, tokenizer=str(path)).rows
        assert (row["n_output"], row["n_output_source"], row["n_output_tokenizer"]) == (16, "usage", 7)


def test_sse_in_all_its_forms(load: Any) -> None:
    """C8: comments, event and id lines, no space after the colon and CRLF are parsed, and not as tokens."""
    first = b": ping\r\n\r\n"
    second = b"event: message\r\nid: 1\r\ndata:" + delta("a")[6:-2] + b"\r\n\r\n"
    script = play(
        first, Wait(80), second, b"retry: 10\n" + delta("b"), delta(finish="stop"), usage_event(3, 2), DONE
    )
    with ScriptedServer(script) as server:
        outcome = load(server.url)
        (row,) = outcome.rows
        assert (row["status"], row["n_output"], len(row["chunk_offsets_ns"])) == ("ok", 2, 2)
        assert_stamped(row["t_first_token_ns"], server.requests[0], b'"a"', before=b"ping")
        assert derive(outcome.table).ttft_ms[0] >= 80


@pytest.mark.parametrize(
    "error",
    [
        event({"error": {"message": "EngineCore died", "code": 500}}),
        event({"object": "error", "message": "EngineCore died", "code": 500}),
        b'event: error\ndata: {"message": "EngineCore died"}\n\n',
        b'error: {"code": 500, "message": "EngineCore died"}\n\n',
    ],
)
def test_an_error_inside_a_200_stream_is_a_failure(load: Any, error: bytes) -> None:
    """C9: tokens, an error event and [DONE]: failed, its tokens in no throughput, its body kept."""
    with ScriptedServer(play(delta("a"), delta("b"), delta("c"), error, DONE)) as server:
        outcome = load(server.url)
        (row,) = outcome.rows
        assert (row["status"], row["error_class"], row["http_status"]) == ("failed", "in_stream", 200)
        assert "EngineCore died" in row["error_text"]
        assert '"content":"c"' in row["body"]
        assert "EngineCore died" in row["body"]
        assert outcome.summary["throughput"]["output_tokens"] == 0
        assert outcome.client["state"] != "completed"


def test_a_server_killed_half_way(load: Any) -> None:
    """C10: 25 of 50 are served, then the server is killed: 25 ok, 25 failed, adj_p99 infinite, p50 finite."""
    server: ScriptedServer

    def script(request: Request) -> list[Step]:
        if request.index >= 25:
            threading.Thread(target=server.kill).start()
            return [Wait(60_000)]
        return words(3)

    with ScriptedServer(script) as server:
        outcome = load(server.url, requests=50, concurrency=1)
    counted = outcome.summary["requests"]
    assert (counted["issued"], counted["ok"], counted["failed"], counted["incomplete"]) == (50, 25, 25, 0)
    assert counted["error_classes"] == {"connect": 25}
    ttft = outcome.summary["latency"]["ttft_ms"]
    assert ttft["p50"] < 60_000
    assert ttft["adj_p50"] == "inf"
    assert ttft["adj_p99"] == "inf"
    assert (ttft["n"], ttft["n_failed"]) == (25, 25)


def test_nothing_is_retried(load: Any) -> None:
    """C11: every tenth request gets 503: each is seen once by the server and is a failure in the records."""

    def script(request: Request) -> list[Step]:
        return [plain(503, b'{"error": "busy"}')] if request.index % 10 == 9 else words(2)

    with ScriptedServer(script) as server:
        outcome = load(server.url, requests=40, concurrency=2)
        assert len(server.requests) == 40
    assert outcome.summary["requests"]["error_classes"] == {"http_status": 4}
    assert {row["body"] for row in outcome.rows if row["status"] == "failed"} == {'{"error": "busy"}'}


def test_the_opening_wave_is_not_measured(load: Any) -> None:
    """C12: slow first requests at full concurrency are outside the measured phase, and no drain precedes it."""
    n = 4
    opening = [Prompt(f"o{i}", prompt=f"open {i}") for i in range(8)]
    measured = [Prompt(f"m{i}", prompt=f"measure {i}") for i in range(8)]

    def script(request: Request) -> list[Step]:
        slow = request.index < n
        return words(2, first_ms=400 + 100 * request.index if slow else 30)

    with ScriptedServer(script) as server:
        outcome = load(server.url, measured, opening, requests=24, concurrency=n, opening_per_stream=1)
        ends = [request.sent[-1][0] for request in server.requests[:n]]
        first_measured = min(
            request.t_received_ns
            for request in server.requests
            if request.body["prompt"].startswith("measure")
        )
        open_then = [
            request
            for request in server.requests
            if request.t_received_ns <= first_measured and request.sent[-1][0] > first_measured
        ]
    assert {row["prompt_id"][0] for row in outcome.rows} == {"m"}
    assert len(outcome.rows) == 24
    assert first_measured >= max(ends)
    assert open_then  # no drain gap: others are still in flight
    assert outcome.client["opening"]["issued"] >= n


def test_window_and_drain(load: Any) -> None:
    """C13: two requests outlast the drain limit: incomplete; the rate divides by window plus drain."""

    def script(request: Request) -> list[Step]:
        return (
            [STREAM_HEAD, chunk(delta("x")), Wait(60_000)] if request.index in (6, 7) else words(4, gap_ms=20)
        )

    with ScriptedServer(script) as server:
        outcome = load(server.url, duration_s=1.0, drain_limit_s=1.2, concurrency=4)
    counted, rates = outcome.summary["requests"], outcome.summary["throughput"]
    assert counted["issued"] == counted["ok"] + counted["failed"] + counted["incomplete"]
    assert (counted["incomplete"], counted["failed"]) == (2, 0)
    sends, ends = ([row[name] for row in outcome.rows] for name in ("t_send_ns", "t_end_ns"))
    assert rates["elapsed_s"] == pytest.approx((max(ends) - min(sends)) / 1e9)
    assert max(ends) >= outcome.client["phase"]["t_start_ns"] + 2.2e9
    assert rates["output_tok_s"] == pytest.approx(counted["ok"] * 4 / rates["elapsed_s"])
    assert rates["window_s"] == pytest.approx(1.0)
    start, end = (outcome.client["phase"][name] for name in ("t_start_ns", "t_issue_end_ns"))
    inside = sum(
        start <= row["t_send_ns"] + offset < end
        for row in outcome.rows
        if row["status"] == "ok"
        for offset in row["chunk_offsets_ns"]
    )
    assert rates["window_tok_s"] == pytest.approx(inside)
    assert all(row["t_send_ns"] < end for row in outcome.rows)


def test_budget_spent_on_thinking(load: Any) -> None:
    """C19: a model that only reasons until its budget ends gave no answer: ok, counted apart, no ttfa."""
    script = play(
        *(delta(reasoning_content=f" t{i}") for i in range(5)),
        delta(finish="length"),
        usage_event(3, 5),
        DONE,
    )
    with ScriptedServer(script) as server:
        outcome = load(server.url)
        (row,) = outcome.rows
    assert (row["status"], row["finish_reason"], row["t_first_answer_ns"]) == ("ok", "length", None)
    assert outcome.summary["requests"]["n_no_answer"] == 1
    assert outcome.summary["latency"]["ttfa_ms"]["n_unknown"] == 1


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([STREAM_HEAD, chunk(delta("a")), END], "truncated"),
        ([STREAM_HEAD, chunk(delta("a")), Reset()], "truncated"),
        ([STREAM_HEAD, chunk(delta("a")), Close()], "truncated"),
        ([STREAM_HEAD, chunk(delta("a"))[:-4], Close()], "truncated"),
        ([Reset()], "connect"),
        ([Close()], "connect"),
        (answer([delta(role="assistant"), delta(finish="stop"), usage_event(3, 0), DONE]), "no_output"),
        (answer([b"data: {not json}\n\n", DONE]), "protocol"),
        ([b"SSH-2.0-x\r\n", Close()], "protocol"),
        ([STREAM_HEAD, b"zz\r\nhello"], "protocol"),
        ([plain(200, b'{"choices": [{"message": {"content": "a"}}]}')], "protocol"),
        ([plain(200, b'{"error": {"message": "no"}}')], "in_stream"),
        ([plain(200, DONE, extra=b"content-encoding: gzip\r\n")], "protocol"),
        ([plain(307, b"", extra=b"location: http://127.0.0.1:1/\r\n")], "http_status"),
        (answer([delta("a"), delta(finish="abort"), DONE]), "in_stream"),
        ([STREAM_HEAD, chunk(delta("a")), Wait(60_000)], "timeout"),
    ],
)
def test_failures_by_class(load: Any, script: list[Step], expected: str) -> None:
    """Each way a response can be bad is a failure of its class, and the load ends."""
    with ScriptedServer(lambda _request: script) as server:
        outcome = load(server.url, timeout_s=1.0 if expected == "timeout" else 20.0, requests=2)
        assert len(server.requests) == 2
    assert [(row["status"], row["error_class"]) for row in outcome.rows] == [("failed", expected)] * 2
    assert all(row["t_end_ns"] for row in outcome.rows)


def test_what_is_not_chunked_is_read_too(load: Any) -> None:
    """A body with a length, and one that ends with the connection, are streams like a chunked one."""
    body = b"".join([delta("a"), delta("b"), delta(finish="stop"), usage_event(3, 2), DONE])
    until_close = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    scripts: list[list[Step]] = [
        [plain(200, body, "text/event-stream")],
        [until_close, body[:50], body[50:], Close()],
    ]
    with ScriptedServer(lambda request: scripts[request.index % 2]) as server:
        outcome = load(server.url, requests=4)
        assert server.n_connections == 2  # kept after the first answer, replaced after the second
    assert [(row["status"], row["n_output"]) for row in outcome.rows] == [("ok", 2)] * 4


def test_split_at_every_byte(load: Any) -> None:
    """An answer written byte by byte, interim response first, gives the same record."""
    data = b"".join(step for step in words(3) if isinstance(step, bytes))
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    with ScriptedServer(lambda _request: [data[i : i + 1] for i in range(len(data))]) as server:
        (row,) = load(server.url).rows
    assert (row["status"], row["n_output"], len(row["chunk_offsets_ns"])) == ("ok", 3, 3)
    with ScriptedServer(lambda _request: [interim, data]) as server:
        (row,) = load(server.url).rows
    assert (row["status"], row["http_status"], len(row["chunk_offsets_ns"])) == ("ok", 200, 3)
