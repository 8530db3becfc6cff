"""The lease: one server at a time, and none that outlives its owner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.session.devices import HOST_DEVICE, DeviceBusy, hold_devices, write_note
from assay.session.lease import (
    DeviceHeld,
    LeaseRequest,
    ServerFailed,
    Session,
    current,
    ensure,
    release,
    stop,
)
from assay.session.processes import ProcessId, identify, is_alive, send_signal, wait_until_gone

PLAIN_SERVER = Path(__file__).resolve().parents[2] / "engines" / "plain_server.py"


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ASSAY_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.delenv("ASSAY_OWNER_PID", raising=False)
    yield
    monkeypatch.setenv("ASSAY_OWNER_PID", str(os.getpid()))
    release()


def request(tmp_path: Path, leg: str = "a", *options: str, **changes: object) -> LeaseRequest:
    fields: dict[str, object] = {
        "campaign": "campaign_x",
        "leg": leg,
        "arm": leg,
        "digest": f"digest-{leg}",
        "argv": [sys.executable, str(PLAIN_SERVER), "--port", "{port}", *options],
        "run_id_stem": f"model__{leg}__4k__plain__unit",
        "devices": [HOST_DEVICE],
        "evidence_root": str(tmp_path / "evidence"),
        "ready_timeout_s": 20.0,
        "grace_s": 2.0,
    }
    return LeaseRequest(**(fields | changes))  # type: ignore[arg-type]


def server_of(session: Session) -> ProcessId:
    process = ProcessId.from_record(session.record["server"])
    assert process is not None
    return process


def run_owner(tmp_path: Path, code: str) -> subprocess.Popen[str]:
    """Another process that owns a lease, as another snakemake would."""
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ.copy()
    )


OWNER_CODE = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from unit.session.test_lease import request
from assay.session.lease import ensure
session = ensure(request(Path({tmp!r}), "other"))
print(session.session_id, flush=True)
time.sleep(120)
"""


@pytest.fixture
def other_owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    code = OWNER_CODE.format(tests=str(PLAIN_SERVER.parents[1]), tmp=str(tmp_path))
    process = run_owner(tmp_path, code)
    assert process.stdout is not None
    assert process.stdout.readline().strip()
    with contextlib.closing(process.stdout):
        yield process
    process.kill()
    process.wait()


def test_a_leg_shares_one_server(tmp_path: Path) -> None:
    """Two stages of a leg get the same session and the same server process."""
    first, second = ensure(request(tmp_path)), ensure(request(tmp_path))
    assert first.session_id == second.session_id
    assert server_of(first) == server_of(second)
    assert first.record["run_id"].startswith("model__a__4k__plain__unit__")


def test_another_leg_evicts(tmp_path: Path) -> None:
    """The next leg's server starts only after the first one's process is gone, which is recorded as evicted."""
    first = ensure(request(tmp_path, "a"))
    second = ensure(request(tmp_path, "b"))
    assert not is_alive(server_of(first))
    assert is_alive(server_of(second))
    assert first.refreshed().record["why_stopped"] == "evicted"
    assert first.refreshed().record["t_stop_utc"] <= second.record["t_start_utc"]


def test_release_ends_the_server_and_frees_the_device(tmp_path: Path) -> None:
    """After release neither server nor supervisor lives, and the device lock can be had."""
    session = ensure(request(tmp_path))
    assert release() == [session.session_id]
    assert not is_alive(server_of(session))
    with hold_devices([HOST_DEVICE], timeout_s=1):
        pass
    record = session.refreshed().record
    assert (record["state"], record["why_stopped"]) == ("stopped", "released")


def test_the_lock_is_held_while_the_server_lives(tmp_path: Path) -> None:
    """Nobody gets the device of a live server, even when the note beside the lock is lost."""
    ensure(request(tmp_path))
    (tmp_path / "locks" / "host.json").rename(tmp_path / "locks" / "host.lost")
    with pytest.raises(DeviceBusy), hold_devices([HOST_DEVICE], timeout_s=0.2):
        pass
    (tmp_path / "locks" / "host.lost").rename(tmp_path / "locks" / "host.json")


def test_a_server_that_ignores_term_is_killed(tmp_path: Path) -> None:
    """A server that does not end within its grace is killed, and the record says so."""
    session = ensure(request(tmp_path, "a", "--ignore-term", grace_s=0.5))
    stop(session, "released")
    assert not is_alive(server_of(session))
    assert session.refreshed().record["killed_after_grace"] is True


def test_workers_in_their_own_session_end_too(tmp_path: Path) -> None:
    """A worker that left the server's process group does not survive the session."""
    session = ensure(request(tmp_path, "a", "--worker"))
    worker_pid = int((session.folder / "server.log").read_text().split()[1])
    worker = identify(worker_pid)
    assert is_alive(worker)
    stop(session, "released")
    assert wait_until_gone(worker, 5)


