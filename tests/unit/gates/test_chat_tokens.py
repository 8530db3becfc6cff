"""Chat token counts: the server's own tokenizer, believed only when its usage agrees."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from assay.errors import BadInput
from assay.gates import Policy, make_policy
from assay.session.chat_tokens import ChatCounter, CountFailed, CountSource, Endpoint, count_chat_tokens
from engines.gate_server import GateServer

CHAT = [{"role": "user", "content": "one two three"}]


@pytest.fixture
def policy() -> Policy:
    return make_policy({"name": "none", "gates": {}}, Path("none.yaml"))


@pytest.mark.parametrize(
    ("counting", "source"),
    [
        ("messages", CountSource.TOKENIZE_MESSAGES),
        ("template", CountSource.APPLY_TEMPLATE),
        ("none", CountSource.USAGE),
    ],
)
def test_each_engine_is_asked_its_own_way(policy: Policy, counting: str, source: CountSource) -> None:
    """vLLM's, llama.cpp's and no tokenizer route give the same count as the server's usage."""
    with GateServer(policy, counting=counting) as server:
        assert count_chat_tokens(Endpoint(server.url, "m"), CHAT) == (server.tokens(CHAT), source)


@pytest.mark.parametrize("counting", ["messages", "template"])
def test_a_tokenizer_that_disagrees_with_usage_is_not_believed(policy: Policy, counting: str) -> None:
    """A route that counts otherwise than the server bills is dropped, with the reason, for usage itself."""
    with (
        GateServer(policy, counting=counting, counting_is_wrong=True) as server,
        ChatCounter(Endpoint(server.url, "m")) as counter,
    ):
        assert counter.count(CHAT) == (server.tokens(CHAT), CountSource.USAGE)
        assert any("where usage says" in reason for reason in counter.rejected.values())


def test_a_counter_probes_once(policy: Policy) -> None:
    """Many counts cost one probe: only the first is proven by a chat request."""
    with GateServer(policy) as server:
        with ChatCounter(Endpoint(server.url, "m")) as counter:
            for _ in range(5):
                counter.count(CHAT)
        assert len(server.log) == 1
        assert server.log[0]["body"]["max_tokens"] == 1


def test_a_server_that_cannot_say_is_told_from_one_that_is_gone(policy: Policy) -> None:
    """No usage is a failed count; no server is a failed transport."""
    with GateServer(policy, counting="none", gives_usage=False) as server:
        with pytest.raises(CountFailed, match=r"usage\.prompt_tokens") as caught:
            count_chat_tokens(Endpoint(server.url, "m"), CHAT)
        assert not caught.value.transport
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = Endpoint(f"http://127.0.0.1:{taken.getsockname()[1]}", "m")
        with pytest.raises(CountFailed) as gone:
            count_chat_tokens(endpoint, CHAT)
    assert gone.value.transport


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_addresses_are_taken_as_users_write_them(tail: str) -> None:
    """With or without /v1 or the whole route, the same server is meant."""
    endpoint = Endpoint(f"http://127.0.0.1:8000{tail}", "m")
    assert endpoint.base_url == "http://127.0.0.1:8000"
    assert endpoint.chat_url == "http://127.0.0.1:8000/v1/chat/completions"


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "", "http://", "http://me:secret@host/"])
def test_wrong_addresses_are_bad_input(url: str) -> None:
    """What is no http address, or holds a password that would enter records, is refused."""
    with pytest.raises(BadInput, match="--url") as caught:
        Endpoint(url, "m")
    assert "secret" not in str(caught.value)


def test_a_key_that_is_not_set_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A named variable that is missing or empty is bad input; a set one becomes a bearer token."""
    endpoint = Endpoint("http://host", "m", api_key_env="GATES_TEST_KEY")
    for value in (None, ""):
        monkeypatch.delenv("GATES_TEST_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("GATES_TEST_KEY", value)
        with pytest.raises(BadInput, match="GATES_TEST_KEY"):
            endpoint.request_headers()
    monkeypatch.setenv("GATES_TEST_KEY", "k")
    assert endpoint.request_headers()["authorization"] == "Bearer k"
