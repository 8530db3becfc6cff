"""A node on the wall clock: one timer drives the scheduler, and what it delivers is sent."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from assay.rehearsal.clock import SimulatedClock, WakeTimer
from assay.rehearsal.faults import FaultBook
from assay.rehearsal.node import Node
from assay.rehearsal.profile import Profile
from assay.rehearsal.recipe import Recipe
from assay.rehearsal.request import Job
from assay.rehearsal.sequence import Sequence
from assay.rehearsal.stream import EventStream, whole_answer
from assay.vocab import RehearsalFault as Kind

CRASH_STATUS = 1
MIN_SLEEP_NS = 50_000
"""Between two wakes: what is due earlier is done together, which a late process needs most."""


class Client(Protocol):
    """The connection that asked."""

    def send(self, data: bytes) -> None: ...
    def answer_ended(self) -> None: ...
    def send_json(self, status: int, value: Any) -> None: ...
    def cut(self) -> None: ...


class Ticket:
    """One request in flight."""

    __slots__ = ("client", "job", "n_sent", "sent", "sequence", "stream", "t_arrival_ns")

    def __init__(self, job: Job, client: Client, stream: EventStream | None, t_arrival_ns: int) -> None:
        self.job, self.client, self.stream = job, client, stream
        self.t_arrival_ns = t_arrival_ns
        self.n_sent = 0
        self.sent: list[tuple[float, int, int]] = []
        self.sequence: Sequence | None = None


class LiveNode:
    """Runs a node in simulated time that follows the wall clock ``scale`` times as fast.

    Events leave at the wall time of their simulated time. When this process is late, they leave late; by how
    much is kept (``status``), since a late rehearsal measures this machine and not the model.
    """

    def __init__(
        self,
        profile: Profile,
        recipe: Recipe,
        book: FaultBook,
        *,
        served_name: str,
        scale: float,
        event_log: TextIO | None = None,
        crash: Callable[[list[str]], None] | None = None,
    ) -> None:
        self.node = Node(book.alter(profile), recipe, self._deliver)
        book.prepare(self.node)
        self.book, self.served_name = book, served_name
        self.clock, self.timer = SimulatedClock(scale), WakeTimer()
        self.finished = {"stop": 0, "length": 0, "tool_calls": 0}
        self.is_hung = False
        self._crash = crash or die
        self._log = event_log
        self._armed_s: float | None = None
        self._created = int(time.time())
        self.n_events = self.n_wakes = 0
        self.late_max_s = self.late_total_s = 0.0

    # ------------------------------------------------------------------ requests

    def take(self, job: Job, client: Client, t_arrival_ns: int) -> Ticket | None:
        """Accept a request that began to arrive at ``t_arrival_ns``; None when it was answered at once."""
        book = self.book
        book.arrives(job.kind)
        t_s = self.clock.seconds_at(t_arrival_ns)
        self._check_crash(t_s)
        if book.strikes(Kind.HTTP_500, job.kind):
            book.ends(job.kind)
            client.send_json(500, error_body(500, "Internal Server Error"))
            return None
        if book.strikes(Kind.HANG, job.kind):
            self.is_hung = True
        if (cut := book.strikes(Kind.STREAM_CUT, job.kind)) is not None:
            job.cut_after = int(cut["after_tokens"])
        if (wrong := book.strikes(Kind.WRONG_USAGE, job.kind)) is not None:
            job.usage_offset = int(wrong["offset"])
        sequence = Sequence(
            job.n_prompt, job.n_output, seed=job.seed, is_random=job.is_random, block_hashes=job.block_hashes
        )
        if not self.node.fits(sequence):
            book.ends(job.kind)
            client.send_json(400, error_body(400, "the request is longer than the KV cache or the context"))
            return None
        stream = EventStream(job, self.served_name, self._created) if job.stream else None
        ticket = Ticket(job, client, stream, t_arrival_ns)
        sequence.tag, ticket.sequence = ticket, sequence
        self.node.submit(sequence, t_s)
        self.rearm()
        return ticket

    def give_up(self, ticket: Ticket) -> None:
        """The client of a request is gone."""
        if ticket.sequence is not None:
            self.node.cancel(ticket.sequence)
            ticket.sequence = None
            self.book.ends(ticket.job.kind)
            self.rearm()

    def _deliver(self, sequence: Sequence, n_new: int, t_s: float, done: bool) -> None:
        ticket: Ticket = sequence.tag
        if ticket.sequence is None:
            return
        job = ticket.job
        ticket.n_sent += n_new
        if self._log is not None:
            ticket.sent.append((t_s, time.monotonic_ns(), n_new))
        n_cached = sequence.n_cached if self.node.recipe.prefix_caching else None
        if job.cut_after is not None and ticket.n_sent > job.cut_after:
            self.give_up(ticket)
            ticket.client.cut()
            return
        if ticket.stream is not None:
            self.n_events += 1
            ticket.client.send(ticket.stream.tokens(n_new, done, n_cached))
        if not done:
            return
        ticket.sequence = None
        self.finished[job.finish_reason] += 1
        self.book.ends(job.kind)
        if self._log is not None:
            self._write_event(ticket, sequence)
        if ticket.stream is None:
            ticket.client.send_json(200, whole_answer(job, self.served_name, self._created, n_cached))
        else:
            ticket.client.answer_ended()

    def _write_event(self, ticket: Ticket, sequence: Sequence) -> None:
        assert self._log is not None
        record = {
            "request": ticket.job.number,
            "kind": ticket.job.kind,
            "n_prompt": ticket.job.n_prompt,
            "n_cached": sequence.n_cached,
            "n_preempted": sequence.n_preempted,
            "t_arrival_ns": ticket.t_arrival_ns,
            "t_arrival_s": sequence.t_arrival_s,
            "sent": ticket.sent,
        }
        self._log.write(json.dumps(record) + "\n")
        self._log.flush()

    # ------------------------------------------------------------------ time

    def wake(self) -> None:
        """The timer fired: let the node run up to now."""
        self.timer.clear()
        now_ns = time.monotonic_ns()
        if self._armed_s is not None:
            late_s = max((now_ns - self.clock.wall_ns_of(self._armed_s)) / 1e9, 0.0)
            self.n_wakes += 1
            self.late_total_s += late_s
            self.late_max_s = max(self.late_max_s, late_s)
        self._armed_s = None
        t_s = self.clock.seconds_at(now_ns)
        if not self.is_hung:
            self.node.advance(t_s)
        self._check_crash(t_s)
        self.rearm(now_ns + MIN_SLEEP_NS)

    def rearm(self, not_before_ns: int = 0) -> None:
        """Set the timer to the node's next event."""
        next_s = None if self.is_hung else self.node.next_time_s()
        if next_s is not None and next_s != self._armed_s:
            self._armed_s = next_s
            self.timer.arm(max(self.clock.wall_ns_of(next_s), not_before_ns))

    def _check_crash(self, t_s: float) -> None:
        lines = self.book.crash_log(t_s)
        if lines is not None:
            self._crash(lines)

    def status(self) -> dict[str, float]:
        """How well the wall clock was followed. ``late``: wall seconds by which the timer woke too late."""
        return {
            "simulated_seconds": self.clock.seconds_at(time.monotonic_ns()),
            "time_scale": self.clock.scale,
            "events": self.n_events,
            "late_mean_seconds": self.late_total_s / self.n_wakes if self.n_wakes else 0.0,
            "late_max_seconds": self.late_max_s,
        }


def error_body(status: int, message: str) -> dict[str, Any]:
    """vLLM's error object."""
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def die(lines: list[str]) -> None:
    """Say why in the log and be gone: no stream is ended, no connection closed in order."""
    for line in lines:
        print(f"ERROR {line}", flush=True)
    sys.stdout.flush()
    os._exit(CRASH_STATUS)
