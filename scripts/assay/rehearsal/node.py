"""The simulated node: a router over replicas, or prefill engines that hand over to decode engines."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from assay.rehearsal.profile import Profile
from assay.rehearsal.recipe import Recipe
from assay.rehearsal.replica import Replica, Role
from assay.rehearsal.sequence import Sequence

Deliver = Callable[[Sequence, int, float, bool], None]
"""(sequence, new tokens, simulated time in s, has it ended)"""


class Node:
    """Replicas in simulated time. ``advance`` runs them up to a time and delivers what comes out on the way.

    Deterministic: the same sequences at the same times give the same deliveries. The router sends a request
    to the replica with the fewest; of equal ones to the next in turn.
    """

    def __init__(self, profile: Profile, recipe: Recipe, deliver: Deliver) -> None:
        self.profile, self.recipe, self.deliver = profile, recipe, deliver
        role = Role.DECODE if recipe.prefill_replicas else Role.BOTH
        self.replicas = [Replica(profile, recipe, role) for _ in range(recipe.replicas)]
        self.prefillers = [Replica(profile, recipe, Role.PREFILL) for _ in range(recipe.prefill_replicas)]
        self.now_s = 0.0
        self._handoffs: list[tuple[float, int, Sequence]] = []
        self._order = count()
        self._turn = {id(self.replicas): 0, id(self.prefillers): 0}
        self._place: dict[int, Replica] = {}

    @property
    def all_replicas(self) -> list[Replica]:
        return [*self.prefillers, *self.replicas]

    @property
    def n_running(self) -> int:
        return sum(len(replica.running) for replica in self.all_replicas)

    @property
    def n_handed_over(self) -> int:
        """Requests whose prompt is read and whose KV is on its way to a decode engine."""
        return len(self._handoffs)

    @property
    def n_waiting(self) -> int:
        return sum(len(replica.waiting) for replica in self.all_replicas) + self.n_handed_over

    def fits(self, sequence: Sequence) -> bool:
        """Could the sequence ever be served: context ceiling and KV capacity?"""
        total = sequence.n_prompt + sequence.n_output
        capacity = min(replica.kv_capacity_tokens for replica in self.all_replicas)
        return total <= self.recipe.max_model_len and total <= capacity

    def submit(self, sequence: Sequence, t_s: float) -> None:
        """A request arrives at ``t_s``, which is not before what was advanced to."""
        t_s = max(t_s, self.now_s)
        sequence.t_arrival_s = t_s
        sequence.t_ready_s = t_s + self.profile.http_s
        self._route(self.prefillers or self.replicas, sequence)

    def cancel(self, sequence: Sequence) -> None:
        """The client is gone."""
        replica = self._place.pop(id(sequence), None)
        if replica is not None:
            replica.remove(sequence)
        self._handoffs = [item for item in self._handoffs if item[2] is not sequence]
        heapq.heapify(self._handoffs)

    def _route(self, group: list[Replica], sequence: Sequence) -> None:
        turn = self._turn[id(group)]
        n = len(group)
        best = min(range(n), key=lambda place: (group[place].load, (place - turn) % n))
        self._turn[id(group)] = (best + 1) % n
        group[best].add(sequence)
        self._place[id(sequence)] = group[best]

    # ------------------------------------------------------------------ time

    def next_time_s(self) -> float | None:
        """When something happens next by itself; None when nothing will."""
        times = [time for time, _, _ in self._handoffs[:1]]
        for replica in self.all_replicas:
            time = replica.t_end_s if replica.t_end_s is not None else replica.next_start_s()
            if time is not None:
                times.append(time)
        return min(times, default=None)

    def advance(self, t_s: float) -> None:
        """Everything that happens up to and including ``t_s``."""
        blocked: set[int] = set()
        while True:
            time, replica = self._next_event(blocked)
            if time is None or time > t_s:
                break
            self.now_s = max(self.now_s, time)
            if replica is None:
                self._take_handoff()
                blocked.clear()
            elif replica.t_end_s is None:
                # A queue that cannot move (no KV block is free) waits for another event.
                if not replica.start_step(time):
                    blocked.add(id(replica))
            else:
                self._end(replica, time)
                blocked.clear()
        self.now_s = max(self.now_s, t_s)

    def _next_event(self, blocked: set[int]) -> tuple[float | None, Replica | None]:
        best: float | None = self._handoffs[0][0] if self._handoffs else None
        who: Replica | None = None
        # Of equal times, steps that end come first: what they free is there for steps that begin.
        for is_start in (False, True):
            for replica in self.all_replicas:
                if (replica.t_end_s is None) is not is_start or id(replica) in blocked:
                    continue
                time = replica.next_start_s() if is_start else replica.t_end_s
                if time is not None and (best is None or time < best):
                    best, who = time, replica
        return best, who

    def _end(self, replica: Replica, t_s: float) -> None:
        for sequence, n_new, done in replica.end_step():
            if replica.role is Role.PREFILL:
                p = self.profile
                due_s = t_s + p.handoff_s + p.handoff_token_s * sequence.n_prompt
                heapq.heappush(self._handoffs, (due_s, next(self._order), sequence))
                continue
            if sequence.t_first_s is None:
                sequence.t_first_s = t_s
            if done:
                self._place.pop(id(sequence), None)
            self.deliver(sequence, n_new, t_s, done)

    def _take_handoff(self) -> None:
        time, _, sequence = heapq.heappop(self._handoffs)
        sequence.t_ready_s = time
        sequence.is_decoding = True
        sequence.n_computed = sequence.n_prompt - 1
        self._route(self.replicas, sequence)
