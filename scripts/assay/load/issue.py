"""Who sends next: the closed loop of N streams, the open loop of arrival times."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Protocol

from assay.load.connection import Connection, State
from assay.load.plan import SharedCounter, WorkerPlan
from assay.load.schedule import Arrivals, arrival_offsets_ns

START_GAP_NS = 50_000
"""The streams of a closed loop start one after the other at 20,000 a second."""
BACKOFF_FIRST_NS = 50_000_000
BACKOFF_LIMIT_NS = 1_000_000_000


class Sender(Protocol):
    """What an issuer needs of the process it runs in."""

    def issue(self, connection: Connection, index: int, measured: bool, t_scheduled_ns: int) -> None: ...
    def give_up(self, index: int, measured: bool, t_scheduled_ns: int, now_ns: int, why: str) -> None: ...
    def new_connection(self) -> Connection: ...


class ClosedLoop:
    """N streams, each sends its next request when its last ended.

    While the load opens (first requests of each stream, ramp), requests come from the opening prompts;
    ``hand_over`` starts the measured phase with everything in flight left as it is.
    """

    def __init__(
        self, plan: WorkerPlan, sender: Sender, counter: SharedCounter, streams: list[Connection]
    ) -> None:
        self._plan, self._sender, self._counter, self._streams = plan, sender, counter, streams
        self._opening_index = itertools.count(plan.process, plan.n_processes)
        self._opened = [0] * len(streams)
        self._place = {id(stream): place for place, stream in enumerate(streams)}
        self._backoff_ns = [0] * len(streams)
        self._later: list[tuple[int, int, bool]] = []  # heap: (when, place, first request of the stream)
        self.is_opening = plan.opening_per_stream > 0 or plan.ramp_s > 0
        self._t_ramped_ns = 0
        self._t_end_ns: int | None = None
        self._exhausted = False
        self.stopped = False

    def start(self, t_start_ns: int) -> None:
        self._t_ramped_ns = t_start_ns + round(self._plan.ramp_s * 1e9)
        if not self.is_opening:
            self._begin(t_start_ns)
        for place, stream in enumerate(self._streams):
            if self._plan.ramp_s > 0:
                share = stream.worker / max(self._plan.n_streams, 1)
                due_ns = t_start_ns + round(self._plan.ramp_s * share * 1e9)
                heapq.heappush(self._later, (due_ns, place, True))
            else:
                # All at once would be a burst that the first answers then show, and not the server.
                due_ns = t_start_ns + stream.worker * START_GAP_NS
                heapq.heappush(self._later, (due_ns, place, True))

    def hand_over(self, now_ns: int) -> None:
        if self.is_opening:
            self.is_opening = False
            self._begin(now_ns)

    def _begin(self, t_ns: int) -> None:
        if self._plan.duration_s is not None:
            self._t_end_ns = t_ns + round(self._plan.duration_s * 1e9)

    def is_opened(self, now_ns: int) -> bool:
        """Has every stream of this process had its opening requests, and is the ramp over?"""
        return now_ns >= self._t_ramped_ns and min(self._opened, default=0) >= max(
            self._plan.opening_per_stream, 0
        )

    def freed(self, connection: Connection, t_ns: int, measured: bool, refused: bool) -> None:
        """The request of this stream ended at ``t_ns``; ``refused`` when there was no connection."""
        place = self._place[id(connection)]
        if not measured:
            self._opened[place] += 1
        if refused and self._plan.duration_s is not None:
            # A server that is gone would otherwise be asked thousands of times a second.
            backoff = min(max(self._backoff_ns[place] * 2, BACKOFF_FIRST_NS), BACKOFF_LIMIT_NS)
            self._backoff_ns[place] = backoff
            heapq.heappush(self._later, (t_ns + backoff, place, False))
        else:
            self._backoff_ns[place] = 0
            self._next(place, t_ns)

    def on_time(self, now_ns: int) -> None:
        while self._later and self._later[0][0] <= now_ns:
            due_ns, place, _ = heapq.heappop(self._later)
            self._next(place, due_ns)

    def next_due_ns(self) -> int | None:
        return self._later[0][0] if self._later else None

    def _next(self, place: int, t_scheduled_ns: int) -> None:
        stream = self._streams[place]
        if self.stopped:
            return
        if self.is_opening:
            self._sender.issue(stream, next(self._opening_index), False, t_scheduled_ns)
            return
        if self._exhausted or (self._t_end_ns is not None and t_scheduled_ns >= self._t_end_ns):
            self._exhausted = True
            return
        index = self._counter.take()
        if self._plan.requests is not None and index >= self._plan.requests:
            self._exhausted = True
            return
        self._sender.issue(stream, index, True, t_scheduled_ns)

    def abandon(self, now_ns: int) -> None:
        """Nothing to record: a stream has nothing due while it waits."""

    def is_done(self, now_ns: int) -> bool:
        """No further request of the measured phase will be issued."""
        if self.stopped or self._exhausted:
            return True
        return self._t_end_ns is not None and now_ns >= self._t_end_ns

    @property
    def t_end_ns(self) -> int | None:
        """When issuing ends by time, if it does."""
        return self._t_end_ns


class OpenLoop:
    """Requests at absolute times of one seeded schedule; this process takes every n-th of it.

    With a cap, arrivals beyond it wait and are sent as slots free, their scheduled time kept. What is still
    waiting when issuing ends by time is recorded as incomplete, never sent.
    """

    def __init__(self, plan: WorkerPlan, sender: Sender, pool: list[Connection]) -> None:
        assert plan.rate_per_s is not None
        self._plan, self._sender = plan, sender
        self._idle = pool
        self._n_busy = 0
        self._waiting: deque[tuple[int, bool, int]] = deque()
        self._offsets = arrival_offsets_ns(
            Arrivals(plan.arrivals),
            plan.rate_per_s,
            plan.seed,
            burstiness=plan.burstiness,
            ramp_s=plan.ramp_s,
        )
        self._position = -1
        self._n_opening = 0
        self._ramp_ns = round(plan.ramp_s * 1e9)
        self._t_start_ns = 0
        self._next_one: tuple[int, int, bool] | None = None  # (when, index, measured)
        self._t_end_ns: int | None = None
        self.is_opening = False  # the schedule itself says what is measured
        self.stopped = False

    def start(self, t_start_ns: int) -> None:
        self._t_start_ns = t_start_ns
        if self._plan.duration_s is not None:
            self._t_end_ns = t_start_ns + self._ramp_ns + round(self._plan.duration_s * 1e9)
        self._advance()

    def _advance(self) -> None:
        """Find the next arrival that is this process's."""
        plan = self._plan
        while True:
            offset_ns = next(self._offsets)
            self._position += 1
            measured = offset_ns >= self._ramp_ns
            if not measured:
                self._n_opening += 1
            index = self._position - self._n_opening if measured else self._position
            due_ns = self._t_start_ns + offset_ns
            past_end = self._t_end_ns is not None and due_ns >= self._t_end_ns
            if past_end or (measured and plan.requests is not None and index >= plan.requests):
                self._next_one = None
                return
            if self._position % plan.n_processes == plan.process:
                self._next_one = (due_ns, index, measured)
                return

    def hand_over(self, now_ns: int) -> None:
        """Nothing to do: the ramp's end is part of the schedule."""

    def is_opened(self, now_ns: int) -> bool:
        return now_ns >= self._t_start_ns + self._ramp_ns

    def on_time(self, now_ns: int) -> None:
        self._take_due(now_ns)
        self._send_waiting()
        if self._waiting and self._t_end_ns is not None and now_ns >= self._t_end_ns:
            self._give_up(now_ns, "never sent: every slot was busy")

    def abandon(self, now_ns: int) -> None:
        """The load ends before its schedule: what was due until now is on record as never sent."""
        self._take_due(now_ns)
        self._give_up(now_ns, "never sent: the load was stopped")

    def _take_due(self, now_ns: int) -> None:
        while self._next_one is not None and self._next_one[0] <= now_ns:
            due_ns, index, measured = self._next_one
            self._waiting.append((index, measured, due_ns))
            self._advance()

    def _give_up(self, now_ns: int, why: str) -> None:
        for index, measured, due_ns in self._waiting:
            self._sender.give_up(index, measured, due_ns, now_ns, why)
        self._waiting.clear()

    def _send_waiting(self) -> None:
        cap = self._plan.in_flight_cap
        while self._waiting and (not cap or self._n_busy < cap) and not self.stopped:
            index, measured, due_ns = self._waiting.popleft()
            connection = self._idle.pop() if self._idle else self._sender.new_connection()
            self._n_busy += 1
            self._sender.issue(connection, index, measured, due_ns)

    def freed(self, connection: Connection, t_ns: int, measured: bool, refused: bool) -> None:
        self._n_busy -= 1
        if connection.state in (State.IDLE, State.CLOSED):
            self._idle.append(connection)
        self._send_waiting()

    def next_due_ns(self) -> int | None:
        return self._next_one[0] if self._next_one is not None else None

    def is_done(self, now_ns: int) -> bool:
        return self.stopped or (self._next_one is None and not self._waiting)

    @property
    def t_end_ns(self) -> int | None:
        return self._t_end_ns


Issuer = ClosedLoop | OpenLoop
