"""A leased server: started by the first stage that needs it, shared by the stages of one leg, ended by
release, by eviction, by the death of the snakemake that owns it, or by itself.

`ensure` gives the live session of a leg. The server's life is in the hands of `supervisor`, a detached
process; this module only talks to it: by its notes on disk and by three signals.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.errors import AssayError, Incomplete
from assay.records.files import read_json
from assay.session.devices import read_note, use_devices
from assay.session.processes import ProcessId, identify, is_alive, send_signal, wait_until_gone
from assay.vocab import Reason

MAX_START_FAILURES = 2
STOP_SIGNALS = {"released": signal.SIGTERM, "interrupted": signal.SIGUSR1, "evicted": signal.SIGUSR2}
SAY_AGAIN_S = 30.0
SUPERVISOR_BUSY = 75  # EX_TEMPFAIL: the device locks could not be had
# Supervisors outlive the stage that starts them; holding their handles keeps Python from complaining of it.
_STARTED: list[subprocess.Popen[bytes]] = []


class ServerFailed(AssayError):
    """The server did not start, or died. ``session_dir`` holds what is known, when a session began."""

    def __init__(
        self, message: str, session_dir: Path | None, reason: Reason = Reason.SERVER_START_FAILED
    ) -> None:
        super().__init__(message)
        self.session_dir = session_dir
        self.reason = reason


class DeviceHeld(AssayError):
    """Another campaign holds the device and did not give it up in time."""


@dataclass(frozen=True)
class LeaseRequest:
    """What a leg asks of its server. ``argv`` may hold ``{port}``, filled in when the port is chosen."""

    campaign: str
    leg: str
    arm: str
    digest: str
    argv: list[str]
    run_id_stem: str
    devices: list[str]
    evidence_root: str
    ready_path: str = "/health"
    ready_timeout_s: float = 120.0
    grace_s: float = 8.0
    port: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)
    path_names: dict[str, str] = field(default_factory=dict)
    """Folder -> the name that stands for it in the record, which may go to another machine."""
    device_wait_s: float = 86_400.0
    proven_by: tuple[str, ...] = ("finite", "sustained")
    """Folders of a session that show it came as far as a load; without one, a crash is a failed start."""


@dataclass(frozen=True)
class Session:
    """A session as its record on disk tells it."""

    record: dict[str, Any]
    folder: Path

    @property
    def session_id(self) -> str:
        return str(self.record["session_id"])

    @property
    def url(self) -> str:
        return str(self.record["url"])

    @property
    def state(self) -> str:
        return str(self.record["state"])

    def refreshed(self) -> Session:
        return Session(read_json(self.folder / "session.json"), self.folder)

    def server_alive(self) -> bool:
        return is_alive(ProcessId.from_record(self.record.get("supervisor"))) and is_alive(
            ProcessId.from_record(self.record.get("server"))
        )


def owner() -> ProcessId:
    """The snakemake process whose death must end the server; this process itself outside of snakemake."""
    named = os.environ.get("ASSAY_OWNER_PID")
    process = identify(int(named)) if named else identify(os.getpid())
    if process is None:
        raise Incomplete(f"the owner of the lease, process {named}, is gone")
    return process


def new_session_id() -> str:
    """UTC time and a random suffix."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def current(devices: list[str]) -> Session | None:
    """The session that holds, or held last, the first of ``devices``."""
    note = read_note(sorted(devices)[0])
    if note is None:
        return None
    try:
        folder = Path(note["session_dir"])
        return Session(read_json(folder / "session.json"), folder)
    except (Incomplete, KeyError):
        return None  # its results folder was removed: nothing to share, and its lock protects the device


def _supervised(session: Session | None) -> bool:
    return session is not None and is_alive(ProcessId.from_record(session.record.get("supervisor")))


def stop(session: Session | None, why: str, timeout_s: float = 60.0) -> None:
    """End a session; ``why`` is a key of STOP_SIGNALS. Returns when its supervisor is gone."""
    if session is None or not _supervised(session):
        return
    supervisor = ProcessId.from_record(session.record["supervisor"])
    send_signal(supervisor, STOP_SIGNALS[why])
    if not wait_until_gone(supervisor, timeout_s):
        raise ServerFailed(f"the supervisor of {session.session_id} does not end", session.folder)
    _forget_ended()


def _forget_ended() -> None:
    """Supervisors that this process started and that have ended leave the table of processes."""
    _STARTED[:] = [process for process in _STARTED if process.poll() is None]


def start_failures(request: LeaseRequest, owner_process: ProcessId) -> list[Path]:
    """Sessions of this server, under this owner, that died before any load and were not stopped from outside."""
    failed = []
    for path in sorted(Path(request.evidence_root).glob("*/session.json")):
        try:
            record = read_json(path)
        except Incomplete:
            continue  # another process is just making it
        same = (record.get("digest"), record.get("owner")) == (request.digest, owner_process.record())
        ended = record.get("state") == "stopped" and record.get("why_stopped") not in STOP_SIGNALS
        proven = any((path.parent / name).exists() for name in request.proven_by)
        if same and ended and not proven and record.get("why_stopped") != "owner gone":
            failed.append(path.parent)
    return failed


