"""Needles: measured to the token, seeded, with one key at its depth."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import BadInput
from assay.gates.needles import (
    Haystack,
    LengthNotReached,
    build_haystack,
    grade_keys,
    needle_specs,
    tolerance_tokens,
)
from assay.gates.tasks import read_data

FILLER = read_data("filler")
Counter = Callable[[list[dict[str, Any]]], tuple[int, str]]


def specs(style: str = "facts", **changes: Any) -> list[dict[str, Any]]:
    gate = {
        "style": style,
        "seed": 7,
        "keys": 3,
        "depths_percent": [10, 50, 90],
        "lengths_tokens": [300, 900],
    }
    return list(needle_specs({**gate, **changes}, FILLER, Path("policy.yaml")))


def tokenizer(chars_per_token: float, template_tokens: int) -> Counter:
    """A tokenizer that cuts words into pieces of so many characters, and a template of so many tokens."""

    def count(messages: list[dict[str, Any]]) -> tuple[int, str]:
        words = re.findall(r"\w+|[^\w\s]", messages[0]["content"])
        return template_tokens + sum(-(-len(word) // max(1, int(chars_per_token))) for word in words), "test"

    return count


def text_of(hay: Haystack) -> str:
    return str(hay.messages[0]["content"])


@given(
    style=st.sampled_from(["facts", "pass_key"]),
    length=st.integers(100, 6000),
    depth=st.integers(0, 100),
    chars=st.integers(1, 9),
    template=st.integers(0, 40),
)
@settings(deadline=None, max_examples=60)
def test_every_length_is_met_by_every_tokenizer(
    style: str, length: int, depth: int, chars: int, template: int
) -> None:
    """Whatever the tokenizer, the chat has the asked length to within 1 % (at least one token)."""
    spec = specs(style, keys=1, depths_percent=[depth], lengths_tokens=[length])[0]
    count = tokenizer(chars, template)
    try:
        hay = build_haystack(spec, FILLER, count)
    except LengthNotReached:
        # one word may be longer than the tolerance is wide: then no chat fits, and that is said
        assert tolerance_tokens(length, 1.0) < 12 / chars + 2
        return
    assert count(hay.messages)[0] == hay.n_tokens
    assert abs(hay.n_tokens - length) <= max(1.0, length / 100)


@pytest.mark.parametrize("style", ["facts", "pass_key"])
def test_key_and_question_stand_where_they_should(style: str) -> None:
    """The key stands once, at its depth to within a sentence, and the question comes last."""
    for spec in specs(style):
        hay = build_haystack(spec, FILLER, tokenizer(4, 12))
        text = text_of(hay)
        body, question = text.rsplit("\n\n", 1)
        assert text.count(spec["key"]) == 1
        assert question.startswith("What is the ")
        assert spec["key"] not in question
        really = 100 * body.index(spec["key"]) / len(body)
        sentence = 100 * 120 / len(body)
        assert abs(really - spec["depth_percent"]) <= sentence
        assert abs(hay.depth_percent - spec["depth_percent"]) <= sentence


def test_facts_are_varied_and_the_pass_key_form_is_not() -> None:
    """The default filler repeats itself little; the pass-key form repeats one passage, as it is known."""
    facts = text_of(build_haystack(specs(lengths_tokens=[3000])[0], FILLER, tokenizer(4, 0)))
    sentences = re.findall(r"[^.]+\.", facts)
    assert len(set(sentences)) > 0.95 * len(sentences)
    known = text_of(build_haystack(specs("pass_key", lengths_tokens=[3000])[0], FILLER, tokenizer(4, 0)))
    assert known.count("The grass is green. The sky is blue.") > 20


def test_the_seed_decides_everything() -> None:
    """The same seed gives the same text; another seed, task or length another one."""
    one, same, other = (build_haystack(specs(seed=seed)[0], FILLER, tokenizer(4, 3)) for seed in (7, 7, 8))
    assert text_of(one) == text_of(same)
    assert text_of(one) != text_of(other)
    keys = [spec["key"] for spec in specs(keys=20)]
    assert len(set(keys)) == len(keys)


def test_a_first_guess_saves_counts() -> None:
    """With the ratio of the needle before, a long chat is met in a few counts."""
    first, second = specs(lengths_tokens=[20_000])[:2]
    hay = build_haystack(first, FILLER, tokenizer(4, 9))
    again = build_haystack(second, FILLER, tokenizer(4, 9), hay.words_per_token)
    assert again.counts_asked <= min(3, hay.counts_asked)


def test_a_length_below_the_question_is_refused() -> None:
    """A length the question alone exceeds is an error with its number, not a shorter test."""
    with pytest.raises(LengthNotReached, match="the question alone has"):
        build_haystack(specs(lengths_tokens=[64])[0], FILLER, tokenizer(1, 50))


def test_a_tokenizer_that_jumps_is_refused() -> None:
    """When no chat within the tolerance exists, the nearest is named and nothing is asked."""
    with pytest.raises(LengthNotReached, match="nearest is"):
        build_haystack(
            specs(lengths_tokens=[300])[0], FILLER, lambda m: (100 * (len(str(m)) // 2000) + 40, "test")
        )


@pytest.mark.parametrize(
    "counted",
    [lambda _: 3, lambda n_words: 3 + n_words.bit_length(), lambda n_words: 3 + n_words // 50],
    ids=["always_3", "logarithm", "50_words_a_token"],
)
def test_a_server_whose_count_hardly_grows_is_refused(counted: Callable[[int], int]) -> None:
    """A count that does not follow the text ends in few counts and a bounded text, and both are said."""
    asked: list[int] = []

    def count(messages: list[dict[str, Any]]) -> tuple[int, str]:
        asked.append(len(messages[0]["content"].split()))
        return counted(asked[-1]), "test"

    with pytest.raises(LengthNotReached, match=r"the server counts \d+ tokens for \d+ words"):
        build_haystack(specs(lengths_tokens=[30_000])[0], FILLER, count)
    assert len(asked) <= 5
    assert max(asked) < 5 * 30_000


def test_the_same_place_twice_is_bad_input() -> None:
    """A depth or length that stands twice would be counted twice: the file is wrong."""
    with pytest.raises(BadInput, match="stands twice"):
        specs(depths_percent=[10, 10])


@pytest.mark.parametrize(
    ("content", "has_key", "has_other"),
    [
        ("It is 123456.", True, False),
        ("**123456**, remember 123456", True, False),
        ("1234567", False, False),
        ("0123456", False, False),
        ("12345", False, False),
        ("123 456", False, False),
        ("123456 or 654321", True, True),
        ("654321", False, True),
        ("In 2024 it was 123456", True, False),
    ],
)
def test_keys_are_whole_runs_of_six_digits(content: str, has_key: bool, has_other: bool) -> None:
    """The exact key counts, a part of a longer number does not, and any other key is seen."""
    assert grade_keys(content, "123456")[:2] == (has_key, has_other)
