"""Prompts, options and bodies: what is refused before anything starts, and what is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.load import LoadSpec, Prompt, read_prompts, run_load
from engines.scripted_server import ScriptedServer, words

GOOD = {"id": "a", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("lines", "where", "key"),
    [
        (["{"], ":1", None),
        ([json.dumps(GOOD), "[]"], ":2", None),
        (["", json.dumps({"id": "a"})], ":2", None),
        ([json.dumps({"id": "a", "prompt": "x", "messages": []})], ":1", None),
        ([json.dumps({"id": "a", "prompt": 5})], ":1", "prompt"),
        ([json.dumps({"id": 5, "prompt": "x"})], ":1", "id"),
        ([json.dumps({"id": "a", "prompt": "x", "temperature": 1})], ":1", "temperature"),
        ([json.dumps({"id": "a", "prompt": "x", "max_tokens": 0})], ":1", "max_tokens"),
        ([json.dumps({"id": "a", "prompt": "x", "max_tokens": True})], ":1", "max_tokens"),
        ([json.dumps({"id": "a", "prompt": "x", "extra_body": []})], ":1", "extra_body"),
        ([json.dumps({"id": "a", "token_ids": [1, -1]})], ":1", "token_ids"),
        ([json.dumps(GOOD), json.dumps(GOOD)], ":2", "id"),
        ([json.dumps({"id": "a\ud83d", "prompt": "x"})], ":1", "id"),
        ([json.dumps({"id": "a", "prompt": ""})], ":1", "prompt"),
        ([json.dumps({"id": "a", "messages": [{"role": "user"}]})], ":1", "messages"),
        (
            [json.dumps({"id": "a", "prompt": "x", "extra_body": {"stream": False}})],
            ":1",
            "extra_body.stream",
        ),
        (['{"id": "a", "prompt": "x", "prompt": "y"}'], ":1", None),
        (['{"id": "a", "prompt": "x", "extra_body": {"temperature": NaN}}'], ":1", None),
        (['{"id": "a", "prompt": "x", "extra_body": {"temperature": 1e999}}'], ":1", None),
        (
            [json.dumps(GOOD), '{"id": "b", "messages": [{"role": "user", "content": "x\\ud800y"}]}'],
            ":2",
            "messages",
        ),
        (['{"id": "a", "prompt": "\\udc00"}'], ":1", "prompt"),
        (['{"id": "a", "prompt": "x", "extra_body": {"stop": "\\ud83d"}}'], ":1", "extra_body"),
        ([""], "", None),
    ],
)
def test_a_bad_prompts_file_names_file_and_line(
    tmp_path: Path, lines: list[str], where: str, key: str | None
) -> None:
    """Each kind of bad line is refused with the file, the line and the key."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(BadInput) as caught:
        read_prompts(path)
    assert str(caught.value.where) == f"{path}{where}"
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_an_id_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    """A prompt without `id` is told so, not that its id is of the wrong kind."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "x"}\n')
    with pytest.raises(BadInput, match=r"prompts\.jsonl:1: id: missing"):
        read_prompts(path)


def test_prompts_are_read_as_they_stand(tmp_path: Path) -> None:
    """All three forms and the optional keys come out; the order is that of the file."""
    path = tmp_path / "prompts.jsonl"
    values = [
        GOOD | {"max_tokens": 5},
        {"id": "b", "prompt": "é", "extra_body": {"x": 1}},
        {"id": "c", "token_ids": [1]},
    ]
    path.write_text("\n\n".join(json.dumps(value) for value in values) + "\n")
    prompts = read_prompts(path)
    assert [prompt.form for prompt in prompts] == ["messages", "prompt", "token_ids"]
    assert (prompts[0].max_tokens, prompts[1].prompt, prompts[1].extra_body) == (5, "é", {"x": 1})
    with pytest.raises(BadInput):
        read_prompts(tmp_path / "missing.jsonl")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"url": "127.0.0.1:8000"}, "url"),
        ({"url": "http://user:key@host/v1"}, "url"),
        ({"url": "http://127.0.0.1:99999"}, "url"),
        ({"concurrency": 0}, "concurrency"),
        ({"requests": None}, "requests"),
        ({"requests": 0}, "requests"),
        ({"duration_s": float("nan")}, "duration"),
        ({"rate_per_s": 0.0}, "rate"),
        ({"rate_per_s": 1e-300, "arrivals": "constant"}, "rate"),
        ({"rate_per_s": 10.0, "arrivals": "gamma", "burstiness": 1e308}, "burstiness"),
        ({"rate_per_s": 10.0, "arrivals": "gamma", "burstiness": 1e-300}, "burstiness"),
        ({"rate_per_s": 10.0, "arrivals": "gamma", "burstiness": float("nan")}, "burstiness"),
        ({"url": "http://a..b"}, "url"),
        ({"url": f"http://{'a' * 300}"}, "url"),
        ({"url": "http://xn--é"}, "url"),
        ({"arrivals": "uniform"}, "arrivals"),
        ({"endpoint": "embeddings"}, "endpoint"),
        ({"headers": {"Authorization": "Bearer x"}}, "header"),
        ({"headers": {"X": "a\r\nY: b"}}, "header"),
        ({"headers": {"Bad Name": "a"}}, "header"),
        ({"api_key_env": "ASSAY_TEST_NO_SUCH_KEY"}, "api-key-env"),
        ({"extra_body": {"stream": False}}, "extra_body.stream"),
        ({"opening_per_stream": 1}, "opening-prompts"),
        ({"tokenizer": "/no/such/tokenizer.json"}, "tokenizer"),
        ({"timeout_s": 0.0}, "timeout"),
        ({"timeout_s": 1e300}, "timeout"),
        ({"metrics_urls": ("http://[::1",)}, "metrics-url"),
        ({"metrics_urls": ("foo",)}, "metrics-url"),
        ({"model": "m\udcff"}, None),
        ({"duration_s": 1e300}, "duration"),
        ({"requests": 10**26}, "requests"),
        ({"seed": 10**23}, "seed"),
        ({"max_tokens": 99_999_999_999}, "max-tokens"),
        ({"planned_prompt_tokens": 99_999_999_999}, "planned-prompt-tokens"),
        ({"planned_prompt_tokens": -1}, "planned-prompt-tokens"),
        ({"extra_body": {"temperature": float("nan")}}, "extra-body"),
        ({"ca_file": Path("/no/such/ca.pem")}, "ca-file"),
        ({"ca_file": Path(__file__)}, "ca-file"),
    ],
)
def test_bad_options_name_their_key_and_start_nothing(
    tmp_path: Path, options: dict[str, Any], key: str | None
) -> None:
    """Each bad option raises BadInput with its name, and no folder is made."""
    given = {"url": "http://127.0.0.1:9", "model": "m", "requests": 1} | options
    with pytest.raises(BadInput) as caught:
        run_load(LoadSpec(**given), [Prompt("p", prompt="x")], tmp_path / "out")
    assert caught.value.key == key
    assert not (tmp_path / "out").exists()


def test_forms_and_endpoints_must_fit(tmp_path: Path) -> None:
    """Messages cannot go to completions, nor token numbers to chat."""
    for prompt, endpoint in (
        (Prompt("p", messages=[{"role": "user"}]), "completions"),
        (Prompt("p", token_ids=[1]), "chat"),
    ):
        spec = LoadSpec(url="http://127.0.0.1:9", model="m", requests=1, endpoint=endpoint)
        with pytest.raises(BadInput, match="prompt p"):
            run_load(spec, [prompt], tmp_path / "out")


def test_records_are_never_overwritten(load: Any, tmp_path: Path) -> None:
    """A folder that has a table already is refused."""
    with ScriptedServer(lambda _r: words(1)) as server:
        outcome = load(server.url)
        with pytest.raises(BadInput, match="never overwritten"):
            run_load(
                LoadSpec(url=server.url, model="m", requests=1), [Prompt("p", prompt="x")], outcome.folder
            )


def test_what_is_sent(load: Any) -> None:
    """The body is the load's settings, the extra body over them, the prompt's own last; each form to its path."""
    prompts = [
        Prompt("a", messages=[{"role": "user", "content": "x"}], max_tokens=9, extra_body={"top_p": 0.5}),
        Prompt("b", prompt="text"),
        Prompt("c", token_ids=[1, 2, 3]),
    ]
    with ScriptedServer(lambda _r: words(1)) as server:
        outcome = load(
            f"{server.url}/v1/",
            prompts,
            requests=3,
            max_tokens=4,
            extra_body={"top_p": 1, "seed": 7},
            headers={"X-Trace": "t"},
        )
        chat, text, tokens = server.requests
    assert [request.path for request in server.requests] == [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/completions",
    ]
    assert (chat.body["max_tokens"], chat.body["top_p"], chat.body["seed"]) == (9, 0.5, 7)
    assert (text.body["prompt"], tokens.body["prompt"], text.body["max_tokens"]) == ("text", [1, 2, 3], 4)
    assert all(request.body["stream_options"] == {"include_usage": True} for request in server.requests)
    assert all(request.headers["x-trace"] == "t" for request in server.requests)
    assert all(request.headers["accept-encoding"] == "identity" for request in server.requests)
    assert [row["n_requested"] for row in outcome.rows] == [9, 4, 4]


def test_the_key_is_sent_and_never_recorded(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bearer key from the environment reaches the server and is in no file the load leaves."""
    monkeypatch.setenv("ASSAY_TEST_KEY", "sk-very-secret")
    with ScriptedServer(lambda _r: words(1)) as server:
        outcome = load(server.url, api_key_env="ASSAY_TEST_KEY", headers={"X-Other": "also-secret"})
        assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    for path in outcome.folder.rglob("*"):
        data = path.read_bytes()
        assert b"very-secret" not in data
        assert b"also-secret" not in data
    assert outcome.client["spec"]["header_names"] == ["X-Other"]


def test_a_large_prompt_is_sent_whole(load: Any) -> None:
    """A prompt of 5 MB, more than a socket takes at once, arrives byte for byte."""
    text = "".join(chr(97 + i % 26) for i in range(5_000_000))
    with ScriptedServer(lambda _r: words(1)) as server:
        outcome = load(server.url, [Prompt("p", prompt=text)], requests=2)
        assert [request.body["prompt"] == text for request in server.requests] == [True, True]
    assert outcome.summary["requests"]["ok"] == 2
