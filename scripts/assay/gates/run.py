"""Run a policy's tasks against a server: before, after or beside a load; every exchange goes to disk."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from assay.errors import BadInput
from assay.gates.answers import read_answer
from assay.gates.client import ChatClient
from assay.gates.code_text import read_code
from assay.gates.grade import Grade, grade_record
from assay.gates.judge import judge, read_tasks
from assay.gates.needles import Haystack, LengthNotReached, build_haystack
from assay.gates.policy import Policy
from assay.gates.reasons import GateReason
from assay.gates.sandbox import Limits, run_code
from assay.gates.tasks import Task, read_data
from assay.gates.thinking import read_template
from assay.records.files import fsync_folder, write_json
from assay.session.chat_tokens import ChatCounter, CountFailed, Endpoint
from assay.vocab import GateKind, GateOutcome

TASKS_FILE, SUMMARY_FILE = "tasks.jsonl", "summary.json"
WHEN = ("before", "after", "mixed")


def run_gates(
    endpoint: Endpoint, policy: Policy, out_dir: Path, *, when: str, concurrency: int = 1
) -> dict[str, Any]:
    """Ask every task once, ``concurrency`` at a time; write tasks.jsonl and summary.json; return the summary.

    A server that is not there is an outcome (unavailable), not an error. ``out_dir`` must hold no record yet.
    """
    with _Run(endpoint, policy, Path(out_dir), when, concurrency) as run:
        run.ask_all(policy.tasks, round_number=0)
        return run.finish()


def run_mixed(
    endpoint: Endpoint,
    policy: Policy,
    out_dir: Path,
    *,
    stop: threading.Event,
    interval_s: float = 5.0,
    concurrency: int = 1,
) -> dict[str, Any]:
    """Ask the tasks beside a load, one every ``interval_s``, round after round, until ``stop`` is set.

    At least one whole round is asked, so that every task has an answer even when the load was short; those
    asked after ``stop`` carry ``after_stop: true``. Blocks: run it in a thread beside the load client. Its
    requests are no part of the load's counts.
    """
    with _Run(endpoint, policy, Path(out_dir), "mixed", concurrency) as run:
        round_number = 0
        while policy.tasks:
            run.ask_all(_paced(policy.tasks, stop, interval_s, whole=round_number == 0), round_number, stop)
            round_number += 1
            if stop.is_set():
                break
        return run.finish(rounds=round_number)


def _paced(tasks: Iterable[Task], stop: threading.Event, interval_s: float, *, whole: bool) -> Iterator[Task]:
    for task in tasks:
        if stop.is_set() and not whole:
            return
        yield task
        stop.wait(interval_s)


class _Run:
    """One run of a policy: its client, its open tasks.jsonl, its clock."""

    def __init__(self, endpoint: Endpoint, policy: Policy, out_dir: Path, when: str, concurrency: int):
        if when not in WHEN:
            raise BadInput(f"{when!r} is not known", where="--when", hint=f"one of {', '.join(WHEN)}")
        if concurrency < 1:
            raise BadInput(f"must be 1 or more, is {concurrency}", where="--concurrency")
        for name in (TASKS_FILE, SUMMARY_FILE):
            if (out_dir / name).exists():
                raise BadInput("holds a record already", where=out_dir, key=name, hint="name an empty folder")
        endpoint.api_key()  # a missing key is bad input, before anything is written
        self._endpoint, self._policy, self._out_dir = endpoint, policy, out_dir
        self._when, self._concurrency = when, concurrency
        self._lock = threading.Lock()
        self._in_flight = self._most_in_flight = 0
        self._haystacks: dict[str, Haystack | dict[str, str]] = {}
        self._dead: dict[str, str] | None = None
        self._template: dict[str, Any] | None = None

    def __enter__(self) -> _Run:
        self._out_dir.mkdir(parents=True, exist_ok=True)
        self._client = ChatClient(self._endpoint, self._policy.timeout_s)
        self._counter = ChatCounter(self._endpoint, extra_body=self._policy.body_extras())
        self._file: TextIO = (self._out_dir / TASKS_FILE).open("x", encoding="utf-8")
        fsync_folder(self._out_dir)
        self._t_start_utc = _now()
        if self._policy.tasks:
            self._template = read_template(self._counter)
            self._measure_needles(self._policy.tasks)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._client.close()
        self._counter.__exit__()

    def ask_all(self, tasks: Iterable[Task], round_number: int, stop: threading.Event | None = None) -> None:
        """Ask the tasks, so many at a time; a task is drawn only when a place for it is free."""
        if self._concurrency == 1:  # in this thread, so that an interrupt ends it at once
            for task in tasks:
                self._ask_one(task, round_number, is_after_stop=bool(stop and stop.is_set()))
            return
        places = threading.Semaphore(self._concurrency)

        def ask(task: Task) -> None:
            try:
                self._ask_one(task, round_number, is_after_stop=bool(stop and stop.is_set()))
            finally:
                places.release()

        with ThreadPoolExecutor(self._concurrency, thread_name_prefix="gate") as pool:
            waiting = []
            for task in tasks:
                places.acquire()
                waiting.append(pool.submit(ask, task))
            for future in waiting:
                future.result()

    def finish(self, **more: Any) -> dict[str, Any]:
        """Close the records, judge them as they are on disk, write the summary."""
        self._file.close()
        summary = judge(read_tasks(self._out_dir / TASKS_FILE), self._policy)
        summary.pop("disagreements")
        summary |= {
            "schema": "assay/gates_summary/1",
            "when": self._when,
            "endpoint": {"base_url": self._endpoint.base_url, "model": self._endpoint.model},
            "concurrency": {"asked": self._concurrency, "reached": self._most_in_flight},
            "thresholds": {
                kind.value: {"min_pass_share": t.min_pass_share, "reason": t.reason, "source": t.source}
                for kind, t in self._policy.thresholds.items()
            },
            "t_start_utc": self._t_start_utc,
            "t_end_utc": _now(),
            **more,
        }
        write_json(self._out_dir / SUMMARY_FILE, summary)
        return summary

    def _ask_one(self, task: Task, round_number: int, *, is_after_stop: bool) -> None:
        record: dict[str, Any] = {
            "task_id": task.id,
            "kind": task.kind.value,
            "round": round_number,
            "expected": task.expected,
            "request": None,
            "response": None,
            "streamed": None,
            "t_start_utc": _now(),
        }
        if is_after_stop:
            record["after_stop"] = True
        messages = self._messages(task, record)
        if messages is not None:
            with self._one_in_flight():
                self._exchange(task, record, messages)
            if task.kind is GateKind.CODE:
                record["runs"] = self._execute(task, record)
        grade = grade_record(task, record, self._policy.ask_thinking)
        record |= {
            "outcome": grade.outcome.value,
            "reason": grade.reason.value if grade.reason else None,
            "detail": grade.detail,
            "parsed": grade.parsed,
            "t_end_utc": _now(),
        }
        self._write(record)

    def _messages(self, task: Task, record: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The chat of a task; a needle's is made to measure. None when it cannot be; the record says why."""
        if task.messages is not None:
            return [dict(message) for message in task.messages]
        hay = self._haystacks.get(task.id)
        if not isinstance(hay, Haystack):
            record["before_sending"] = hay
            return None
        record["needle"] = {
            "n_tokens": hay.n_tokens,
            "source": hay.source,
            "depth_percent": hay.depth_percent,
            "counts_asked": hay.counts_asked,
            "n_words": hay.n_words,
        }
        return hay.messages

    def _measure_needles(self, tasks: Iterable[Task]) -> None:
        """Make every needle's chat before the first task is sent: counting must not sit between tasks."""
        words_per_token: float | None = None
        for task in tasks:
            if task.messages is not None:
                continue
            if self._dead is not None:  # a server that is gone is not asked once per needle
                self._haystacks[task.id] = self._dead
                continue
            try:
                hay = build_haystack(task.check, read_data("filler"), self._counter.count, words_per_token)
                words_per_token = hay.words_per_token
                self._haystacks[task.id] = hay
            except LengthNotReached as error:
                why = _unsent(GateOutcome.COULD_NOT_RUN, GateReason.LENGTH_NOT_REACHED, error)
                self._haystacks[task.id] = why
            except CountFailed as error:
                if error.transport:
                    self._dead = _unsent(GateOutcome.UNAVAILABLE, GateReason.CONNECT, error)
                    self._haystacks[task.id] = self._dead
                else:
                    why = _unsent(GateOutcome.COULD_NOT_RUN, GateReason.LENGTH_NOT_MEASURED, error)
                    self._haystacks[task.id] = why

    def _exchange(self, task: Task, record: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        model = self._endpoint.model
        record |= self._client.exchange(self._policy.request_body(task, model, messages, stream=False))
        if task.is_streamed_too:
            record["streamed"] = self._client.exchange(
                self._policy.request_body(task, model, messages, stream=True)
            )

    def _execute(self, task: Task, record: dict[str, Any]) -> list[dict[str, Any]]:
        answer = read_answer(record["response"])
        if answer.fault is not None:
            return []
        code = read_code(answer, task.check["function"])
        if isinstance(code, Grade):
            return []
        limits = Limits(**task.check["limits"])
        return [
            run_code(code, task.check["function"], task.check["args"], limits)
            for _ in range(task.check["runs"])
        ]

    def _write(self, record: dict[str, Any]) -> None:
        """One line, durable before the next task. Plain ASCII: an answer may hold a lone surrogate."""
        with self._lock:
            if self._template:
                record["template"], self._template = self._template, None
            self._file.write(json.dumps(record, ensure_ascii=True, sort_keys=True) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    @contextmanager
    def _one_in_flight(self) -> Iterator[None]:
        with self._lock:
            self._in_flight += 1
            self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1


def _unsent(outcome: GateOutcome, reason: GateReason, error: Exception) -> dict[str, str]:
    """Why a task was not sent, as its record says it."""
    return {"outcome": outcome.value, "reason": reason.value, "detail": str(error)[:300]}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
