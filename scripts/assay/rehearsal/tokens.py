"""The rehearsal's tokenizer, chat template and words: exact, so that counts always agree with texts.

A token is up to eight letters with the space before them, up to three digits, a single sign, a run of white
space, or one special mark of the template. Any text splits into tokens without loss, and the texts made here
split into exactly the tokens they were made of.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

VOCAB_SIZE = 100_000
FIRST_PLAIN_TOKEN = 16
KNOWN_PIECES_LIMIT = 200_000
OPEN_THINKING, CLOSED_THINKING = "<think>\n", "<think>\n\n</think>\n\n"
_PIECE = re.compile(r"<\|[a-z_]{1,20}\|>| ?[^\W\d_]{1,8}|\d{1,3}| ?[^\w\s]|\s|_| ?\w", re.DOTALL)
_WORDS = """
    the and that with from into over under after while each other both more less many few some water stone
    light river field house road wind bread glass paper metal garden window letter number answer question
    morning evening summer winter north south left right small large early late quiet clear open close make
    take give find keep turn move hold carry follow change begin reach leave write read count measure compare
"""
_PLAIN_WORDS = [f" {word}" for word in _WORDS.split()]


def split(text: str) -> list[str]:
    """The tokens of a text, as text. Joined they are the text again."""
    return _PIECE.findall(text)


def count(text: str) -> int:
    """How many tokens a text is."""
    return len(_PIECE.findall(text))


def draw_text(n_tokens: int, seed: int) -> list[str]:
    """``n_tokens`` tokens of text that means nothing; the same for the same seed."""
    return random.Random(seed).choices(_PLAIN_WORDS, k=n_tokens)


def render_chat(
    messages: Iterable[Mapping[str, Any]], tools: Any, opens_thinking: bool | None
) -> tuple[str, list[dict[str, Any]]]:
    """(the prompt that the chat template makes, the messages as they were read).

    ``opens_thinking``: True leaves a thinking block open, False closes it, None has no such block. Raises
    ValueError when a message is not one.
    """
    parts: list[str] = []
    read: list[dict[str, Any]] = []
    if tools:
        parts.append(f"<|system|>\ntools: {_text_of(tools)}\n")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError("a message must be an object with a role")
        content = _text_of(message.get("content"))
        read.append({"role": message["role"], "content": content})
        parts.append(f"<|{message['role']}|>\n{content}\n")
    if not read:
        raise ValueError("messages is empty")
    parts.append("<|assistant|>\n")
    if opens_thinking is not None:
        parts.append(OPEN_THINKING if opens_thinking else CLOSED_THINKING)
    return "".join(parts), read


def _text_of(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            str(part.get("text", part)) if isinstance(part, Mapping) else str(part) for part in content
        )
    return str(content)


class TokenIds:
    """Token ids of pieces, both ways; the first ``KNOWN_PIECES_LIMIT`` pieces can be turned back into text."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: dict[int, str] = {}

    def encode(self, pieces: Iterable[str]) -> list[int]:
        """Ids of pieces; equal pieces have equal ids."""
        ids = self._ids
        result = []
        for piece in pieces:
            number = ids.get(piece)
            if number is None:
                number = FIRST_PLAIN_TOKEN + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % (
                    VOCAB_SIZE - FIRST_PLAIN_TOKEN
                )
                while self._pieces.get(number, piece) != piece:
                    number += 1
                if len(ids) < KNOWN_PIECES_LIMIT // 4:
                    ids[piece] = number
                    self._pieces[number] = piece
            result.append(number)
        return result

    def decode(self, numbers: Iterable[int]) -> str:
        """Their text; an id never given out is shown as a replacement character."""
        return "".join(self._pieces.get(number, "\ufffd") for number in numbers)


def block_hashes(tokens: Sequence[str | int], block_tokens: int) -> list[int]:
    """One hash for each full block of a prompt, over everything up to its end."""
    result, chain = [], 0
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        piece = repr(tokens[start : start + block_tokens]).encode("utf-8", "surrogatepass")
        # Two checksums side by side: one alone is short enough for chance to make two prompts alike.
        chain = zlib.crc32(piece, chain & 0xFFFFFFFF) | (zlib.adler32(piece, (chain >> 32) or 1) << 32)
        result.append(chain)
    return result


def seed_of(text: bytes, seed: int) -> int:
    """A seed for everything that a request's content decides."""
    return zlib.crc32(text, seed & 0xFFFFFFFF)
