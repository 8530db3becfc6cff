"""Needles: a key hidden at a depth in seeded filler, in a chat of a length measured by the serving model."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import BadInput

_KEY_DIGITS = 6
_MAX_COUNTS = 24
_WORDS_PER_TOKEN = 0.75
_WORDS_PER_TOKEN_MAX = 4
"""No tokenizer takes more words together; a server that counts so is not measuring the text."""
_GROWTH_MAX = 4


class LengthNotReached(Exception):
    """No chat within the tolerance was found; the message has the nearest."""


@dataclass(frozen=True)
class Haystack:
    """A chat made to measure. ``depth_percent`` is where the key's sentence really begins, by characters."""

    messages: list[dict[str, Any]]
    n_tokens: int
    source: str
    depth_percent: float
    counts_asked: int
    n_words: int
    words_per_token: float


def needle_specs(gate: Mapping[str, Any], filler: Mapping[str, Any], where: Path) -> Iterator[dict[str, Any]]:
    """One spec per length, depth and key; a spec says everything that decides the text but its length."""
    style = gate.get("style", "facts")
    seed = gate.get("seed", 1)
    seen: set[str] = set()
    for length in gate["lengths_tokens"]:
        for depth in gate["depths_percent"]:
            for number in range(gate["keys"]):
                task_id = f"needle-{style}-{length}-d{depth}-k{number + 1}"
                if task_id in seen:
                    raise BadInput("a length or depth stands twice", where=where, key="gates.needle")
                seen.add(task_id)
                rng = _rng(seed, task_id, "key")
                key = str(rng.randrange(10 ** (_KEY_DIGITS - 1), 10**_KEY_DIGITS))
                subject = rng.choice(filler["facts"]["subjects"]) if style == "facts" else None
                yield {
                    "id": task_id,
                    "style": style,
                    "seed": seed,
                    "key": key,
                    "subject": subject,
                    "length_tokens": length,
                    "depth_percent": depth,
                    "tolerance_percent": gate.get("tolerance_percent", 1.0),
                }


def tolerance_tokens(length_tokens: int, tolerance_percent: float) -> float:
    """How far a measured length may be off: the percentage, but no less than one token."""
    return max(1.0, length_tokens * tolerance_percent / 100.0)


def build_haystack(
    spec: Mapping[str, Any],
    filler: Mapping[str, Any],
    count: Callable[[list[dict[str, Any]]], tuple[int, str]],
    words_per_token: float | None = None,
) -> Haystack:
    """Grow or shrink the filler, a word at a time in the end, until ``count`` says the asked length.

    ``count`` gives (tokens of the chat, how counted); ``words_per_token`` is a first guess, from a needle
    made before. Raises LengthNotReached, and what ``count`` raises.
    """
    words = _Words(spec, filler)
    target = int(spec["length_tokens"])
    allowed = tolerance_tokens(target, float(spec["tolerance_percent"]))
    seen: dict[int, int] = {}
    source = ""

    def measure(n_words: int) -> int:
        nonlocal source
        if n_words not in seen:
            seen[n_words], source = count(_chat(spec, filler, words.text(n_words))[0])
        return seen[n_words]

    low, n_low = 0, measure(0)
    high = max(8, int((target - n_low) * min(words_per_token or _WORDS_PER_TOKEN, _WORDS_PER_TOKEN_MAX)))
    if n_low > target + allowed:
        raise LengthNotReached(f"the question alone has {n_low} tokens")
    n_high = measure(high)
    most = target * _WORDS_PER_TOKEN_MAX
    while n_high < target and len(seen) < _MAX_COUNTS:
        low, n_low = high, n_high
        factor = min(target / max(n_high, 1) * 1.02, _GROWTH_MAX)
        high = min(max(high + 8, int(high * factor)), most)
        n_high = measure(high)
        does_not_grow = high >= 2 * low and n_high <= n_low
        if n_high < target and (does_not_grow or high == most):
            raise LengthNotReached(f"the server counts {n_high} tokens for {high} words")
    while len(seen) < _MAX_COUNTS and high - low > 1:
        if abs(n_high - target) <= allowed or abs(n_low - target) <= allowed:
            break
        share = (target - n_low) / max(n_high - n_low, 1)
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        n_middle = measure(middle)
        if n_middle < target:
            low, n_low = middle, n_middle
        else:
            high, n_high = middle, n_middle
    best = min(seen, key=lambda n_words: (abs(seen[n_words] - target), n_words))
    if abs(seen[best] - target) > allowed:
        raise LengthNotReached(f"asked {target} tokens, nearest is {seen[best]}")
    messages, depth = _chat(spec, filler, words.text(best))
    ratio = best / max(seen[best] - seen[0], 1)
    return Haystack(messages, seen[best], source, depth, len(seen), best, ratio)


