"""One client process: its connections, its event loop, its journal.

The loop is epoll itself: each turn takes what is readable, each read with the kernel's stamp, and only then
does anything else. Standard library, httptools and msgspec only.
"""

from __future__ import annotations

import gc
import json
import os
import select
import time
from collections import deque
from pathlib import Path
from typing import Any

from assay.load.backlog import Backlog
from assay.load.clock import StampClock
from assay.load.connection import REFUSED_BY_HOST, Connection, State
from assay.load.exchange import Exchange
from assay.load.health import TICK_NS, HealthMeter
from assay.load.issue import ClosedLoop, Issuer, OpenLoop
from assay.load.journal import JournalWriter
from assay.load.plan import SharedCounter, WorkerPlan
from assay.load.request_bytes import RequestBytes, tls_context
from assay.load.stale import IDLE_LIMIT_NS
from assay.load.timer import Timer
from assay.vocab import ErrorClass

NAP_S = 0.0003
NAP_EVENTS = 150
"""From this many events a tick (7,500 a second) on, the loop naps between turns: the kernel stamps what comes
meanwhile, and one wake-up for a dozen reads costs a third less than one for each."""
SENDS_A_TURN = 32
"""Between two looks at the sockets: when a thousand requests end together, what still runs is read on time."""
CONNECT_LIMIT_NS = 30_000_000_000
PRECONNECTED_OPEN_LOOP = 16
FLUSH_NS = 250_000_000
CLOCK_NS = 500_000_000
SAMPLE_NS = 1_000_000_000
_IN = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR
_monotonic_ns = time.monotonic_ns


