"""Tokens, answers and streams of the rehearsal engine."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from assay.gates.tasks import read_data
from assay.rehearsal import tokens
from assay.rehearsal.answers import reply_to, smallest_value
from assay.rehearsal.faults import FaultBook
from assay.rehearsal.profile import Profile
from assay.rehearsal.recipe import Recipe
from assay.rehearsal.request import ApiError, Reader
from assay.rehearsal.stream import EventStream, whole_answer


def reader(**profile: object) -> Reader:
    made = Profile().with_values(profile)
    return Reader(made, Recipe(max_model_len=4_096), "m", 1, FaultBook([]))


def body(text: str = "hello", **keys: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **keys}).encode()


@given(st.text())
def test_a_text_splits_without_loss(text: str) -> None:
    """The tokens of any text, joined, are the text."""
    assert "".join(tokens.split(text)) == text


@given(st.integers(0, 300), st.integers(0, 2**31))
def test_drawn_text_has_exactly_its_tokens(n_tokens: int, seed: int) -> None:
    """n drawn tokens make a text that the tokenizer counts as n."""
    assert tokens.count("".join(tokens.draw_text(n_tokens, seed))) == n_tokens


def test_token_ids_turn_back_into_text() -> None:
    """Ids given out for a text decode to it."""
    ids = tokens.TokenIds()
    text = "The pass key is 123456.\n<|user|>\nnaïve 東京"
    assert ids.decode(ids.encode(tokens.split(text))) == text


def test_block_hashes_depend_on_everything_before() -> None:
    """Two prompts share block hashes exactly as far as they are alike."""
    first = list(range(100))
    second = [*first[:40], 7, *first[41:]]
    one, two = (tokens.block_hashes(prompt, 16) for prompt in (first, second))
    assert len(one) == 6
    assert one[:2] == two[:2]
    assert not set(one[2:]) & set(two[2:])


@pytest.mark.parametrize("kind", ["json", "tool", "code"])
def test_every_gate_answer_fits_its_budget(kind: str) -> None:
    """The right answer of each gate task is found and ends by itself within the task's output budget."""
    for task in read_data(f"{kind}_tasks")["tasks"]:
        keys = {"max_tokens": task["max_tokens"]}
        if kind == "tool":
            keys["tools"] = task["tools"]
        job = reader().job(body(task["prompt"], **keys), True)
        assert job.kind == kind, task["id"]
        assert job.finish_reason in ("stop", "tool_calls"), (task["id"], job.n_output)


def test_needle_is_found_in_the_prompt_alone() -> None:
    """The key comes from the prompt; without the sentence there is no key to tell."""
    question = "What is the access code of the old mint? Answer with the code only."
    hay = "Rain fell. The access code of the old mint is 482913. The access code of the annex is 111111. "
    assert reply_to(f"{hay}\n\n{question}").content == "482913"
    assert "482913" not in str(reply_to(f"Rain fell.\n\n{question}").content)


def test_unknown_json_schemas_get_a_value_that_meets_them() -> None:
    """A schema that is in no task file is answered with a value that it accepts."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 3},
            "kind": {"enum": ["a", "b"]},
            "n": {"type": "integer", "minimum": 2},
            "items": {"type": "array", "items": {"type": "number"}, "minItems": 2},
        },
        "required": ["name", "kind", "n", "items"],
    }
    assert not list(Draft202012Validator(schema).iter_errors(smallest_value(schema)))


def test_lengths_follow_the_request() -> None:
    """ignore_eos forces the asked length; without it an answer ends by itself or at the limit."""
    forced = reader().job(body(max_tokens=77, ignore_eos=True), True)
    assert (forced.n_output, forced.finish_reason) == (77, "length")
    natural = [reader(answer_median_tokens=40.0).job(body(f"q{n}", max_tokens=64), True) for n in range(60)]
    assert {job.finish_reason for job in natural} == {"stop", "length"}
    assert all(job.n_output == 64 for job in natural if job.finish_reason == "length")
    assert all(job.n_output <= 64 for job in natural)


def test_same_prompt_same_answer() -> None:
    """The answer is decided by prompt and seed, not by the order of requests."""
    jobs = [reader().job(body("again", max_tokens=200), True) for _ in range(2)]
    assert jobs[0].pieces == jobs[1].pieces
    assert jobs[0].pieces != reader().job(body("other", max_tokens=200), True).pieces


def test_thinking_toggle_decides_the_reasoning_channel() -> None:
    """A model that thinks by default reasons unless the request says no, and its prompt ends accordingly."""
    thinker = reader(thinks_by_default=True)
    on = thinker.job(body(max_tokens=500), True)
    off = thinker.job(body(max_tokens=500, chat_template_kwargs={"enable_thinking": False}), True)
    assert on.n_reasoning > 0
    assert off.n_reasoning == 0
    assert reader().job(body(max_tokens=500), True).n_reasoning == 0


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"model": "other"}, 404),
        ({"messages": []}, 400),
        ({"messages": "hi"}, 400),
        ({"messages": [{"content": "hi"}]}, 400),
        ({"max_tokens": 0}, 400),
        ({"max_tokens": "9"}, 400),
        ({"max_tokens": 5_000}, 400),
        ({"n": 2}, 400),
    ],
)
def test_bad_requests_are_refused(change: dict[str, object], status: int) -> None:
    """What a server would refuse is refused with its status."""
    with pytest.raises(ApiError) as caught:
        reader().job(body(**change), True)
    assert caught.value.status == status


@given(st.lists(st.integers(1, 7), min_size=1, max_size=40), st.booleans(), st.booleans(), st.booleans())
def test_streamed_and_whole_answers_agree(sizes: list[int], thinks: bool, usage: bool, tools: bool) -> None:
    """However the tokens are dealt out into events, the events put together are the whole answer."""
    text = "What is the weather in Tromsø now, in celsius?" if tools else "anything"
    keys: dict[str, object] = {"max_tokens": 300, "stream": True, "tools": [{}] if tools else None}
    keys["stream_options"] = {"include_usage": True, "continuous_usage_stats": usage}
    job = reader(thinks_by_default=thinks, answer_median_tokens=30.0).job(body(text, **keys), True)
    stream, at, data, turn = EventStream(job, "m", 0), 0, b"", 0
    while at < job.n_output:
        n = min(sizes[turn % len(sizes)], job.n_output - at)
        at, turn = at + n, turn + 1
        data += stream.tokens(n, at == job.n_output, None)
    events = [json.loads(x) for x in unchunked(data).split("data: ")[1:-1]]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    message = whole_answer(job, "m", 0, None)["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message.get(
        "reasoning_content", ""
    )
    arguments = "".join(
        call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", [])
    )
    assert arguments == "".join(call["function"]["arguments"] for call in message.get("tool_calls", []))
    assert events[-1]["usage"]["completion_tokens"] == job.n_output
    assert data.endswith(b"0\r\n\r\n")
    if usage:
        told = [event["usage"]["completion_tokens"] for event in events if event["choices"]]
        assert told == sorted(told)


def unchunked(data: bytes) -> str:
    """The body of an HTTP answer in chunks; fails when the framing is wrong."""
    out, at = b"", 0
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        if not size:
            return out.decode()
        out += data[end + 2 : end + 2 + size]
        assert data[end + 2 + size : end + 4 + size] == b"\r\n"
        at = end + 4 + size
