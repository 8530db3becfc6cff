"""Run generated code: a separate process without network, an empty scratch folder, hard limits, a deadline.

The host decides what can be had: Linux namespaces with a private root and a seccomp filter; where it allows
no namespaces, the filter alone, with Landlock against reading the host's files. What was really active is
part of each run's record. Without network, file and process isolation nothing is run.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHILD = Path(__file__).resolve().parent / "child.py"
_MAX_RESULT_BYTES = 256 << 10
_KEPT_OUTPUT_CHARS = 2000
ISOLATION = ("namespaces", "seccomp", "landlock")


@dataclass(frozen=True)
class Limits:
    """What one run may use. ``output_kib`` bounds stdout and stderr together."""

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_mib: int = 512
    file_mib: int = 8
    output_kib: int = 64


def run_code(
    code: str,
    function: str,
    args: Sequence[Sequence[Any]],
    limits: Limits,
    *,
    isolation: Sequence[str] = ISOLATION,
) -> dict[str, Any]:
    """Execute ``code`` once in a fresh sandbox and call ``function`` with each argument list.

    Returns ``{"ended", "values", "error", "exit_code", "output", "output_bytes", "elapsed_ms",
    "isolation"}``: ``ended`` is ``ok``, ``raised``, ``exited`` (the process ended before the last call),
    ``killed`` (by a limit of the kernel), ``timeout``, ``output_limit`` or ``no_isolation`` (nothing was
    run); ``values`` holds the plain values of the calls that returned.
    """
    job = {
        "code": code,
        "function": function,
        "args": [list(one) for one in args],
        "isolation": list(isolation),
        "limits": {
            "memory_bytes": limits.memory_mib << 20,
            "cpu_s": limits.cpu_s,
            "file_bytes": limits.file_mib << 20,
        },
    }
    if not sys.platform.startswith("linux"):
        return _record("no_isolation", {"refused": {"platform": sys.platform}}, 0.0)
    with tempfile.TemporaryDirectory(prefix="assay-sandbox-") as folder:
        return _run_in(Path(folder), json.dumps(job).encode(), limits)


def _run_in(folder: Path, job: bytes, limits: Limits) -> dict[str, Any]:
    job_path = folder / "job.json"
    job_path.write_bytes(job)
    scratch = folder / "scratch"
    scratch.mkdir()
    job_fd = os.open(job_path, os.O_RDONLY)
    job_path.unlink()
    result_read, result_write = os.pipe()
    status_read, status_write = os.pipe()
    output_read, output_write = os.pipe()
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            [
                python,
                "-I",
                "-S",
                str(_CHILD),
                str(job_fd),
                str(result_write),
                str(status_write),
                str(scratch),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output_write,
            stderr=output_write,
            cwd="/",
            env={"LC_ALL": "C.UTF-8"},
            pass_fds=(job_fd, result_write, status_write),
            start_new_session=True,
        )
    finally:
        for fd in (job_fd, result_write, status_write, output_write):
            os.close(fd)
    try:
        pipes = {"result": result_read, "status": status_read, "output": output_read}
        bounds = {"result": _MAX_RESULT_BYTES, "status": 65536, "output": limits.output_kib << 10}
        got, why = _collect(process, pipes, bounds, start + limits.wall_s)
    finally:
        _kill_group(process)
        for fd in (result_read, status_read, output_read):
            os.close(fd)
    elapsed_ms = (time.monotonic() - start) * 1000
    return _judge_run(got, why, process.returncode, elapsed_ms)


def _collect(
    process: subprocess.Popen[bytes], pipes: Mapping[str, int], bounds: Mapping[str, int], deadline: float
) -> tuple[dict[str, bytes], str | None]:
    """Read the pipes until all are closed and the process is gone; why it was stopped, if it was."""
    got = {name: bytearray() for name in pipes}
    with selectors.DefaultSelector() as selector:
        for name, fd in pipes.items():
            selector.register(fd, selectors.EVENT_READ, name)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return _frozen(got), "timeout"
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(key.fd)
                    continue
                kept = got[key.data]
                kept += chunk
                if len(kept) > bounds[key.data]:
                    return _frozen(got), "output_limit"
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return _frozen(got), "timeout"
    return _frozen(got), None


def _frozen(got: Mapping[str, bytearray]) -> dict[str, bytes]:
    return {name: bytes(data) for name, data in got.items()}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End every process of the run and reap the first."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended between the two lines
    process.wait()


def _judge_run(
    got: Mapping[str, bytes], why: str | None, exit_code: int | None, elapsed_ms: float
) -> dict[str, Any]:
    status = _lines(got["status"])
    isolation = status[0].get("isolation", {}) if status else {}
    record = _record("", isolation, elapsed_ms)
    record["exit_code"] = exit_code
    record["output_bytes"] = len(got["output"])
    record["output"] = got["output"].decode("utf-8", "replace")[:_KEPT_OUTPUT_CHARS]
    if not status or not status[0].get("is_safe"):
        record["ended"] = "no_isolation" if why is None else why
        return record
    lines = _lines(got["result"])
    record["values"] = [line["value"] for number, line in enumerate(_calls(lines)) if line["call"] == number]
    last = lines[-1] if lines else {}
    if why is not None:
        record["ended"] = why
    elif last.get("ended") in ("ok", "raised"):
        record["ended"] = last["ended"]
        if last["ended"] == "raised":
            record["error"] = f"{last.get('error')}: {last.get('text')}"[:600]
    else:
        # 128 + signal: the kernel ended it (CPU time, memory); else the code left by itself
        record["ended"] = "killed" if exit_code is not None and exit_code > 128 else "exited"
    return record


def _calls(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in lines if "call" in line and "value" in line]


def _lines(data: bytes) -> list[dict[str, Any]]:
    """The JSON objects, one a line; what is none of these (the code may write here) is left out."""
    values = []
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            values.append(value)
    return values


def _record(ended: str, isolation: Mapping[str, Any], elapsed_ms: float) -> dict[str, Any]:
    return {
        "ended": ended,
        "values": [],
        "error": None,
        "exit_code": None,
        "output": "",
        "output_bytes": 0,
        "elapsed_ms": round(elapsed_ms, 1),
        "isolation": dict(isolation),
    }


__all__ = ["ISOLATION", "Limits", "run_code"]
