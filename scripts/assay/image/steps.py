"""Commands of a build: time limit, whole output in the build's log, its end in the record."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_BYTES = 4000
STEP_TIMEOUT_S = 3600.0
COULD_NOT_RUN = 77
"""Exit code of a check that could not be tried: neither right nor wrong, and no pass."""
# Settings of the caller's Python would leak into the image's.
_DROPPED = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "VIRTUAL_ENV",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_USER",
    "PIP_TARGET",
)


class StepFailed(Exception):
    """A build step that did not end well: which one, and what it said last.

    ``checks`` holds the results of the checks that were reached.
    """

    def __init__(
        self, step: str, detail: str, log_tail: str = "", checks: list[dict[str, Any]] | None = None
    ) -> None:
        super().__init__(f"{step}: {detail}")
        self.step, self.detail, self.log_tail = step, detail, log_tail
        self.checks = checks or []


@dataclass(frozen=True)
class StepResult:
    """``exit_code`` is null when the step ran into its time limit or could not be started."""

    exit_code: int | None
    output: str
    detail: str | None


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without what would leak into the image."""
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    return {**kept, "LC_ALL": "C.UTF-8", "PYTHONNOUSERSITE": "1", "PIP_NO_INPUT": "1", **(extra or {})}


def run_step(
    argv: Sequence[str | Path],
    log: Path,
    *,
    timeout_s: float = STEP_TIMEOUT_S,
    cwd: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> StepResult:
    """Run one command with its output appended to ``log``; never raises for a command that fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        start = stream.tell()
        stream.write(f"$ {' '.join(str(part) for part in argv)[:2000]}\n".encode())
        stream.flush()
        exit_code: int | None = None
        detail: str | None = None
        try:
            with subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=clean_environment(extra),
                start_new_session=True,
            ) as process:
                try:
                    exit_code = process.wait(timeout_s)
                except BaseException as error:
                    _end(process)
                    if not isinstance(error, subprocess.TimeoutExpired):
                        raise
                    detail = f"still running after {timeout_s:g} s"
        except OSError as error:
            detail = f"cannot be started: {error}"
    if detail is None and exit_code != 0:
        detail = f"ended {exit_code}"
    with log.open("rb") as stream:
        stream.seek(start)
        output = stream.read(4 << 20).decode("utf-8", "replace")
    return StepResult(exit_code, output, detail)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step and what it started: it has a process group of its own."""
    for number in (15, 9):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + 5
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.05)


def tail(output: str) -> str:
    """The end of an output, cut at a line, for a record."""
    if len(output) <= TAIL_BYTES:
        return output
    cut = output[-TAIL_BYTES:]
    return cut[cut.find("\n") + 1 :]


def require(step: str, result: StepResult) -> StepResult:
    """Raise StepFailed unless the step ended 0."""
    if result.detail is not None:
        raise StepFailed(step, result.detail, tail(result.output))
    return result