class Worker:
    """The event loop and everything it drives."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = plan
        self._epoll = select.epoll()
        self._table: dict[int, Connection] = {}
        self._clock = StampClock()
        self._timer = Timer()
        self._tick_timer = Timer()
        self._meter = HealthMeter()
        self._journal = JournalWriter(Path(plan.journal_path))
        self._counter = SharedCounter(plan.counter_fd, plan.n_processes > 1)
        self._tls = tls_context(plan) if plan.tls else None
        self._addresses = [(family, tuple(address)) for family, address in plan.addresses]
        self._requests = RequestBytes(plan)
        self._running: set[Exchange] = set()
        self._deadlines: deque[Exchange] = deque()
        self._backlog = Backlog(self._journal, plan.keep_texts, plan.secrets)
        self._freed: deque[tuple[Connection, int, bool, bool]] = deque()
        self._keeps = plan.reuse_connections  # the server keeps connections, as far as was seen
        self._n_workers = plan.process
        self._n_measured_running = 0
        self._commands = b""
        self._t_go_ns: int | None = None
        self._opened_told = False
        self._stop = False
        self.refused: str | None = None
        self._connect_error: str | None = None
        self._n_polled = 0
        self._nap = False
        self._look = False  # something happened that may end the phase
        self._epoll.register(0, select.EPOLLIN)
        self._epoll.register(self._timer.fd, select.EPOLLIN)
        self._epoll.register(self._tick_timer.fd, select.EPOLLIN)
        # Without kernel stamps a nap would be in the times, and an open loop has sends to make on time.
        self._may_nap = plan.rate_per_s is None and self._clock.is_used
        self._issuer: Issuer
        if plan.rate_per_s is None:
            self._connections = [self._connection(number) for number in plan.streams]
            self._issuer = ClosedLoop(plan, self, self._counter, self._connections)
        else:
            self._connections = []
            n_first = min(plan.in_flight_cap or PRECONNECTED_OPEN_LOOP, PRECONNECTED_OPEN_LOOP)
            self._issuer = OpenLoop(plan, self, [self.new_connection() for _ in range(n_first)])

    def _connection(self, number: int) -> Connection:
        return Connection(self, number, self._addresses, self._clock, self._tls, self.plan.server_name)

    # ------------------------------------------------------------------ what issuers use

    def new_connection(self) -> Connection:
        connection = self._connection(self._n_workers)
        self._n_workers += self.plan.n_processes
        self._connections.append(connection)
        return connection

    def issue(self, connection: Connection, index: int, measured: bool, t_scheduled_ns: int) -> None:
        entries = self.plan.bodies if measured else self.plan.opening_bodies
        exchange = Exchange(index, index % len(entries), connection.worker, measured, t_scheduled_ns)
        exchange.connection = connection
        self._running.add(exchange)
        self._n_measured_running += measured
        now_ns = _monotonic_ns()
        exchange.deadline_ns = now_ns + round(self.plan.timeout_s * 1e9)
        self._deadlines.append(exchange)
        if connection.state is State.IDLE:
            if now_ns - connection.idle_since_ns <= IDLE_LIMIT_NS:
                connection.send(exchange, *self._requests.of(exchange.measured, exchange.prompt))
                return
            connection.close()
        connection.waiting = exchange
        self._open(connection)

    def _open(self, connection: Connection) -> None:
        try:
            connection.open()
        except OSError as error:
            connection.close()
            self.connection_failed(connection, error)

    def give_up(self, index: int, measured: bool, t_scheduled_ns: int, now_ns: int, why: str) -> None:
        """Record a request that was due and could not be sent."""
        entries = self.plan.bodies if measured else self.plan.opening_bodies
        exchange = Exchange(index, index % len(entries), -1, measured, t_scheduled_ns)
        self._backlog.record(exchange, now_ns, None, why)

    # ------------------------------------------------------------------ what connections tell

    def decode_later(self, exchange: Exchange) -> None:
        self._backlog.decode(exchange)

    def watch(self, connection: Connection, writable: bool) -> None:
        mask = select.EPOLLIN | select.EPOLLOUT if writable else select.EPOLLIN
        if connection.fd in self._table:
            self._epoll.modify(connection.fd, mask)
        else:
            self._table[connection.fd] = connection
            self._epoll.register(connection.fd, mask)

    def unwatch(self, connection: Connection) -> None:
        if self._table.pop(connection.fd, None) is not None:
            self._epoll.unregister(connection.fd)

    def connection_ready(self, connection: Connection) -> None:
        exchange, connection.waiting = connection.waiting, None
        if exchange is not None:
            connection.send(exchange, *self._requests.of(exchange.measured, exchange.prompt))

    def connection_failed(self, connection: Connection, error: OSError) -> None:
        self._connect_error = text = error.strerror or str(error)
        by_host = error.errno in REFUSED_BY_HOST
        if by_host:
            self.refused = f"the host refused a socket: {text}"
        exchange, connection.waiting = connection.waiting, None
        if exchange is not None:
            kind = ErrorClass.CLIENT if by_host else ErrorClass.CONNECT
            self.exchange_ended(connection, exchange, _monotonic_ns(), (kind, f"no connection: {text}"))

    def connection_dropped(self, connection: Connection) -> None:
        if _monotonic_ns() - connection.idle_since_ns < IDLE_LIMIT_NS and connection.n_reads:
            self._keeps = False  # closed right after an answer, unannounced: it will do so again

    def exchange_stale(self, connection: Connection, exchange: Exchange) -> None:
        self._keeps = False
        exchange.n_resent += 1
        connection.waiting = exchange
        self._open(connection)

    def _release(self, n_limit: int) -> int:
        """Give freed slots their next request, ``n_limit`` at most; returns how many."""
        n = min(n_limit, len(self._freed))
        for _ in range(n):
            freed = self._freed.popleft()
            if not self._keeps and freed[0].state is State.IDLE:
                freed[0].close()
            self._issuer.freed(*freed)
        return n

    def exchange_ended(
        self, connection: Connection, exchange: Exchange, t_ns: int, failure: tuple[ErrorClass, str] | None
    ) -> None:
        self._close_books(exchange, t_ns, failure, None)
        self._freed.append((connection, t_ns, exchange.measured, exchange.t_send_ns is None))

    def _close_books(
        self, exchange: Exchange, t_ns: int, failure: tuple[ErrorClass, str] | None, incomplete: str | None
    ) -> None:
        exchange.done = True
        exchange.connection = None
        self._running.discard(exchange)
        self._n_measured_running -= exchange.measured
        self._backlog.record(exchange, t_ns, failure, incomplete)
        self._look = True

    def _abandon(
        self, exchange: Exchange, failure: tuple[ErrorClass, str] | None, incomplete: str | None
    ) -> None:
        """End a request ourselves: its connection is of no further use."""
        connection: Connection = exchange.connection
        connection.waiting = None
        connection.abandon()
        now_ns = _monotonic_ns()
        self._close_books(exchange, now_ns, failure, incomplete)
        if incomplete is None:
            self._freed.append((connection, now_ns, exchange.measured, False))

    def run(self) -> None:
        """Connect, wait for the start, put the load on, report."""
        self._prepare()
        if self.refused is not None:
            self._journal.close()
            self._report(refused=self.refused)
            return
        n_ready = sum(one.state is State.IDLE for one in self._connections)
        self._report(ready=n_ready, connect_error=self._connect_error)
        while self._t_go_ns is None and not self._stop:
            self._poll(0.1)  # not for ever: a signal handler's note is seen only after it
        if not self._stop:
            self._measure()
        self._issuer.abandon(_monotonic_ns())
        for exchange in list(self._running):
            self._abandon(exchange, None, "stopped" if self._stop else "the measured phase had ended")
        self._backlog.finish()
        self._journal.close()
        self._report(
            done={
                **self._meter.total(),
                "n_reads": sum(connection.n_reads for connection in self._connections),
                "clock_steps": self._clock.n_steps,
                "clock_uncertainty_ns": self._clock.uncertainty_ns,
                "server_keeps_connections": self._keeps,
                "stopped": self._stop,
                "refused": self.refused,
            }
        )

    def _prepare(self) -> None:
        """The barrier's first half: every connection is there, or was tried."""
        limit_ns = _monotonic_ns() + min(CONNECT_LIMIT_NS, round(self.plan.timeout_s * 1e9))
        for connection in self._connections:
            self._open(connection)
            if self.refused:
                return
        while _monotonic_ns() < limit_ns and not self._stop and self.refused is None:
            if not any(c.state in (State.CONNECTING, State.HANDSHAKE) for c in self._connections):
                break
            self._poll(0.1)
        for connection in self._connections:
            if connection.state in (State.CONNECTING, State.HANDSHAKE):
                connection.close()
                self._connect_error = "no connection in time"

    def _measure(self) -> None:
        assert self._t_go_ns is not None
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        while (left_ns := self._t_go_ns - _monotonic_ns()) > 1_500_000:
            time.sleep((left_ns - 1_000_000) / 1e9)
        while _monotonic_ns() < self._t_go_ns:
            pass
        self._meter.restart()
        self._issuer.start(self._t_go_ns)
        now_ns = _monotonic_ns()
        self._flush_due = now_ns + FLUSH_NS
        self._clock_due = now_ns + CLOCK_NS
        self._sample_due = now_ns + SAMPLE_NS
        self._tick_due = now_ns + TICK_NS
        self._tick_timer.arm(self._tick_due)
        self._arm()
        waiting = self._backlog.waiting
        while not self._stop:
            self._poll(0 if waiting else 1.0)
            if self._freed and len(waiting) <= len(self._connections):
                continue  # what is free sends first, but decoding is put off only so far
            if waiting:
                self._backlog.work()
            elif self._nap:
                time.sleep(NAP_S)
            if self._look:
                self._look = False
                if self._is_over(_monotonic_ns()):
                    break

    def _poll(self, timeout_s: float) -> None:
        """Wait for sockets and timers, let each be handled, and give freed slots their next request."""
        table, freed, n_sends = self._table, self._freed, SENDS_A_TURN
        events = self._epoll.poll(0 if freed else timeout_s, 512)
        self._n_polled += len(events)
        for fd, mask in events:
            connection = table.get(fd)
            if connection is None:
                self._other(fd)
                continue
            if mask & select.EPOLLOUT:
                connection.writable()
            if mask & _IN:
                if connection.state is State.CONNECTING:
                    connection.writable()
                else:
                    connection.readable()
            if freed and n_sends:
                n_sends -= self._release(n_sends)
        if freed and n_sends:
            self._release(n_sends)

    def _other(self, fd: int) -> None:
        if fd == 0:
            self._command()
        elif fd == self._tick_timer.fd:
            self._tick_timer.clear()
            if self._t_go_ns is not None:
                self._tick(_monotonic_ns())
        elif fd == self._timer.fd:
            self._timer.clear()
            self._issuer.on_time(_monotonic_ns())
            self._arm()

    def _arm(self) -> None:
        """Set the timer to what is due next: an arrival, or the start of a stream."""
        due_ns = self._issuer.next_due_ns()
        if due_ns is not None:
            self._timer.arm(due_ns)

    def _is_over(self, now_ns: int) -> bool:
        issuer = self._issuer
        if issuer.is_opening or not issuer.is_done(now_ns):
            return False
        if self._n_measured_running == 0:
            return not self._freed
        if issuer.t_end_ns is not None and now_ns >= issuer.t_end_ns + round(self.plan.drain_limit_s * 1e9):
            why = f"still running {self.plan.drain_limit_s:g} s after issuing ended"
            for exchange in [one for one in self._running if one.measured]:
                self._abandon(exchange, None, why)
            return True
        return False

    def _tick(self, now_ns: int) -> None:
        """Fifty times a second: the loop's lag, time-outs, and what is due more rarely."""
        self._look = True
        self._meter.tick(self._tick_due, now_ns)
        self._tick_due = now_ns + TICK_NS
        self._tick_timer.arm(self._tick_due)
        self._nap = self._n_polled >= NAP_EVENTS and self._may_nap
        self._n_polled = 0
        self._issuer.on_time(now_ns)
        while self._deadlines and (self._deadlines[0].done or self._deadlines[0].deadline_ns <= now_ns):
            exchange = self._deadlines.popleft()
            if not exchange.done:
                why = f"no end within {self.plan.timeout_s:g} s"
                self._abandon(exchange, (ErrorClass.TIMEOUT, why), None)
        self._release(SENDS_A_TURN)
        self._arm()
        if not self._opened_told and self._issuer.is_opened(now_ns):
            self._opened_told = True
            self._report(opened=now_ns)
        if now_ns >= self._flush_due:
            self._journal.flush()
            self._flush_due = now_ns + FLUSH_NS
        if now_ns >= self._clock_due:
            self._clock.refresh()
            self._clock_due = now_ns + CLOCK_NS
        if now_ns >= self._sample_due:
            self._report(health=self._meter.sample())
            self._sample_due = now_ns + SAMPLE_NS
            for exchange in [one for one in self._running if one.is_held_open(now_ns)]:
                self._abandon(exchange, (ErrorClass.TIMEOUT, "held open after [DONE]"), None)

    def _command(self) -> None:
        if not (data := os.read(0, 4_096)):
            self.stop()  # the parent is gone
            self._epoll.unregister(0)
            return
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"go":
                self._t_go_ns = int(number)
            elif word == b"handover":
                self._issuer.hand_over(int(number))
                self._meter.restart()
            elif word == b"stop":
                self.stop()

    def save(self) -> None:
        """Hand the journal's rows to the kernel."""
        self._journal.flush()

    def stop(self) -> None:
        """End soon: what runs is incomplete."""
        self._stop = self._issuer.stopped = True

    def _report(self, **message: Any) -> None:
        os.write(1, json.dumps(message).encode() + b"\n")