def haystack_messages(
    spec: Mapping[str, Any], filler: Mapping[str, Any], n_words: int
) -> list[dict[str, Any]]:
    """The chat of a needle with so many words of filler: what an audit compares the recorded one with."""
    return _chat(spec, filler, _Words(spec, filler).text(n_words))[0]


def grade_keys(content: str, key: str) -> tuple[bool, bool, list[str]]:
    """(the key is there, another key is there, all keys found). A key is a run of exactly six digits."""
    found = re.findall(rf"(?<!\d)\d{{{_KEY_DIGITS}}}(?!\d)", content)
    return key in found, any(other != key for other in found), found[:20]


def _chat(
    spec: Mapping[str, Any], filler: Mapping[str, Any], text: str
) -> tuple[list[dict[str, Any]], float]:
    """The chat and the real depth, in percent of the filler's characters, of the needle in it."""
    style = filler[spec["style"]]
    needle = style["needle"].format(key=spec["key"], subject=spec["subject"])
    question = style["question"].format(subject=spec["subject"])
    sentences = _sentences(text)
    wanted = len(text) * spec["depth_percent"] / 100.0
    before = 0
    place = 0
    for sentence in sentences:
        if before + len(sentence) / 2 > wanted:
            break
        before += len(sentence) + 1
        place += 1
    hay = " ".join([*sentences[:place], needle, *sentences[place:]])
    depth = 100.0 * min(before, len(text)) / len(text) if text else 0.0
    return [{"role": "user", "content": f"{hay}\n\n{question}"}], round(depth, 2)


def _sentences(text: str) -> list[str]:
    return re.findall(r"[^.]+\.", text.replace(". ", "."))


class _Words:
    """Endless filler of one task; ``text(n)`` is its first n words, always the same."""

    def __init__(self, spec: Mapping[str, Any], filler: Mapping[str, Any]):
        self._words: list[str] = []
        self._style = spec["style"]
        self._filler = filler[self._style]
        self._rng = _rng(spec["seed"], spec["id"], "filler")

    def text(self, n_words: int) -> str:
        while len(self._words) < n_words:
            self._words.extend(self._next_sentence().split(" "))
        text = " ".join(self._words[:n_words])
        return text if not text or text.endswith(".") else text.rstrip(",;") + "."

    def _next_sentence(self) -> str:
        if self._style == "pass_key":
            return str(self._filler["filler"])
        pick = self._rng.choice
        source = self._filler
        person, place, number = pick(source["people"]), pick(source["places"]), self._rng.randrange(12, 980)
        time = pick(source["times"])
        return str(
            pick(source["templates"]).format(
                person=person,
                Person=person,
                person2=pick(source["people"]),
                place=place,
                place2=pick(source["places"]),
                thing=pick(source["things"]),
                verb=pick(source["verbs"]),
                time=time,
                Time=time[0].upper() + time[1:],
                adjective=pick(source["adjectives"]),
                number=number,
                Number=number,
            )
        )


def _rng(seed: int, task_id: str, purpose: str) -> random.Random:
    digest = hashlib.sha256(f"{seed}\0{task_id}\0{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
