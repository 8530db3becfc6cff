"""Servers that do wrong quietly: no such answer counts as good, and nothing secret is kept."""

from __future__ import annotations

from typing import Any

import pytest

from assay.load import LoadSpec, Prompt
from assay.load.spec import heads_of, target_of
from assay.records.requests import read_requests
from engines.scripted_server import (
    DONE,
    END,
    STREAM_HEAD,
    Request,
    Reset,
    ScriptedServer,
    Step,
    Wait,
    answer,
    chunk,
    delta,
    event,
    plain,
    usage_event,
    words,
)

KEY = "sk-very-secret-0123"


@pytest.mark.parametrize(
    "bad",
    [
        {"detail": "Internal Server Error"},
        {"errors": [{"message": "x"}]},
        {"code": 500, "message": "internal"},
        {"text": "NETWORK ERROR", "error_code": 50001},
        {"type": "InternalServerError", "message": "x"},
        {"choices": [{"index": 0, "delta": {}, "error": {"message": "x"}}]},
        {"choices": [{"index": 0, "delta": {"error": {"message": "x"}}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "cancelled"}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]},
    ],
)
def test_every_shape_of_error_in_a_stream_is_a_failure(load: Any, bad: dict[str, Any]) -> None:
    """An error between tokens and [DONE] fails the request, keeps the body, and its tokens are in no rate."""
    script = answer([delta("a"), delta("b"), event(bad), usage_event(3, 2), DONE])
    with ScriptedServer(lambda _r: script) as server:
        outcome = load(server.url)
    (row,) = outcome.rows
    assert (row["status"], row["error_class"]) == ("failed", "in_stream")
    assert next(iter(bad)) in row["body"]
    assert outcome.summary["throughput"]["output_tokens"] == 0


def test_a_chunk_that_says_no_error_is_no_error(load: Any) -> None:
    """Null and empty error fields, and events of kinds we do not know, fail nothing."""
    fine = {"choices": [{"index": 0, "delta": {"content": "a", "error": None}, "error": None}], "error": None}
    script = answer([event({"type": "ping"}), event(fine), delta(finish="stop"), usage_event(3, 1), DONE])
    with ScriptedServer(lambda _r: script) as server:
        assert load(server.url).rows[0]["status"] == "ok"


def test_a_late_reset_is_not_sent_again(load: Any) -> None:
    """A server that reads a request on a kept connection and resets it 300 ms later sees it once: connect."""

    def script(request: Request) -> list[Step]:
        return [Wait(300), Reset()] if request.index == 1 else words(2)

    with ScriptedServer(script) as server:
        outcome = load(server.url, requests=3)
        assert len(server.requests) == 3
    assert [row["error_class"] for row in outcome.rows] == [None, "connect", None]
    assert outcome.client["n_resent"] == 0


