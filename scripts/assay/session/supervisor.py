"""The detached process that owns one server: `python -m assay.session.supervisor`, its order on stdin.

It holds the device locks until the server is reaped, watches the owner by pidfd, samples telemetry, and
writes session.json from the first second on. Three signals end it: SIGTERM (released), SIGUSR1
(interrupted), SIGUSR2 (evicted). Whatever ends it, the server goes first.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from assay.records.files import write_json
from assay.session.devices import DeviceBusy, hold_devices, write_note
from assay.session.lease import STOP_SIGNALS, SUPERVISOR_BUSY
from assay.session.processes import ProcessId, identify, open_pidfd
from assay.session.telemetry import Telemetry

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOG_TAIL_BYTES = 4_000
LOCK_TIMEOUT_S = 20.0
# The server sees these variables of ours, and what its image asks for; nothing else of the environment.
ENVIRONMENT_ALLOWED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "USER", "LOGNAME",
)  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


def _now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _die_with_parent() -> None:
    """In the server's process before exec: its own group, and SIGKILL when the supervisor dies."""
    os.setsid()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Supervisor:
    """The life of one server; ``spec`` is a LeaseRequest with session id, folder, port and owner filled in."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.folder = Path(spec["session_dir"])
        self.why: list[str] = []
        started = datetime.now(UTC)
        self.record: dict[str, Any] = {
            "schema": "assay/session/1",
            "session_id": spec["session_id"],
            "run_id": f"{spec['run_id_stem']}__{started:%m%d-%H%M%S}",
            **{key: spec[key] for key in ("campaign", "leg", "arm", "digest", "devices", "port", "url")},
            "argv": [rename(part, spec["path_names"]) for part in spec["argv"]],
            **spec["identity"],
            "environment": spec["environment"],
            "owner": spec["owner"],
            "supervisor": _record(identify(os.getpid())),
            "server": None,
            "state": "starting",
            "t_start_utc": _now_utc(),
            "t_start_ns": time.monotonic_ns(),
            "t_ready_utc": None,
            "ready_after_s": None,
            "t_stop_utc": None,
            "why_stopped": None,
            "returncode": None,
            "killed_after_grace": False,
            "log_tail": None,
        }

    def put(self, **changes: Any) -> None:
        self.record.update(changes)
        write_json(self.folder / "session.json", self.record)

    def run(self) -> int:
        """Hold the devices, run the server to its end, tell why it ended."""
        for name, number in STOP_SIGNALS.items():
            signal.signal(number, lambda *_, name=name: self.why.append(name))
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # workers that outlive the server become ours, to be ended
        try:
            with hold_devices(self.spec["devices"], LOCK_TIMEOUT_S):
                self.serve()
        except DeviceBusy as busy:
            print(f"device not free: {busy}", flush=True)
            return SUPERVISOR_BUSY
        return 0

    def serve(self) -> None:
        note = {key: self.record[key] for key in ("session_id", "campaign", "leg", "owner", "supervisor")}
        self.put()
        write_note(self.spec["devices"], note | {"session_dir": str(self.folder)})
        environment = {name: os.environ[name] for name in ENVIRONMENT_ALLOWED if name in os.environ}
        with (self.folder / "server.log").open("ab") as log:
            try:
                server = subprocess.Popen(
                    self.spec["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment | self.spec["environment"],
                    preexec_fn=_die_with_parent,
                    cwd=self.folder,
                )
            except OSError as error:
                self.put(state="stopped", why_stopped=f"cannot be executed: {error}", t_stop_utc=_now_utc())
                return
        self.put(server=_record(identify(server.pid)))
        telemetry = Telemetry(self.folder / "telemetry.jsonl", server.pid)
        try:
            self.watch(server, telemetry)
        finally:
            self.put(state="stopping", why_stopped=self.why[0] if self.why else "supervisor failed")
            self.end(server)
            telemetry.close()
            tail = (self.folder / "server.log").read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            self.put(state="stopped", returncode=server.returncode, t_stop_utc=_now_utc(), log_tail=tail)

    def watch(self, server: subprocess.Popen[bytes], telemetry: Telemetry) -> None:
        """Return when there is a reason to end the server; the first reason is in ``why``."""
        owner = ProcessId.from_record(self.spec["owner"])
        owner_handle = open_pidfd(owner) if owner else None
        if owner_handle is None:
            self.why.append("owner gone")
            return
        server_handle = os.pidfd_open(server.pid)
        deadline = time.monotonic() + self.spec["ready_timeout_s"]
        while not self.why:
            starting = self.record["state"] == "starting"
            ended, _, _ = select.select([owner_handle, server_handle], [], [], 0.1 if starting else 0.5)
            if server_handle in ended:
                server.wait()
                self.why.append("server exited by itself")
            elif owner_handle in ended:
                self.why.append("owner gone")
            elif starting and self.is_ready():
                ready_after_s = (time.monotonic_ns() - self.record["t_start_ns"]) / 1e9
                self.put(state="ready", t_ready_utc=_now_utc(), ready_after_s=ready_after_s)
            elif starting and time.monotonic() > deadline:
                self.why.append("never became ready")
            telemetry.sample_if_due()
        os.close(server_handle)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.spec["url"] + self.spec["ready_path"], timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError, ValueError):
            return False  # not yet: the deadline decides

    def end(self, server: subprocess.Popen[bytes]) -> None:
        """TERM to the server's group, KILL after the grace, and to every worker that is left."""
        family = psutil.Process().children(recursive=True)
        if server.poll() is None:
            _signal_group(server.pid, signal.SIGTERM)
            try:
                server.wait(self.spec["grace_s"])
            except subprocess.TimeoutExpired:
                self.record["killed_after_grace"] = True
        _signal_group(server.pid, signal.SIGKILL)
        for member in {*family, *psutil.Process().children(recursive=True)}:
            if member.pid != server.pid:
                try:
                    member.kill()
                except psutil.NoSuchProcess:
                    continue  # it ended by itself
        server.wait()


def rename(text: str, path_names: dict[str, str]) -> str:
    """Folders of this machine under their names, the deepest first: no home path enters a record."""
    for folder in sorted(path_names, key=len, reverse=True):
        text = text.replace(folder, path_names[folder])
    return text


def _record(process: ProcessId | None) -> dict[str, Any] | None:
    return process.record() if process else None


def _signal_group(leader_pid: int, number: int) -> None:
    try:
        os.killpg(leader_pid, number)
    except ProcessLookupError:
        return  # nobody is left in the group


if __name__ == "__main__":
    sys.exit(Supervisor(json.load(sys.stdin)).run())
