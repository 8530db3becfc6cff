"""One phase of load from start to records: barrier, measured part, drain, tables, ``client.json``."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.load import proof
from assay.load import spec as specs
from assay.load.gauges import ServerWatch
from assay.load.journal import JournalReader, JournalWriter, Row
from assay.load.lengths import length_screens
from assay.load.plan import WorkerPlan
from assay.load.processes import Crew, resolve, write_bodies
from assay.load.progress import Progress
from assay.load.prompts import Prompt
from assay.load.record import client_record
from assay.load.retokenise import FileCounter, ServerCounter
from assay.load.spec import LoadSpec
from assay.load.table import RequestTableWriter, RowContext
from assay.records.files import write_json

REQUESTS = "requests.parquet"
OPENING = "opening.parquet"
JOURNAL_PLAN = "journal-plan.json"
BARRIER_LIMIT_S = 60.0
START_LEAD_NS = 20_000_000
SYNC_S = 5.0
PUMP_S = 0.25
ROWS_A_TURN = 20


def run_load(
    spec: LoadSpec,
    prompts: Sequence[Prompt],
    out_dir: Path,
    opening: Sequence[Prompt] | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run the load and write its records; gives the object of ``client.json``.

    ``warn`` is told before the first request why the server's gauges are unknown, if they are.

    Blocks until the last request ended or was given up. Raises BadInput before anything starts. What goes
    wrong later is in the records: failed requests as rows, a phase that cannot be trusted as ``invalid`` with
    its reasons. Broken off (KeyboardInterrupt, SIGTERM), it stops its processes and leaves the journals, from
    which ``recover`` makes the table.
    """
    specs.check(spec, prompts, opening)
    for name in (REQUESTS, JOURNAL_PLAN):
        if (out_dir / name).exists():
            raise BadInput(
                f"has {name} already", where=out_dir, key="out", hint="records are never overwritten"
            )
    addresses = resolve(specs.target_of(spec.url))
    counter = (
        FileCounter(Path(spec.tokenizer)) if spec.tokenizer not in (None, specs.SERVER_TOKENIZER) else None
    )
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot be made: {error.strerror or error}", where=out_dir, key="out") from error
    phase = _Phase(spec, prompts, opening or (), out_dir, addresses, counter)
    phase.progress, phase.warn = progress, warn
    with _termination():
        try:
            phase.run()
            return phase.finish()
        finally:
            phase.close()


