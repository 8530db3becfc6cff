"""A load on a simulated node without clock or sockets: as fast as the scheduler goes, and exact."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from assay.rehearsal.node import Node
from assay.rehearsal.profile import Profile
from assay.rehearsal.recipe import Recipe
from assay.rehearsal.sequence import Sequence


@dataclass(frozen=True)
class Ask:
    """One request of an offline load."""

    n_prompt: int
    n_output: int
    seed: int
    is_random: bool = False
    block_hashes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Served:
    """How a request was served. Simulated seconds."""

    ask: Ask
    t_send_s: float
    t_first_s: float
    t_end_s: float
    n_first_chunk: int
    n_chunks: int

    @property
    def ttft_ms(self) -> float:
        return (self.t_first_s - self.t_send_s) * 1e3

    @property
    def e2e_ms(self) -> float:
        return (self.t_end_s - self.t_send_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """By docs/metrics.md: the tokens of the first event are not in the denominator."""
        left = self.ask.n_output - self.n_first_chunk
        return (self.t_end_s - self.t_first_s) * 1e3 / left if left >= 1 else None


class _Stream:
    __slots__ = ("ask", "n_chunks", "n_first", "t_first_s", "t_send_s")

    def __init__(self, ask: Ask, t_send_s: float) -> None:
        self.ask, self.t_send_s = ask, t_send_s
        self.t_first_s: float | None = None
        self.n_first = self.n_chunks = 0


class ClosedLoop:
    """``concurrency`` streams that each send their next request when the last one ended."""

    def __init__(self, profile: Profile, recipe: Recipe) -> None:
        self.node = Node(profile, recipe, self._deliver)
        self.served: list[Served] = []
        self._asks: Items[Ask] = ()
        self._next = 0
        self._limit: int | None = None
        self._until_s: float | None = None

    def run(
        self,
        asks: Items[Ask],
        concurrency: int,
        *,
        requests: int | None = None,
        duration_s: float | None = None,
    ) -> list[Served]:
        """Serve ``requests`` (all asks when None), or cycle the asks for ``duration_s``; then drain.

        Raises RuntimeError when the node gets stuck with requests unserved.
        """
        self.served = []
        self._asks, self._next = asks, 0
        self._limit = requests if duration_s is not None else (requests or len(asks))
        start_s = self.node.now_s
        self._until_s = None if duration_s is None else start_s + duration_s
        for _ in range(concurrency):
            self._send(start_s)
        while (time := self.node.next_time_s()) is not None:
            before = (self.node.now_s, len(self.served))
            self.node.advance(time)
            if (self.node.now_s, len(self.served)) == before and self.node.next_time_s() == time:
                break
        if len(self.served) < self._next:
            raise RuntimeError(f"stuck: {self._next - len(self.served)} requests were never served")
        return self.served

    def _send(self, t_s: float) -> None:
        if self._limit is not None and self._next >= self._limit:
            return
        if self._until_s is not None and t_s >= self._until_s:
            return
        ask = self._asks[self._next % len(self._asks)]
        self._next += 1
        sequence = Sequence(
            ask.n_prompt,
            ask.n_output,
            seed=ask.seed,
            is_random=ask.is_random,
            block_hashes=list(ask.block_hashes),
            tag=_Stream(ask, t_s),
        )
        self.node.submit(sequence, t_s)

    def _deliver(self, sequence: Sequence, n_new: int, t_s: float, done: bool) -> None:
        stream: _Stream = sequence.tag
        stream.n_chunks += 1
        if stream.t_first_s is None:
            stream.t_first_s, stream.n_first = t_s, n_new
        if done:
            first_s = stream.t_first_s
            self.served.append(
                Served(stream.ask, stream.t_send_s, first_s, t_s, stream.n_first, stream.n_chunks)
            )
            self._send(t_s)


def output_tok_s(served: Items[Served]) -> float:
    """Output tokens over the time from the first send to the last end, drain included."""
    elapsed_s = max(item.t_end_s for item in served) - min(item.t_send_s for item in served)
    return sum(item.ask.n_output for item in served) / elapsed_s


def percentile(values: Items[float | None], q: float) -> float:
    """Linear percentile over the values that are known. Raises ValueError when none is."""
    known = [value for value in values if value is not None]
    if not known:
        raise ValueError("no value")
    return float(np.percentile(known, q))
