"""Counting output tokens where the server sent no usage: with a tokenizer file, or the server's own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay.errors import BadInput

if TYPE_CHECKING:
    import httpx

ANSWER_LIMIT_S = 10.0
COUNT_LIMIT_S = 300.0


class TokenCounter(Protocol):
    """Counts the tokens of an answer."""

    def count(self, texts: tuple[str, str]) -> int | None:
        """Tokens of (reasoning, answer), or None when it cannot be known."""
        ...


class FileCounter:
    """A ``tokenizer.json``, without special tokens."""

    def __init__(self, path: Path) -> None:
        """Raises BadInput when the file is no tokenizer."""
        import tokenizers

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise BadInput(f"not a tokenizer: {error}", where=path, key="tokenizer") from error

    def count(self, texts: tuple[str, str]) -> int | None:
        return sum(len(self._tokenizer.encode(text, add_special_tokens=False).ids) for text in texts if text)


class ServerCounter:
    """The server's ``/tokenize``, asked after the load. vLLM, SGLang and llama.cpp have one.

    The first refusal, or COUNT_LIMIT_S after the first question, ends the asking: ``why`` then says what it was.
    """

    def __init__(self, client: httpx.Client, url: str, model: str) -> None:
        self._client, self._url, self._model = client, url, model
        self.why: str | None = None
        self._t_end_s: float | None = None

    def count(self, texts: tuple[str, str]) -> int | None:
        counts = [self._one(text) for text in texts if text]
        return None if None in counts else sum(count for count in counts if count is not None)

    def _one(self, text: str) -> int | None:
        if self.why is not None:
            return None
        import httpx

        from assay.answer import ask

        now_s = time.monotonic()
        self._t_end_s = self._t_end_s or now_s + COUNT_LIMIT_S
        if now_s >= self._t_end_s:
            self.why = f"/tokenize: not all was counted in {COUNT_LIMIT_S:g} s"
            return None
        # vLLM and SGLang read `prompt`, llama.cpp reads `content`; each ignores the other's keys.
        body = {
            "model": self._model,
            "prompt": text,
            "content": text,
            "add_special_tokens": False,
            "add_special": False,
        }
        try:
            limit_s = min(ANSWER_LIMIT_S, self._t_end_s - now_s)
            response = ask(self._client, self._url, limit_s, json=body)
            value: Any = response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            self.why = f"/tokenize: {type(error).__name__}"
            return None
        if not isinstance(value, dict):
            self.why = f"/tokenize: HTTP status {response.status_code}"
            return None
        tokens, count = value.get("tokens"), value.get("count")
        if type(count) is int and count >= 0:
            return count
        if isinstance(tokens, list):
            return len(tokens)
        self.why = "/tokenize: neither count nor tokens in the answer"
        return None