def test_an_echoed_key_is_in_no_file(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key and header values, echoed in an error, in a stream and in an answer, are in no record."""
    monkeypatch.setenv("LOAD_TEST_KEY", KEY)

    def script(request: Request) -> list[Step]:
        assert KEY in request.headers["authorization"]
        echo = f"{request.headers['authorization']} {request.headers['x-tenant']}"
        if request.index == 0:
            return [plain(401, f'{{"error": "{echo}"}}'.encode())]
        if request.index == 1:
            return answer([delta("a"), event({"error": {"message": echo}}), DONE])
        return answer([delta(echo), delta(finish="stop"), DONE])

    with ScriptedServer(script) as server:
        outcome = load(
            server.url, requests=3, api_key_env="LOAD_TEST_KEY", headers={"x-tenant": "tenant-4711"}
        )
    assert [row["status"] for row in outcome.rows] == ["failed", "failed", "ok"]
    assert "[redacted]" in outcome.rows[0]["body"]
    assert "[redacted]" in outcome.rows[1]["error_text"]
    texts = [str(outcome.table.to_pylist())]
    texts += [path.read_text() for path in outcome.folder.glob("*.json")]
    assert len(texts) > 1
    assert not [word for word in (KEY, "tenant-4711") if any(word in text for text in texts)]


def test_lengths_are_judged(load: Any) -> None:
    """Answers shorter than forced, or prompts of another length than planned, make a lone load invalid."""
    with ScriptedServer(lambda _r: words(3, finish="stop")) as server:
        short = load(server.url, requests=2, max_tokens=5, ignore_eos=True, judge_all=True)
        longer = load(server.url, requests=2, max_tokens=2, judge_all=True)
        planned = load(server.url, requests=2, planned_prompt_tokens=500, judge_all=True)
        good = load(server.url, requests=2, planned_prompt_tokens=7, max_tokens=4, judge_all=True)
    for outcome, name in ((short, "output_length"), (longer, "output_length"), (planned, "input_length")):
        assert outcome.client["screens"][name]["result"] == "fail"
        assert outcome.client["state"] == "invalid"
        assert "length_off" in outcome.client["reasons"]
    assert short.client["screens"]["output_length"]["measured"]["forced_short"] == 2
    assert longer.client["screens"]["output_length"]["measured"]["over_requested"] == 2
    assert {good.client["screens"][name]["result"] for name in ("output_length", "input_length")} == {"pass"}
    assert "length_off" not in good.client["reasons"]


def test_a_schedule_that_was_not_kept_is_told(load: Any) -> None:
    """An open loop whose cap holds it far behind its rate is invalid, with what was measured and the limit."""
    with ScriptedServer(lambda _r: words(1, first_ms=300)) as server:
        outcome = load(
            server.url, duration_s=0.6, drain_limit_s=0, concurrency=2, rate_per_s=50.0, judge_all=True
        )
    screen = outcome.client["screens"]["schedule_kept"]
    assert screen["result"] == "fail"
    assert screen["measured"]["never_sent"] > 5
    assert "schedule_not_kept" in outcome.client["reasons"]


@pytest.mark.parametrize(
    ("usages", "expected"),
    [([0], (3, "tokenizer")), ([3, 0], (3, "usage")), ([10**9], (3, "tokenizer")), ([2, 3], (3, "usage"))],
)
def test_usage_that_cannot_be_true(load: Any, usages: list[int], expected: tuple[int, str]) -> None:
    """Zero or absurd counts beside real output are unknown, and zeros overwrite nothing."""
    events = [delta(f" w{i}") for i in range(3)] + [delta(finish="stop")]
    script = answer([*events, *(usage_event(5, n) for n in usages), DONE])
    with ScriptedServer(lambda _r: script, tokenize=lambda text: len(text.split())) as server:
        (row,) = load(server.url).rows
    assert (row["n_output"], row["n_output_source"]) == expected


def test_what_json_readers_refuse_and_servers_write(load: Any) -> None:
    """Half surrogate pairs in two events, NaN in logprobs and empty data are read, and counted."""
    head, tail = b'{"choices": [{"index": 0, "delta": {"content": "', b'"}, "finish_reason": null}]}'
    pieces = [b"data:\n\n", b"data: " + head + rb"a\ud83d" + tail + b"\n\n"]
    pieces += [b"data: " + head + rb"\ude00" + tail + b"\n\n"]
    pieces += [b'data: {"choices": [{"delta": {"content": "b"}, "logprobs": {"x": -Infinity}}]}\n\n']
    told: list[str] = []

    def tokenize(text: str) -> int:
        told.append(text)
        return 4

    with ScriptedServer(
        lambda _r: answer([*pieces, delta(finish="stop"), DONE]), tokenize=tokenize
    ) as server:
        outcome = load(server.url)
    (row,) = outcome.rows
    assert (row["status"], row["n_output"], len(row["chunk_offsets_ns"])) == ("ok", 4, 3)
    assert told == ["a\U0001f600b"]
    assert outcome.client["n_loose_json_events"] == 3


def test_a_response_held_open_after_done_is_ok(load: Any) -> None:
    """The stream says [DONE] and the server holds the response: ok, ended at [DONE], the next one is sent."""
    script = [
        STREAM_HEAD,
        *(chunk(one) for one in (delta("a"), delta(finish="stop"), usage_event(3, 1), DONE)),
    ]
    with ScriptedServer(lambda _r: [*script, Wait(60_000), END]) as server:
        outcome = load(server.url, requests=2)
        done = [request.times_of(b"[DONE]")[0] for request in server.requests]
    assert [row["status"] for row in outcome.rows] == ["ok", "ok"]
    assert outcome.rows[0]["t_end_ns"] >= done[0]
    assert done[1] > outcome.rows[0]["t_end_ns"]


def test_comments_alone_are_a_stream_that_ended_early(load: Any) -> None:
    """A clean end after nothing but comments is truncated, not another protocol."""
    with ScriptedServer(lambda _r: answer([b": ping\n\n", b": ping\n\n"])) as server:
        assert load(server.url).rows[0]["error_class"] == "truncated"


def test_huge_response_headers_say_so(load: Any) -> None:
    """Headers of 70 KB: a protocol failure that names the limit."""
    extra = b"x-big: " + b"a" * 70_000 + b"\r\n"
    with ScriptedServer(lambda _r: [plain(200, b"", extra=extra)]) as server:
        (row,) = load(server.url).rows
    assert row["error_class"] == "protocol"
    assert "headers are longer" in row["error_text"]


def test_the_window_counts_what_the_opening_still_put_out(load: Any) -> None:
    """Tokens of opening requests inside the window are in window_tok_s, as the server's log has them."""
    opening = [Prompt("o", prompt="open")]
    measured = [Prompt("m", prompt="measure")]

    def script(request: Request) -> list[Step]:
        return words(20 if request.body["prompt"] == "open" else 4, gap_ms=30)

    with ScriptedServer(script) as server:
        outcome = load(
            server.url, measured, opening, duration_s=0.8, concurrency=3, opening_per_stream=1, ramp_s=0.4
        )
    start, end = (outcome.client["phase"][name] for name in ("t_start_ns", "t_issue_end_ns"))
    inside = 0
    for name in ("requests", "opening"):
        for row in read_requests(outcome.folder / f"{name}.parquet").to_pylist():
            times = [row["t_send_ns"] + offset for offset in row["chunk_offsets_ns"]]
            inside += sum(start <= t < end for t in times) if row["status"] == "ok" else 0
    rates = outcome.summary["throughput"]
    assert rates["window_opening_tokens"] > 0
    assert rates["window_tok_s"] * rates["window_s"] == pytest.approx(inside)


def test_a_header_of_the_user_replaces_ours(load: Any) -> None:
    """A Content-Type that the user gives is sent once, and is theirs."""
    with ScriptedServer(lambda _r: words(1)) as server:
        load(server.url, headers={"content-type": "application/json; charset=utf-8"})
        assert server.requests[0].headers["content-type"] == "application/json; charset=utf-8"
    spec = LoadSpec(url="http://h", model="m", requests=1, headers={"content-type": "a/b"})
    head = heads_of(spec, target_of(spec.url))["chat"].lower()
    assert head.count(b"content-type:") == 1


def test_a_part_of_a_usage_is_no_more_than_the_whole(load: Any) -> None:
    """More cached tokens than prompt tokens, more reasoning than output: unknown."""
    script = answer([delta("a"), delta(finish="stop"), usage_event(5, 2, cached=50, reasoning=50), DONE])
    with ScriptedServer(lambda _r: script) as server:
        (row,) = load(server.url).rows
    assert (row["n_prompt"], row["n_output"], row["n_cached"], row["n_reasoning"]) == (5, 2, None, None)
