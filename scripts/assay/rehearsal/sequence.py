"""One request as the scheduler sees it: lengths, progress, what it holds."""

from __future__ import annotations

import random
from typing import Any


class Sequence:
    """A request of ``n_prompt`` tokens that will end after ``n_output`` tokens.

    ``n_known`` tokens exist (prompt and generated), ``n_computed`` of them are in the KV cache. ``tag`` is
    the caller's.
    """

    __slots__ = (
        "acceptance",
        "block_hashes",
        "draws",
        "held",
        "is_decoding",
        "is_random",
        "n_accepted",
        "n_cached",
        "n_computed",
        "n_generated",
        "n_known",
        "n_output",
        "n_preempted",
        "n_prompt",
        "n_steps",
        "plain_blocks",
        "seed",
        "t_arrival_s",
        "t_first_s",
        "t_ready_s",
        "tag",
    )

    def __init__(
        self,
        n_prompt: int,
        n_output: int,
        *,
        seed: int,
        is_random: bool = False,
        block_hashes: list[int] | None = None,
        tag: Any = None,
    ) -> None:
        if n_prompt < 1 or n_output < 1:
            raise ValueError("a sequence has at least one prompt token and one output token")
        self.n_prompt, self.n_output, self.seed, self.is_random = n_prompt, n_output, seed, is_random
        self.block_hashes = block_hashes or []
        self.tag = tag
        self.draws = random.Random(seed)
        self.acceptance: tuple[float, ...] = ()
        self.t_arrival_s = self.t_ready_s = 0.0
        self.t_first_s: float | None = None
        self.n_known = n_prompt
        self.n_computed = self.n_generated = self.n_cached = 0
        self.is_decoding = False
        self.held: list[int] = []
        """Published blocks in use, the first ones of prompt and answer."""
        self.plain_blocks = 0
        self.n_steps = self.n_accepted = self.n_preempted = 0
