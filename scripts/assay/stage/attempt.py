"""One attempt at a stage: `stage.json` in the evidence when it begins and when it ends, then the receipt."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from assay.digest import PACKAGE_ROOT, canonical_json, sha256_of_bytes, sha256_of_file, sha256_of_modules
from assay.records.files import write_json
from assay.session.lease import Session, owner
from assay.session.processes import call_when_gone
from assay.vocab import Reason, StageState

SCHEMA = "assay/stage/1"


class Interrupted(BaseException):
    """The stage was told to stop: no receipt is written, the record says `interrupted`."""

    def __init__(self, signal_number: int):
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


def now_utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def package_sha256() -> str:
    """Digest of all Python sources of the package: what code wrote a record."""
    return sha256_of_modules(["."])


@cache
def commit() -> str | None:
    """The checkout's commit, `-dirty` when tracked files differ from it; None outside git."""
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    root = PACKAGE_ROOT.parent.parent

    def git(*words: str) -> str | None:
        try:
            run = subprocess.run(
                ["git", "-C", str(root), *words],
                capture_output=True,
                text=True,
                env=environment,
                timeout=20,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None  # no git, or no checkout: the package digest still says what code ran
        return run.stdout.strip()

    head = git("rev-parse", "HEAD")
    if head is None:
        return None
    return f"{head}-dirty" if git("status", "--porcelain", "--untracked-files=no") else head


def describe_files(results: Path, files: Iterable[Path]) -> list[dict[str, Any]]:
    """`{path, sha256, bytes}` of each file, its path relative to ``results``."""
    return [
        {
            "path": file.resolve().relative_to(results.resolve()).as_posix(),
            "sha256": sha256_of_file(file),
            "bytes": file.stat().st_size,
        }
        for file in sorted(files)
    ]


def new_folder(wanted: Path) -> Path:
    """``wanted``, or `<wanted>-a<k>` when an earlier attempt of the same session has it: nothing is overwritten."""
    folder, k = wanted, 1
    while folder.exists():
        k += 1
        folder = wanted.with_name(f"{wanted.name}-a{k}")
    folder.mkdir(parents=True)
    return folder


class Attempt:
    """The record of one attempt. `folder` is its place in the session's evidence."""

    def __init__(self, spec: dict[str, Any], session: Session | None, folder: Path | None, results: Path):
        self.folder, self.results = folder, results
        text = canonical_json(spec)
        point = spec.get("point") or {}
        self.record: dict[str, Any] = {
            "schema": SCHEMA,
            "stage": spec["stage"],
            "campaign": spec["campaign"],
            "leg": spec.get("leg"),
            "arm": spec.get("arm"),
            "point_id": point.get("point_id"),
            "repeat": spec.get("repeat"),
            "window": None,
            "attempt_id": None,
            "session_id": session.session_id if session else None,
            "run_id": session.record["run_id"] if session else None,
            "state": str(StageState.STARTED),
            "reasons": [],
            "detail": None,
            "spec": spec,
            "spec_sha256": sha256_of_bytes(text.encode()),
            "evidence": [],
            "measured": {},
            "package_sha256": package_sha256(),
            "commit": commit(),
            "t_start_utc": now_utc(),
            "t_end_utc": None,
        }
        if session is not None and folder is not None:
            place = folder.resolve().relative_to(session.folder.resolve()).as_posix()
            self.record["attempt_id"] = f"{session.session_id}/{place}"
            write_json(folder / "stage.json", self.record)

    @contextmanager
    def told_if_interrupted(self) -> Iterator[None]:
        """An interrupted attempt says so in its record; one that was killed is still `started`."""
        try:
            yield
        except Interrupted as stop:
            self.drop_temporaries()
            self.finish(StageState.FAILED, [Reason.INTERRUPTED], f"ended by {stop}")
            raise

    def drop_temporaries(self) -> None:
        """Half-written files of an interrupted attempt go; what was recorded durably (journals) stays."""
        for file in self.folder.rglob(".*") if self.folder else ():
            file.unlink(missing_ok=True)

    def finish(
        self,
        state: StageState,
        reasons: Iterable[Reason] = (),
        detail: str | None = None,
        measured: dict[str, Any] | None = None,
        evidence: Iterable[Path] | None = None,
    ) -> dict[str, Any]:
        """Write the final record. ``evidence``: files to pin; by default all that lie in the folder."""
        if evidence is None and self.folder is not None:
            evidence = [
                file for file in self.folder.rglob("*") if file.is_file() and file.name != "stage.json"
            ]
        self.record |= {
            "state": str(state),
            "reasons": sorted({str(reason) for reason in reasons}),
            "detail": detail[:2_000] if detail else None,
            "measured": measured or {},
            "evidence": describe_files(self.results, evidence or []),
            "t_end_utc": now_utc(),
        }
        if self.folder is not None:
            write_json(self.folder / "stage.json", self.record)
        return self.record


def write_receipt(path: Path, record: dict[str, Any], record_file: Path | None, results: Path) -> None:
    """The declared output of the stage: its record, and the digest of the record in the evidence."""
    pinned = None
    if record_file is not None:
        described = describe_files(results, [record_file])[0]
        pinned = {"path": described["path"], "sha256": described["sha256"]}
    write_json(path, record | {"stage_record": pinned})


ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def ignore_signals() -> None:
    """Hear no request to end any more, the interpreter's own last moments included."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM, SIGINT and SIGHUP, and the death of the owning snakemake, into Interrupted."""

    def interrupt(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough; the clean-up must not be cut
        raise Interrupted(number)

    for number in ENDING:
        signal.signal(number, interrupt)
    boss = owner()
    if boss.pid != os.getpid():
        call_when_gone(boss, lambda: os.kill(os.getpid(), signal.SIGTERM))
    yield
