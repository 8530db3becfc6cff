"""Continuous batching on one replica, in simulated time.

As vLLM's scheduler does it: each step first serves what runs (a decoding sequence takes one token and its
drafts, a prefilling one what the budget leaves), then admits from the queue while slots, budget and KV
blocks last. When a running sequence finds no block, the one admitted last is thrown back to the head of the
queue and computes everything again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from assay.rehearsal.cost import Batch, shifted, step_s
from assay.rehearsal.kv import KvPool
from assay.rehearsal.profile import Profile
from assay.rehearsal.recipe import Recipe
from assay.rehearsal.sequence import Sequence

Outcome = tuple[Sequence, int, bool]
"""A sequence, how many tokens it got, and whether it has ended (on a prefill engine: is prefilled)."""


class Role(StrEnum):
    """What a replica does."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass
class Counts:
    """What a replica has done since its start."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    stalls: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """Accepted draft tokens by their place in the draft."""


class Replica:
    """One engine. ``start_step`` and ``end_step`` alternate; in between it is busy until ``t_end_s``."""

    def __init__(self, profile: Profile, recipe: Recipe, role: Role = Role.BOTH) -> None:
        self.profile, self.recipe, self.role = profile, recipe, role
        self.draft_tokens = 0 if role is Role.PREFILL else recipe.draft_tokens
        self.eager = recipe.prefill_eager if role is Role.PREFILL else recipe.eager
        capacity = recipe.kv_capacity_tokens
        if capacity is None:
            capacity = profile.kv_capacity_tokens(
                recipe.gpus_per_replica, recipe.memory_target, self.draft_tokens > 0
            )
        self.kv = KvPool(capacity // profile.kv_block_tokens, recipe.prefix_caching)
        self.slot_limit = recipe.max_num_seqs
        self.slowness = 1.0
        self.stall_s = 0.0
        """What a step of a shape not seen before takes longer, for compiling it."""
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.counts = Counts(accepted_at=[0] * self.draft_tokens)
        self.t_end_s: float | None = None
        self.t_free_s = 0.0
        self._shapes: set[int] = set()
        self._work: list[tuple[Sequence, int]] = []

    @property
    def kv_capacity_tokens(self) -> int:
        return self.kv.n_blocks * self.profile.kv_block_tokens

    @property
    def load(self) -> int:
        """Requests it has, running or waiting."""
        return len(self.running) + len(self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence whose ``t_ready_s`` is not before those queued earlier."""
        accepted = self.profile.acceptance_random if sequence.is_random else self.profile.acceptance_text
        if self.draft_tokens and accepted:
            accepted += (accepted[-1],) * (self.draft_tokens - len(accepted))
            shift = sequence.draws.gauss(0.0, self.profile.acceptance_spread)
            sequence.acceptance = shifted(accepted[: self.draft_tokens], shift)
        self.waiting.append(sequence)

    def next_start_s(self) -> float | None:
        """When an idle replica can begin its next step; None when it has nothing to do."""
        if self.t_end_s is not None:
            return None
        if self.running:
            return self.t_free_s
        return max(self.t_free_s, self.waiting[0].t_ready_s) if self.waiting else None

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence whose client is gone. In a step that runs now its work is still done."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._free(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    # ------------------------------------------------------------------ memory

    def _grow(self, sequence: Sequence, n_tokens: int) -> bool:
        """Hold blocks for ``n_tokens`` of the sequence."""
        size = self.profile.kv_block_tokens
        missing = -(-n_tokens // size) - len(sequence.held) - sequence.plain_blocks
        if missing > 0:
            if not self.kv.take(missing):
                return False
            sequence.plain_blocks += missing
        return True

    def _free(self, sequence: Sequence) -> None:
        self.kv.release(sequence.held)
        self.kv.give(sequence.plain_blocks)
        sequence.held, sequence.plain_blocks = [], 0
        sequence.n_computed = 0

    def _preempt(self) -> Sequence:
        """Throw the sequence that was admitted last back to the head of the queue."""
        victim = self.running.pop()
        self._free(victim)
        victim.is_decoding = False
        victim.n_preempted += 1
        self.counts.preemptions += 1
        self.waiting.appendleft(victim)
        return victim

    def _reuse(self, sequence: Sequence) -> None:
        """Take the leading blocks of the prompt from the prefix cache; the last token is always computed."""
        if not self.kv.caching or sequence.n_computed:
            return
        size = self.profile.kv_block_tokens
        found = self.kv.match(sequence.block_hashes, (sequence.n_prompt - 1) // size)
        sequence.held = sequence.block_hashes[:found]
        sequence.n_computed = found * size
        if sequence.n_preempted == 0:
            sequence.n_cached = found * size
            self.counts.prefix_queries += sequence.n_prompt
            self.counts.prefix_hits += found * size

    def _publish(self, sequence: Sequence) -> None:
        """Full blocks just computed, of prompt and answer, become readable for others."""
        full = sequence.n_computed // self.profile.kv_block_tokens
        held, hashes = sequence.held, sequence.block_hashes
        while len(held) < min(full, len(hashes)) and self.kv.publish(hashes[len(held)]):
            held.append(hashes[len(held)])
            sequence.plain_blocks -= 1

    # ------------------------------------------------------------------ steps

    def start_step(self, t_s: float) -> bool:
        """Put a step together at ``t_s``; False when nothing could be scheduled."""
        batch, work = Batch(), self._work
        work.clear()
        budget = self.recipe.max_num_batched_tokens
        n_draft = self.draft_tokens
        index, n_preempted = 0, 0
        running = self.running
        while index < len(running) and budget > 0:
            sequence = running[index]
            if sequence.is_decoding:
                # No draft beyond the end of the answer: nor memory for it.
                n = min(1 + n_draft, sequence.n_output - sequence.n_generated, budget)
            else:
                n = min(sequence.n_known - sequence.n_computed, budget)
            while not self._grow(sequence, sequence.n_computed + n):
                n_preempted += 1
                if self._preempt() is sequence:
                    break
            else:
                self._schedule(batch, sequence, n)
                budget -= n
                index += 1
                continue
            break  # it was thrown out itself: nothing after it is left
        waiting = self.waiting
        while waiting and not n_preempted and budget > 0 and len(running) < self.slot_limit:
            sequence = waiting[0]
            if sequence.t_ready_s > t_s:
                break
            self._reuse(sequence)
            n = min(max(sequence.n_known - sequence.n_computed, 1), budget)
            if not self._grow(sequence, sequence.n_computed + n):
                self._undo_reuse(sequence)
                break
            waiting.popleft()
            running.append(sequence)
            self._schedule(batch, sequence, n)
            budget -= n
        if not work:
            return False
        duration_s = step_s(self.profile, batch, n_draft, self.eager) * self.slowness
        if self.stall_s:
            shape = max(batch.decode_tokens - 1, 0).bit_length() * 2 + (batch.prefill_tokens > 0)
            if shape not in self._shapes:
                self._shapes.add(shape)
                self.counts.stalls += 1
                duration_s += self.stall_s
        self.t_end_s = t_s + duration_s
        return True

    def _undo_reuse(self, sequence: Sequence) -> None:
        if sequence.n_preempted == 0 and self.kv.caching and not sequence.is_decoding:
            self.counts.prefix_queries -= sequence.n_prompt
            self.counts.prefix_hits -= sequence.n_cached
        if not sequence.is_decoding:
            self._free(sequence)

    def _schedule(self, batch: Batch, sequence: Sequence, n: int) -> None:
        computed = sequence.n_computed
        if sequence.is_decoding:
            batch.n_decoding += 1
            batch.decode_tokens += n
            batch.decode_context += n * computed
        else:
            batch.prefill_tokens += n
            batch.prefill_context += n * computed + n * (n - 1) / 2
            batch.prefill_requests += 1
        self._work.append((sequence, n))

    def end_step(self) -> list[Outcome]:
        """Finish the step that ends at ``t_end_s``: what each of its sequences got."""
        assert self.t_end_s is not None
        self.t_free_s, self.t_end_s = self.t_end_s, None
        outcomes: list[Outcome] = []
        counts = self.counts
        counts.steps += 1
        for sequence, n in self._work:
            if sequence.plain_blocks == 0 and not sequence.held:
                continue  # thrown out or given up meanwhile
            if sequence.is_decoding:
                n_new = self._verify(sequence, n)
                sequence.n_computed += n_new
                if sequence.block_hashes:
                    self._publish(sequence)
            else:
                sequence.n_computed += n
                if sequence.block_hashes:
                    self._publish(sequence)
                if sequence.n_computed < sequence.n_known:
                    continue
                if sequence.n_preempted == 0:
                    counts.prompt_tokens += sequence.n_prompt
                sequence.is_decoding = True
                n_new = 1
            if self.role is Role.PREFILL:
                done = True
            else:
                sequence.n_generated += n_new
                sequence.n_known += n_new
                counts.generated_tokens += n_new
                done = sequence.n_generated >= sequence.n_output
            if done:
                self._free(sequence)
            outcomes.append((sequence, n_new, done))
        if outcomes and any(done for _, _, done in outcomes):
            ended = {id(sequence) for sequence, _, done in outcomes if done}
            self.running = [sequence for sequence in self.running if id(sequence) not in ended]
        return outcomes

    def _verify(self, sequence: Sequence, n: int) -> int:
        """Tokens that a decoding sequence gains: one, and the drafts accepted before the first wrong one."""
        if n <= 1:
            return 1
        counts, draw = self.counts, sequence.draws.random
        accepted = 0
        for probability in sequence.acceptance[: n - 1]:
            if draw() >= probability:
                break
            counts.accepted_at[accepted] += 1
            accepted += 1
        counts.drafts += 1
        counts.draft_tokens += n - 1
        counts.accepted_tokens += accepted
        sequence.n_steps += 1
        sequence.n_accepted += accepted
        return min(1 + accepted, sequence.n_output - sequence.n_generated)