def ensure(request: LeaseRequest, say: Callable[[str], None] = print) -> Session:
    """The live, ready session of this leg under this owner; it is started if need be.

    Raises ServerFailed when the server cannot be started (not tried again after MAX_START_FAILURES), and
    DeviceHeld when another campaign keeps the device longer than ``device_wait_s``.
    """
    mine = owner()
    while True:
        wait_for_device(request, say)
        session = current(request.devices)
        if _supervised(session):
            assert session is not None
            ours = (session.record["digest"], session.record["leg"]) == (request.digest, request.leg)
            if ours and session.state == "ready" and session.server_alive():
                return session
            stop(session, "evicted")
        failed = start_failures(request, mine)
        if len(failed) >= MAX_START_FAILURES:
            raise ServerFailed(f"not started again after {len(failed)} failed starts", failed[-1])
        started = _start(request, mine)
        if started is not None:
            return started


def holder(request: LeaseRequest) -> str | None:
    """Who else holds the device now, in words; None when it is free or ours."""
    session = current(request.devices)
    if not _supervised(session):
        return None
    assert session is not None
    boss = ProcessId.from_record(session.record["owner"])
    if boss == owner() or not is_alive(boss):
        return None
    return (
        f"device {session.record['devices']} is held by campaign {session.record['campaign']!r} "
        f"(snakemake process {boss.pid if boss else '?'}, session {session.session_id}, "
        f"since {session.record['t_start_utc']})"
    )


def wait_for_device(request: LeaseRequest, say: Callable[[str], None] = print) -> None:
    """Return once no other campaign holds the device; say every half minute who does."""
    deadline, told_s = time.monotonic() + request.device_wait_s, 0.0
    while (who := holder(request)) is not None:
        if time.monotonic() > deadline:
            raise DeviceHeld(who)
        if time.monotonic() - told_s > SAY_AGAIN_S or not told_s:
            say(f"waiting: {who}")
            told_s = time.monotonic()
        time.sleep(0.2)


@contextmanager
def leased(request: LeaseRequest, say: Callable[[str], None] = print) -> Iterator[Session]:
    """A session for one stage: no other stage evicts it meanwhile.

    The device is waited for before the use lock is taken: a waiting stage that held it would keep the
    holder's own next stage from ending what is waited for.
    """
    while True:
        wait_for_device(request, say)
        with use_devices(request.devices):
            if holder(request) is not None:
                continue  # another campaign was quicker
            yield ensure(request, say)
            return


def _start(request: LeaseRequest, mine: ProcessId) -> Session | None:
    """Start a supervisor and wait for its server; None when the device was taken by another meanwhile."""
    port = request.port or free_port()
    session_id = new_session_id()
    folder = Path(request.evidence_root).resolve() / session_id
    folder.mkdir(parents=True)
    spec = asdict(request) | {
        "session_id": session_id,
        "session_dir": str(folder),
        "argv": [part.replace("{port}", str(port)) for part in request.argv],
        "port": port,
        "url": f"http://127.0.0.1:{port}",
        "owner": mine.record(),
    }
    with (folder / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "assay.session.supervisor"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a terminal's Ctrl-C is not for the supervisor
        )
    _forget_ended()
    _STARTED.append(process)
    assert process.stdin is not None
    process.stdin.write(json.dumps(spec).encode())
    process.stdin.close()
    while True:
        code = process.poll()
        try:
            session = Session(read_json(folder / "session.json"), folder)
        except Incomplete:
            session = None  # the supervisor has not written yet
        if session is not None and session.state == "ready":
            return session
        if session is not None and session.state == "stopped":
            why, status = session.record["why_stopped"], session.record["returncode"]
            process.wait()
            raise ServerFailed(f"the server did not become ready: {why} (exit status {status})", folder)
        if code == SUPERVISOR_BUSY:
            return None
        if code is not None and session is None:
            raise ServerFailed(
                f"the supervisor ended with status {code}; see {folder.name}/supervisor.log", folder
            )
        time.sleep(0.05)


def release(
    campaign: str | None = None, why: str = "released", devices: list[str] | None = None
) -> list[str]:
    """End the sessions of this owner (of one campaign when named). Returns their ids."""
    from assay.session.devices import lock_folder

    mine = owner()
    names = devices or sorted(path.stem for path in lock_folder().glob("*.json"))
    ended = []
    for name in names:
        session = current([name])
        if session is None or not _supervised(session) or session.session_id in ended:
            continue
        if session.record["owner"] == mine.record() and campaign in (None, session.record["campaign"]):
            stop(session, why)
            ended.append(session.session_id)
    return ended
