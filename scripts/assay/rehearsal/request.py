"""From a request's body to what the scheduler must do and what the answer will be."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from assay.rehearsal import answers, tokens
from assay.rehearsal.faults import FaultBook
from assay.rehearsal.profile import Profile
from assay.rehearsal.recipe import Recipe
from assay.vocab import RehearsalFault as Kind

MAX_CHOICES = 1
CONTROL = "control"
"""Neither load nor a gate task: somebody asks how many tokens a chat has."""
_decode = msgspec.json.Decoder().decode


class ApiError(Exception):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass
class Job:
    """One accepted request: what it costs, and the whole answer, token by token."""

    number: int
    is_chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    n_prompt: int
    is_random: bool
    block_hashes: list[int]
    seed: int
    pieces: list[str]
    """The text of each output token, reasoning first."""
    n_reasoning: int
    finish_reason: str
    kind: str | None
    """The gate's kind, None for load; a prompt of no gate that is not streamed is CONTROL."""
    calls: list[tuple[int, str]] = field(default_factory=list)
    """(index of the piece where the call's arguments begin, function name)."""
    cut_after: int | None = None
    usage_offset: int = 0

    @property
    def n_output(self) -> int:
        return len(self.pieces)


@dataclass
class Prompt:
    """A prompt as read: its tokens, and the last message's text."""

    tokens: list[str] | list[int]
    is_random: bool
    text: str
    seed_bytes: bytes

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)


