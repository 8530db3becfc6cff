"""Questions beside the load end, whatever the server does with them."""

from __future__ import annotations

import resource
import time
from typing import Any

import httpx
import pytest

from assay.answer import AnswerTooLarge, ask
from assay.load import retokenise
from assay.load.gauges import ServerWatch
from engines.scripted_server import (
    DONE,
    Request,
    ScriptedServer,
    Step,
    Wait,
    answer,
    delta,
    drip,
    drip_headers,
    flood,
    plain,
    words,
)


@pytest.mark.parametrize("script", [drip, drip_headers])
def test_an_answer_that_drips_ends_at_the_limit(script: Any) -> None:
    """Bytes that keep coming, of the body or of the headers, do not prolong the time an answer may take."""
    with ScriptedServer(script) as server, httpx.Client(trust_env=False) as client:
        t_start_s = time.monotonic()
        with pytest.raises(httpx.ReadTimeout, match="no complete answer"):
            ask(client, f"{server.url}/x", 0.5, json={})
        assert 0.5 <= time.monotonic() - t_start_s < 3


def test_an_answer_without_an_end_is_not_kept() -> None:
    """An answer over the limit of bytes is given up there, in bounded memory."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        ScriptedServer(flood) as server,
        httpx.Client(trust_env=False) as client,
        pytest.raises(AnswerTooLarge),
    ):
        ask(client, f"{server.url}/x", 20, json={})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000


def test_a_complete_answer_comes_as_it_is() -> None:
    """Status, text and JSON are the server's, for GET and POST; the question says that it is the last one."""
    asked: list[Request] = []

    def script(request: Request) -> list[Step]:
        asked.append(request)
        return [plain(503, '{"é": 1}'.encode())]

    with (
        ScriptedServer(lambda _r: [], scripts={"/a": script}) as server,
        httpx.Client(base_url=server.url, trust_env=False, headers={"x-a": "b"}) as client,
    ):
        for body in (None, {"q": 1}):
            told = ask(client, "/a", 5.0, json=body)
            assert (told.status_code, told.json()) == (503, {"é": 1})
            with pytest.raises(httpx.HTTPStatusError):
                told.raise_for_status()
    assert [one.body for one in asked] == [None, {"q": 1}]
    assert [(one.headers["connection"], one.headers["x-a"]) for one in asked] == [("close", "b")] * 2


@pytest.mark.parametrize(("script", "why"), [(drip, "ReadTimeout"), (flood, "AnswerTooLarge")])
def test_metrics_without_an_end_do_not_hold_the_load(script: Any, why: str) -> None:
    """A /metrics that never ends is a reading with a reason, and the load it stood beside ends as usual."""
    with ScriptedServer(lambda _r: words(2), scripts={"/metrics": script}) as server:
        watch = ServerWatch([f"{server.url}/metrics"], 1.0, timeout_s=0.5 if script is drip else 20)
        assert watch.read() == (None, why)
        watch.close()


def test_a_metrics_address_that_is_none_ends_no_load() -> None:
    """A host name that cannot be written is a reading with a reason."""
    for host in ("a..b", "xn--é", "a" * 300):
        watch = ServerWatch([f"http://{host}/metrics"], 1.0)
        samples, reason = watch.read()
        assert (samples, bool(reason)) == (None, True)
        watch.close()


def test_a_count_that_drips_leaves_the_tokens_unknown(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A /tokenize that never ends costs the limit of one answer, once; the records say why nothing was counted."""
    monkeypatch.setattr(retokenise, "ANSWER_LIMIT_S", 0.5)
    silent = answer([delta("a"), delta(finish="stop"), DONE])
    t_start_s = time.monotonic()
    with ScriptedServer(lambda _r: silent, scripts={"/tokenize": drip}) as server:
        outcome = load(server.url, requests=4)
    assert time.monotonic() - t_start_s < 10
    assert [row["n_output"] for row in outcome.rows] == [None] * 4
    assert outcome.client["tokenizer"]["why_not_counted"] == "/tokenize: ReadTimeout"


def test_the_count_after_a_load_has_a_limit_of_its_own(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow /tokenize is asked until the limit of the whole count: what it counted stands, the rest is unknown."""
    monkeypatch.setattr(retokenise, "COUNT_LIMIT_S", 1.0)
    silent = answer([delta("a"), delta(finish="stop"), DONE])
    slow: list[Step] = [Wait(300), plain(200, b'{"count": 1}')]
    with ScriptedServer(lambda _r: silent, scripts={"/tokenize": lambda _r: slow}) as server:
        outcome = load(server.url, requests=8)
    counts = [row["n_output"] for row in outcome.rows]
    assert 1 <= counts.count(1) <= 3
    assert counts.count(None) == 8 - counts.count(1)
    assert outcome.client["tokenizer"]["why_not_counted"].startswith("/tokenize: ")
