"""Connections: kept where the server keeps them, and never a request sent twice."""

from __future__ import annotations

from typing import Any

from engines.scripted_server import Close, Request, ScriptedServer, Step, Wait, words


def test_unannounced_closes_lose_nothing_and_send_nothing_twice(load: Any) -> None:
    """A server that closes after each answer without saying so: all are answered, and it saw each only once."""
    with ScriptedServer(lambda _request: [*words(2), Close()]) as server:
        outcome = load(server.url, requests=30, concurrency=3)
        assert len(server.requests) == 30
    assert outcome.summary["requests"]["ok"] == 30
    assert outcome.client["n_resent"] == sum(row["n_resent"] for row in outcome.rows)


def test_a_request_that_was_read_is_never_sent_again(load: Any) -> None:
    """A server that reads a request on a kept connection and closes: a failure, seen once, on the record."""

    def script(request: Request) -> list[Step]:
        return [Wait(20), Close()] if request.index % 3 == 2 else words(2)

    with ScriptedServer(script) as server:
        outcome = load(server.url, requests=9)
        assert len(server.requests) == 9
    assert outcome.summary["requests"]["error_classes"] == {"connect": 3}
    assert {row["n_resent"] for row in outcome.rows} == {0}


def test_connections_are_kept(load: Any) -> None:
    """A server that keeps connections sees one per stream."""
    with ScriptedServer(lambda _request: words(2)) as server:
        load(server.url, requests=12, concurrency=3)
        assert server.n_connections == 3


def test_a_connection_for_each_request(load: Any) -> None:
    """Asked for, each request has a connection of its own: a server that closes kept ones spoils none."""

    seen: set[int] = set()

    def script(request: Request) -> list[Step]:
        if request.connection in seen:
            return [Wait(20), Close()]
        seen.add(request.connection)
        return words(2)

    with ScriptedServer(script) as server:
        outcome = load(server.url, requests=9, reuse_connections=False)
        assert server.n_connections == 9
    assert outcome.summary["requests"]["ok"] == 9