def test_a_crash_is_recorded_and_the_next_stage_gets_a_new_session(tmp_path: Path) -> None:
    """A killed server ends its session by its own fault; `ensure` then starts another one."""
    first = ensure(request(tmp_path))
    send_signal(server_of(first), signal.SIGKILL)
    assert wait_until_gone(ProcessId.from_record(first.record["supervisor"]), 10)
    record = first.refreshed().record
    assert (record["why_stopped"], record["returncode"]) == ("server exited by itself", -signal.SIGKILL)
    assert ensure(request(tmp_path)).session_id != first.session_id


def test_a_server_that_cannot_start_is_tried_twice_only(tmp_path: Path) -> None:
    """Five stages of a leg whose server dies at start cause two starts, and the record has the log's tail."""
    for _ in range(5):
        with pytest.raises(ServerFailed):
            ensure(request(tmp_path, "a", "--fail"))
    records = [json.loads(path.read_text()) for path in (tmp_path / "evidence").glob("*/session.json")]
    assert len(records) == 2
    assert all(record["returncode"] == 7 for record in records)
    assert all("scripted failure: no such weights" in record["log_tail"] for record in records)


def test_an_argv_that_cannot_be_executed_is_recorded(tmp_path: Path) -> None:
    """A missing interpreter is a failed start with a record, not a hang."""
    with pytest.raises(ServerFailed, match="cannot be executed"):
        ensure(request(tmp_path, argv=[str(tmp_path / "no-such-python")]))


def test_a_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    """Past its readiness timeout a server is ended and the start counts as failed."""
    with pytest.raises(ServerFailed, match="never became ready"):
        ensure(request(tmp_path, "a", "--startup-s", "60", ready_timeout_s=0.5))


def test_the_death_of_the_owner_ends_the_server(tmp_path: Path, other_owner: subprocess.Popen[str]) -> None:
    """kill -9 of the owning process leaves no server and no supervisor behind."""
    session = current([HOST_DEVICE])
    assert session is not None
    assert is_alive(server_of(session))
    other_owner.kill()
    other_owner.wait()
    assert wait_until_gone(server_of(session), 15)
    assert wait_until_gone(ProcessId.from_record(session.record["supervisor"]), 15)
    assert session.refreshed().record["why_stopped"] == "owner gone"


def test_the_death_of_the_supervisor_ends_the_server(tmp_path: Path) -> None:
    """kill -9 of the supervisor takes the server with it: its lock must not be free while it serves."""
    session = ensure(request(tmp_path))
    send_signal(ProcessId.from_record(session.record["supervisor"]), signal.SIGKILL)
    assert wait_until_gone(server_of(session), 5)


def test_a_second_campaign_is_told_who_holds_the_device(
    tmp_path: Path, other_owner: subprocess.Popen[str]
) -> None:
    """While another owner's server lives, `ensure` waits, names the holder, and gives up after its limit."""
    said: list[str] = []
    holder = current([HOST_DEVICE])
    assert holder is not None
    with pytest.raises(DeviceHeld, match="held by campaign 'campaign_x'"):
        ensure(request(tmp_path, device_wait_s=0.5), said.append)
    assert len(said) == 1
    assert holder.session_id in said[0]
    assert is_alive(server_of(holder)), "the holder's server was not touched"


def test_a_waiting_campaign_goes_on_when_the_device_is_free(
    tmp_path: Path, other_owner: subprocess.Popen[str]
) -> None:
    """Once the holder is gone the waiting campaign gets the device."""
    holder = current([HOST_DEVICE])
    assert holder is not None
    other_owner.terminate()
    other_owner.wait()
    session = ensure(request(tmp_path, device_wait_s=30))
    assert session.session_id != holder.session_id
    assert not is_alive(server_of(holder))


def test_a_stale_note_does_not_block(tmp_path: Path) -> None:
    """A note whose session folder is gone is no holder."""
    (tmp_path / "locks").mkdir()
    write_note([HOST_DEVICE], {"session_id": "x", "session_dir": str(tmp_path / "gone")})
    assert ensure(request(tmp_path)).state == "ready"


def test_signals_are_for_the_very_process(tmp_path: Path) -> None:
    """A pid that was reused is never signalled."""
    process = subprocess.Popen(["sleep", "30"])
    try:
        mine = identify(process.pid)
        assert mine is not None
        stranger = ProcessId(mine.pid, str(int(mine.start_ticks) + 1))
        assert send_signal(stranger, signal.SIGKILL) is False
        time.sleep(0.1)
        assert process.poll() is None
        assert send_signal(mine, signal.SIGKILL) is True
    finally:
        process.kill()
        process.wait()


def test_only_the_allowed_environment_reaches_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret in our environment is not in the server's."""
    monkeypatch.setenv("SOME_API_KEY", "secret-value")
    session = ensure(request(tmp_path))
    environment = Path(f"/proc/{server_of(session).pid}/environ").read_bytes()
    assert b"secret-value" not in environment
    assert b"PATH=" in environment
