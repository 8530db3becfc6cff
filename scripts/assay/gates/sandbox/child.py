"""The sandbox process: confine itself, run generated code, call its function, say what came back.

Run by path as ``python -I -S child.py JOB_FD RESULT_FD STATUS_FD SCRATCH``; the standard library only.
What it writes to the status pipe is written before the code runs. The result pipe holds values of calls;
the values that would be right are not known in here, so there is nothing to print or to fake.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import sys
from types import ModuleType
from typing import Any

_MAX_ERROR_CHARS = 500
_EXIT_UNCONFINED = 97


def _sibling(name: str) -> ModuleType:
    """A module beside this file, loaded by path: the package is not importable in here."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_sandbox_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Confine, fork, run; the exit status of the code's process, 128 + signal when one ended it."""
    job_fd, result_fd, status_fd = (int(text) for text in sys.argv[1:4])
    scratch = sys.argv[4]
    confine, seccomp = _sibling("confine"), _sibling("seccomp")
    libc = ctypes.CDLL(None, use_errno=True)
    with os.fdopen(job_fd, "rb") as stream:
        job = json.loads(stream.read())
    confine.die_with_parent(libc)
    active: dict[str, Any] = {"network": [], "files": [], "processes": [], "refused": {}}
    wanted = job["isolation"]
    is_root = os.geteuid() == 0
    if "namespaces" in wanted:
        try:
            confine.enter_namespaces(libc)
            active["network"].append("namespace")
            # root is not bound by the limit on processes: only the filter stops a fork bomb then
            if not is_root:
                active["processes"].append("namespace")
        except OSError as error:
            active["refused"]["namespaces"] = str(error)[:200]
    first = os.fork()
    if first:
        for fd in (result_fd, status_fd):
            os.close(fd)
        return _wait(first)
    confine.die_with_parent(libc)
    second = os.fork()
    if second:  # process 1 of the namespace: it only waits, since the kernel shields it from limits
        for fd in (result_fd, status_fd):
            os.close(fd)
        os._exit(_wait(second))
    confine.die_with_parent(libc)
    _confine_code(confine, seccomp, libc, job, active, scratch)
    is_safe = bool(active["network"]) and bool(active["files"]) and bool(active["processes"])
    os.write(status_fd, json.dumps({"isolation": active, "is_safe": is_safe}).encode() + b"\n")
    os.close(status_fd)
    if not is_safe:
        os._exit(_EXIT_UNCONFINED)
    _run(job, result_fd)
    os._exit(0)


def _confine_code(
    confine: ModuleType,
    seccomp: ModuleType,
    libc: ctypes.CDLL,
    job: dict[str, Any],
    active: dict[str, Any],
    scratch: str,
) -> None:
    limits = job["limits"]
    machine = platform.machine()
    if "namespace" in active["network"]:
        try:
            confine.enter_private_root(libc, scratch, limits["file_bytes"], machine)
            active["files"].append("private_root")
        except OSError as error:
            active["refused"]["private_root"] = str(error)[:200]
    if not active["files"]:
        os.chdir(scratch)
        if "landlock" in job["isolation"]:
            try:
                confine.restrict_reading(libc, scratch)
                active["reading"] = ["landlock"]
            except OSError as error:
                active["refused"]["landlock"] = str(error)[:200]
    try:
        confine.drop_capabilities(libc)
    except OSError as error:
        active["refused"]["capabilities"] = str(error)[:200]
    confine.set_limits(limits["memory_bytes"], limits["cpu_s"], limits["file_bytes"])
    active["limits"] = dict(limits)
    if "seccomp" in job["isolation"] and seccomp.is_known_architecture():
        deny_writes = not active["files"]
        try:
            seccomp.install(libc, deny_writes=deny_writes)
        except OSError as error:
            active["refused"]["seccomp"] = str(error)[:200]
            return
        # believed only when it bites: AF_INET, SOCK_STREAM
        if libc.socket(2, 1, 0) != -1:
            active["refused"]["seccomp"] = "a socket could be made"
            return
        active["network"].append("seccomp")
        active["processes"].append("seccomp")
        if deny_writes:
            active["files"].append("seccomp")


def _run(job: dict[str, Any], result_fd: int) -> None:
    """Compile, execute, call; one JSON line a call, and a last line that says how it ended."""
    dumps, write = json.dumps, os.write

    def say(value: dict[str, Any]) -> None:
        text = dumps(value).encode() + b"\n"
        while text:
            text = text[write(result_fd, text) :]

    space: dict[str, Any] = {"__name__": "generated", "__builtins__": __builtins__}
    try:
        exec(compile(job["code"], "<generated>", "exec"), space)
        function = space[job["function"]]
        for number, args in enumerate(job["args"]):
            say({"call": number, "value": _plain(function(*args), 0)})
        say({"ended": "ok"})
    except BaseException as error:  # noqa: BLE001 - whatever the code does is its result
        try:
            text = str(error)
        except BaseException:  # noqa: BLE001 - an error may refuse to be printed
            text = "(no text)"
        say({"ended": "raised", "error": type(error).__name__[:80], "text": text[:_MAX_ERROR_CHARS]})


def _plain(value: Any, depth: int) -> Any:
    """The value if it is plain JSON of exact types, else a mark that equals no expected value."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value if kind is not float or value - value == 0 else {"!type": "non-finite float"}
    if depth < 20:
        if kind is list:
            return [_plain(item, depth + 1) for item in value]
        if kind is dict and all(type(key) is str for key in value):
            return {key: _plain(item, depth + 1) for key, item in value.items()}
    return {"!type": kind.__name__[:80]}


def _wait(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