class Reader:
    """Reads the bodies for one model under one recipe."""

    def __init__(
        self, profile: Profile, recipe: Recipe, served_name: str, seed: int, book: FaultBook
    ) -> None:
        self._profile, self._recipe, self._served_name = profile, recipe, served_name
        self._seed, self._book = seed, book
        self._n = 0
        ignored = book.find(Kind.THINKING_IGNORED)
        self._thinking_channel = str(ignored.values["channel"]) if ignored else None

    def object_of(self, data: bytes) -> dict[str, Any]:
        """The JSON object of a body. Raises ApiError."""
        try:
            body = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, f"not JSON: {error}") from error
        if not isinstance(body, dict):
            raise ApiError(400, "the body must be an object")
        return body

    def thinking(self, body: Mapping[str, Any]) -> bool | None:
        """Does the template open a thinking block (True), close it (False), or have none (None)?"""
        if self._thinking_channel is not None:
            return True
        kwargs = body.get("chat_template_kwargs")
        asked = kwargs.get("enable_thinking") if isinstance(kwargs, Mapping) else None
        if isinstance(asked, bool):
            return asked
        return True if self._profile.thinks_by_default else None

    def chat_pieces(self, body: Mapping[str, Any]) -> tuple[list[str], str]:
        """(tokens of the rendered chat as text, text of its last message). Raises ApiError."""
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise ApiError(400, "messages must be a list")
        try:
            text, read = tokens.render_chat(messages, body.get("tools"), self.thinking(body))
        except ValueError as error:
            raise ApiError(400, str(error)) from error
        return tokens.split(text), read[-1]["content"]

    def job(self, data: bytes, is_chat: bool) -> Job:
        """Read one completion request. Raises ApiError with the status a server would give."""
        body = self.object_of(data)
        if body.get("model") != self._served_name:
            raise ApiError(404, f"The model `{str(body.get('model'))[:100]}` does not exist.")
        if body.get("n", 1) != MAX_CHOICES:
            raise ApiError(400, "n must be 1")
        prompt = self._prompt(body, is_chat)
        room = self._recipe.max_model_len - prompt.n_tokens
        limit = self._limit(body, prompt, room)
        self._n += 1
        reply = answers.reply_to(prompt.text, body.get("response_format")) if is_chat else answers.Reply()
        if reply.calls and body.get("tool_choice", "auto") == "none":
            reply = answers.Reply("I may not call a function.", kind=reply.kind)
        seed = tokens.seed_of(prompt.seed_bytes, self._seed)
        pieces, n_reasoning, calls, finish = self._answer(body, reply, seed, limit, is_chat)
        stream_options = body.get("stream_options")
        options = stream_options if isinstance(stream_options, Mapping) else {}
        return Job(
            number=self._n,
            is_chat=is_chat,
            stream=body.get("stream") is True,
            include_usage=options.get("include_usage") is True,
            continuous_usage=options.get("continuous_usage_stats") is True,
            n_prompt=prompt.n_tokens,
            is_random=prompt.is_random,
            block_hashes=self._hashes(prompt, pieces),
            seed=seed,
            pieces=pieces,
            n_reasoning=n_reasoning,
            finish_reason=finish,
            kind=reply.kind or (None if body.get("stream") is True else CONTROL),
            calls=calls,
        )

    def _hashes(self, prompt: Prompt, pieces: list[str]) -> list[int]:
        """Of prompt and answer: the next turn of a conversation begins with both."""
        if not self._recipe.prefix_caching:
            return []
        return tokens.block_hashes([*prompt.tokens, *pieces], self._profile.kv_block_tokens)

    def _limit(self, body: Mapping[str, Any], prompt: Prompt, room: int) -> int:
        asked = body.get("max_completion_tokens", body.get("max_tokens"))
        if asked is not None and (type(asked) is not int or asked < 1):
            raise ApiError(400, "max_tokens must be a whole number above 0")
        if room < 1 or (asked is not None and asked > room):
            raise ApiError(
                400,
                f"This model's maximum context length is {self._recipe.max_model_len} tokens. However, you "
                f"requested {asked or 0} output tokens and your prompt contains {prompt.n_tokens} input tokens.",
            )
        return asked if asked is not None else room

    def _prompt(self, body: Mapping[str, Any], is_chat: bool) -> Prompt:
        if is_chat:
            pieces, text = self.chat_pieces(body)
            return Prompt(pieces, False, text, text[-4_000:].encode("utf-8", "surrogatepass"))
        value = body.get("prompt")
        if isinstance(value, str) and value:
            return Prompt(tokens.split(value), False, value, value[-4_000:].encode("utf-8", "surrogatepass"))
        if isinstance(value, list) and value and all(type(number) is int for number in value):
            return Prompt(value, True, "", repr(value[:64]).encode())
        raise ApiError(400, "prompt must be a text or a list of token ids")

    # ------------------------------------------------------------------ the answer

    def _answer(
        self, body: Mapping[str, Any], reply: answers.Reply, seed: int, limit: int, is_chat: bool
    ) -> tuple[list[str], int, list[tuple[int, str]], str]:
        """(pieces, how many are reasoning, calls, finish reason): the answer cut at the limit."""
        draw = random.Random(seed)
        p = self._profile
        reasoning: list[str] = []
        in_content: list[str] = []
        if is_chat and self.thinking(body):
            n = max(1, round(draw.lognormvariate(math.log(p.reasoning_median_tokens), 0.5)))
            if self._thinking_channel == "content":
                in_content = ["<", "think", ">", *tokens.draw_text(n, seed + 1), "<", "/", "think", ">", "\n"]
            else:
                reasoning = tokens.draw_text(n, seed + 1)
        calls: list[tuple[int, str]] = []
        finish = "stop"
        if reply.calls:
            answer = list(in_content)
            for call in reply.calls:
                calls.append((len(reasoning) + len(answer), str(call["name"])))
                answer += tokens.split(json.dumps(call["arguments"], ensure_ascii=False))
            finish = "tool_calls"
        elif reply.content is not None:
            answer = in_content + tokens.split(reply.content)
            if self._book.strikes(Kind.INCOMPLETE_JSON, reply.kind):
                answer = answer[: max(len(answer) // 2, 1)]
        else:
            n = max(1, round(draw.lognormvariate(math.log(p.answer_median_tokens), p.answer_sigma)))
            answer = in_content + tokens.draw_text(min(n, limit), seed + 2)
            if n > limit:
                finish = "length"
        pieces = reasoning + answer
        if body.get("ignore_eos") is True and len(pieces) < limit:
            pieces += tokens.draw_text(limit - len(pieces), seed + 3)
            finish = "length"
        elif body.get("ignore_eos") is True:
            finish = "length"
        if len(pieces) > limit:
            pieces, finish = pieces[:limit], "length"
            calls = [call for call in calls if call[0] < limit]
        if not pieces:
            pieces = [" "]
        return pieces, min(len(reasoning), len(pieces)), calls, finish
