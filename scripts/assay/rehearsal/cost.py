"""How long one forward pass takes, and how many draft tokens survive it.

A step is bound by the host or by the GPU, whichever is longer. The GPU part is a floor (weights that every
step reads), the experts that the step's tokens touch, a cost per token, and attention over contexts:

    n        = decoded + draft tokens of the batch
    gpu      = fixed + moe * (1 - exp(-(n + prompt tokens) / moe_tokens)) + token * n
             + prefill * prompt tokens + prefill_context * sum(prompt tokens * tokens before them)
             + decode_context * sum(context of each sequence * tokens of it in the step)
             + drafting
    step     = max(host, gpu)

Verification grows with the batch because each sequence brings its draft tokens into n: that is what makes
speculation pay most at concurrency one, and it is nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from assay.rehearsal.profile import Profile


@dataclass(slots=True)
class Batch:
    """What one step computes, summed over its sequences."""

    n_decoding: int = 0
    decode_tokens: int = 0
    """Tokens decoded or verified: 1 + draft length of each decoding sequence."""
    decode_context: int = 0
    """Sum over decoding sequences of context tokens * tokens in the step."""
    prefill_tokens: int = 0
    prefill_context: float = 0.0
    """Sum over prompt tokens of the tokens before them."""
    prefill_requests: int = 0


def step_s(profile: Profile, batch: Batch, draft_tokens: int, eager: bool) -> float:
    """Seconds of one step."""
    p = profile
    n_all = batch.decode_tokens + batch.prefill_tokens
    gpu = p.step_fixed_s + p.moe_load_s * -math.expm1(-n_all / p.moe_tokens)
    gpu += p.token_s * batch.decode_tokens + p.decode_context_s * batch.decode_context
    if batch.prefill_tokens:
        prompt = p.prefill_token_s * batch.prefill_tokens + p.prefill_context_s * batch.prefill_context
        prompt += p.prefill_request_s * batch.prefill_requests
        if eager:
            prompt = prompt * p.eager_prefill_factor + p.eager_prefill_request_s * batch.prefill_requests
        if draft_tokens:
            prompt *= 1.0 + p.draft_prefill_share
        gpu += prompt + p.mixed_step_s
    if draft_tokens and batch.n_decoding:
        gpu += draft_tokens * (p.draft_fixed_s + p.draft_token_s * batch.n_decoding)
    return max(gpu, p.host_step_eager_s if eager else p.host_step_s)


def shifted(acceptance: tuple[float, ...], shift: float) -> tuple[float, ...]:
    """Acceptance probabilities of one request: the log-odds of each moved by ``shift``."""
    if not shift:
        return acceptance
    result = []
    for probability in acceptance:
        if 0.0 < probability < 1.0:
            odds = math.log(probability / (1.0 - probability)) + shift
            probability = 1.0 / (1.0 + math.exp(-odds))
        result.append(probability)
    return tuple(result)