@contextmanager
def _termination() -> Iterator[None]:
    """SIGTERM ends the load like Ctrl-C does, unless the program has a handler of its own."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    ):
        yield
        return

    def leave(_signal: int, _frame: object) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Phase:
    def __init__(
        self,
        spec: LoadSpec,
        prompts: Sequence[Prompt],
        opening: Sequence[Prompt],
        out_dir: Path,
        addresses: list[tuple[int, list[str | int]]],
        counter: FileCounter | None,
    ) -> None:
        self.spec, self.prompts, self.opening, self.out_dir = spec, prompts, opening, out_dir
        self.context = RowContext.of(spec, prompts, opening)
        self.context.counter = counter
        self.facts: dict[str, Any] = {"t_start_ns": None, "t_issue_end_ns": None, "barrier": None}
        self.counts: dict[str, int] = {}
        self.n_opening = 0
        self.n_resent = 0
        self.n_loose = 0
        self.sources: dict[str, int] = {}
        self.t_first_send_ns: int | None = None
        self.t_last_send_ns: int | None = None
        self.t_last_end_ns: int | None = None
        self.used_prompts: set[int] = set()
        self.torn_bytes = 0
        self.why_not_counted: str | None = None
        self.progress: Progress | None = None
        self.warn: Callable[[str], None] | None = None
        self._finished = False
        self._n_processes = specs.process_count(spec, len(os.sched_getaffinity(0)))
        self._journals = [out_dir / f"journal-{k}.bin" for k in range(self._n_processes)]
        self._held_path = out_dir / "journal-held.bin"
        self._held: JournalWriter | None = None
        self._readers: list[JournalReader] = []
        self._writers: dict[bool, RequestTableWriter] = {}
        self._crew: Crew | None = None
        self._watch = ServerWatch(spec.metrics_urls, spec.gauge_interval_s)
        self._counter_fd = os.memfd_create("assay-counter")
        os.ftruncate(self._counter_fd, mmap.PAGESIZE)
        self._bodies = tempfile.NamedTemporaryFile(prefix=".bodies-", dir=out_dir)  # noqa: SIM115 - see close()
        measured = write_bodies(spec, prompts, self._bodies, 0)
        opening_entries = write_bodies(spec, opening, self._bodies, self._bodies.tell())
        self._bodies.flush()
        target = specs.target_of(spec.url)
        base = WorkerPlan(
            process=0,
            n_processes=self._n_processes,
            addresses=addresses,
            tls=target.scheme == "https",
            server_name=target.host,
            ca_file=None if spec.ca_file is None else str(spec.ca_file),
            heads={name: head.decode() for name, head in specs.heads_of(spec, target).items()},
            bodies_path=self._bodies.name,
            bodies=measured,
            opening_bodies=opening_entries,
            journal_path="",
            counter_fd=self._counter_fd,
            streams=[],
            requests=spec.requests,
            duration_s=spec.duration_s,
            drain_limit_s=spec.drain_limit_s,
            rate_per_s=spec.rate_per_s,
            arrivals=spec.arrivals,
            burstiness=spec.burstiness,
            seed=spec.seed,
            in_flight_cap=0,
            timeout_s=spec.timeout_s,
            ramp_s=spec.ramp_s,
            n_streams=spec.concurrency,
            opening_per_stream=spec.opening_per_stream,
            keep_texts=spec.tokenizer is not None,
            reuse_connections=spec.reuse_connections,
            secrets=specs.secrets_of(spec),
        )
        self._base_plan = base

    def _plans(self) -> list[WorkerPlan]:
        plans = []
        for k in range(self._n_processes):
            streams = list(range(k, self.spec.concurrency, self._n_processes))
            plan = WorkerPlan(
                **{name: getattr(self._base_plan, name) for name in WorkerPlan.__struct_fields__}
            )
            plan.process, plan.journal_path = k, str(self._journals[k])
            plan.streams = streams if not self.spec.is_open_loop else []
            plan.in_flight_cap = len(streams) if self.spec.is_open_loop and self.spec.concurrency else 0
            plans.append(plan)
        return plans

    # ------------------------------------------------------------------ the load

    def run(self) -> None:
        """From the start of the processes to the end of the last request."""
        write_json(self.out_dir / JOURNAL_PLAN, self.context.record)
        for measured, name in ((True, REQUESTS), (False, OPENING)):
            if measured or self.spec.has_opening:
                self._writers[measured] = RequestTableWriter(self.out_dir / name, self.context)
        crew = self._crew = Crew(self._plans())
        if not crew.wait_until("ready", BARRIER_LIMIT_S) or crew.refused:
            self.facts["detail"] = crew.refused or "the client processes were not ready in time"
            self._end_crew(crew)
            return
        self._readers = [JournalReader(path) for path in self._journals]
        self.facts["barrier"] = {
            "n_processes": self._n_processes,
            "n_connected": sum(int((member.ready or {}).get("ready", 0)) for member in crew.members),
            "connect_error": next(
                (member.ready["connect_error"] for member in crew.members if member.ready), None
            ),
            "t_ready_ns": time.monotonic_ns(),
        }
        self._watch.start()
        if self.warn is not None and self._watch.why_no_gauges is not None:
            self.warn(self._watch.why_no_gauges)
        self.facts["pressure_before"] = proof.read_pressure()
        self.facts["anchor"] = {"monotonic_ns": time.monotonic_ns(), "realtime_ns": time.time_ns()}
        t_go_ns = time.monotonic_ns() + START_LEAD_NS
        crew.tell(f"go {t_go_ns}")
        t_start_ns = t_go_ns
        if self.spec.has_opening:
            if self.spec.is_open_loop:
                t_start_ns = t_go_ns + round(self.spec.ramp_s * 1e9)
            else:
                while not all(member.opened for member in crew.members) and self._step(crew):
                    pass
                t_start_ns = time.monotonic_ns()
                crew.tell(f"handover {t_start_ns}")
                crew.samples.clear()
        self.facts["t_start_ns"] = t_start_ns
        while self._step(crew):
            pass
        self._end_crew(crew)
        self._watch.stop()
        self.facts["pressure_after"] = proof.read_pressure()
        self.facts["t_done_ns"] = time.monotonic_ns()
        self._collect()
        self.torn_bytes = sum(reader.torn_bytes for reader in self._readers)

    def _step(self, crew: Crew) -> bool:
        alive = crew.pump(PUMP_S)
        now_s = time.monotonic()
        if now_s - self.facts.get("_t_collected_s", 0.0) >= PUMP_S:
            self._collect()
            self.facts["_t_collected_s"] = now_s
            if self.progress is not None:
                self.progress.tell(self.counts, self.n_opening)
        if now_s - self.facts.get("_t_synced_s", now_s) >= SYNC_S:
            for reader in self._readers:
                reader.sync()
            self.facts["_t_synced_s"] = now_s
        self.facts.setdefault("_t_synced_s", now_s)
        return alive

    def _end_crew(self, crew: Crew) -> None:
        if crew.refused:
            crew.tell("stop")
        while crew.pump(PUMP_S):
            pass

    def _collect(self) -> None:
        """Take finished requests out of the journals into the table."""
        now_s = time.monotonic()
        for reader in self._readers:
            for n, row in enumerate(reader.rows()):
                if n % ROWS_A_TURN == 0:
                    os.sched_yield()  # a client process may wait for this very core
                self._note(row)
                if self.context.counter is None and row.texts is not None:
                    if self._held is None:
                        self._held = JournalWriter(self._held_path)
                    self._held.append(row)  # its tokens are counted by the server, after the load
                else:
                    self._writers[row.measured].add(row, now_s)

    def _note(self, row: Row) -> None:
        if not row.measured:
            self.n_opening += 1
            return
        self.counts[row.status] = self.counts.get(row.status, 0) + 1
        self.used_prompts.add(row.prompt)
        self.n_resent += row.n_resent
        self.n_loose += row.n_loose
        if row.timestamp_source is not None:
            self.sources[row.timestamp_source] = self.sources.get(row.timestamp_source, 0) + 1
        if row.t_send_ns is not None:
            self.t_first_send_ns = min(self.t_first_send_ns or row.t_send_ns, row.t_send_ns)
            self.t_last_send_ns = max(self.t_last_send_ns or row.t_send_ns, row.t_send_ns)
        self.t_last_end_ns = max(self.t_last_end_ns or row.t_end_ns, row.t_end_ns)

    # ------------------------------------------------------------------ the records

    def finish(self) -> dict[str, Any]:
        """Count what the server must count, close the tables, write ``client.json``; the journals go last."""
        assert self._crew is not None
        self._count_held()
        start_ns = self.facts["t_start_ns"]
        self.facts["t_issue_end_ns"] = self.t_last_send_ns
        ran_out = self.spec.requests is not None and sum(self.counts.values()) >= self.spec.requests
        if self.spec.duration_s is not None and start_ns is not None:
            end_ns = start_ns + round(self.spec.duration_s * 1e9)
            # Both limits: the first that came ended the issuing.
            self.facts["t_issue_end_ns"] = min(end_ns, self.t_last_send_ns or end_ns) if ran_out else end_ns
        phase = {
            "anchor": self.facts.get("anchor"),
            "t_start_ns": start_ns,
            "t_issue_end_ns": self.facts["t_issue_end_ns"],
            "window": self.spec.duration_s is not None,
        }
        for writer in self._writers.values():
            writer.finish(phase)
        sends, ends = proof.spans([writer.path for writer in self._writers.values()])
        record = client_record(
            spec=self.spec,
            facts={name: value for name, value in self.facts.items() if not name.startswith("_")},
            crew=self._crew,
            counts=self.counts,
            n_opening=self.n_opening,
            n_resent=self.n_resent,
            sends=sends,
            ends=ends,
            t_last_end_ns=self.t_last_end_ns,
            sources=self.sources,
            n_prompts=len(self.prompts),
            n_prompts_used=len(self.used_prompts),
            torn_bytes=self.torn_bytes,
            why_not_counted=self.why_not_counted,
            gauge_samples=self._watch.gauges,
            more_screens=self._screens(phase),
            n_loose=self.n_loose,
        )
        if self._watch.before is not None and self._watch.after is not None:
            write_json(self.out_dir / "counters.json", self._watch.record())
        write_json(self.out_dir / "client.json", record)
        self._finished = True
        return record

    def _screens(self, phase: dict[str, Any]) -> list[dict[str, Any]]:
        start_ns, end_ns = phase["t_start_ns"], phase["t_issue_end_ns"]
        issued_s = None if start_ns is None or end_ns is None else (end_ns - start_ns) / 1e9
        return length_screens(self.out_dir / REQUESTS, self.spec.rate_per_s, issued_s)

    def _count_held(self) -> None:
        if self._held is None:
            return
        import httpx

        self._held.close()
        target = specs.target_of(self.spec.url)
        root = target.base_path.removesuffix("/v1")
        headers = dict(self.spec.headers)
        key = specs.api_key(self.spec)
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        verify: Any = True if self.spec.ca_file is None else str(self.spec.ca_file)
        reader = JournalReader(self._held_path)
        with httpx.Client(timeout=10.0, trust_env=False, headers=headers, verify=verify) as client:
            counter = ServerCounter(
                client, f"{target.scheme}://{target.host_header}{root}/tokenize", self.spec.model
            )
            self.context.counter = counter
            for row in reader.rows():
                self._writers[row.measured].add(row, time.monotonic())
            for writer in self._writers.values():
                writer.flush()
            self.why_not_counted = counter.why
        self.context.counter = None
        reader.close()

    def close(self) -> None:
        """Free everything. What was not finished leaves its journals behind."""
        if self._crew is not None:
            self._crew.close()
        self._watch.close()
        for reader in self._readers:
            reader.close()
        self._bodies.close()
        os.close(self._counter_fd)
        if self._finished:
            for path in (*self._journals, self._held_path, self.out_dir / JOURNAL_PLAN):
                path.unlink(missing_ok=True)
        else:
            for writer in self._writers.values():
                writer.discard()
