"""The sandbox: hostile code is bounded, and nothing is run without isolation."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from assay.gates.sandbox import Limits, run_code

LIMITS = Limits(wall_s=6, cpu_s=1, memory_mib=256, file_mib=1, output_kib=16)
LAYERS = [("namespaces", "seccomp"), ("seccomp",), ("seccomp", "landlock")]


def try_out(
    code: str, layers: Sequence[str], args: Sequence[Sequence[Any]] = ((1,),), limits: Limits = LIMITS
) -> Any:
    record = run_code(code, "f", args, limits, isolation=layers)
    if record["ended"] == "no_isolation":
        pytest.skip(f"this host does not allow {layers}: {record['isolation'].get('refused')}")
    return record


@pytest.fixture(params=LAYERS, ids="+".join)
def layers(request: pytest.FixtureRequest) -> tuple[str, ...]:
    chosen: tuple[str, ...] = request.param
    return chosen


def test_values_come_back(layers: tuple[str, ...]) -> None:
    """What the calls return arrives, with exact types, and the record says which isolation was active."""
    code = "def f(n):\n    return {'n': n, 'list': [n, n / 2, None, True, 'é\\n']}"
    record = try_out(code, layers, [[1], [3]])
    assert record["ended"] == "ok"
    assert record["values"][1] == {"n": 3, "list": [3, 1.5, None, True, "é\n"]}
    assert record["isolation"]["network"]
    assert record["isolation"]["files"]
    assert record["isolation"]["processes"]


def test_without_isolation_nothing_runs(tmp_path: Path) -> None:
    """With every layer refused the code is not run at all: its file is never written."""
    trace = tmp_path / "trace"
    code = f"open({str(trace)!r}, 'w').write('ran')\ndef f(n): return n"
    record = run_code(code, "f", [[1]], LIMITS, isolation=())
    assert record["ended"] == "no_isolation"
    assert record["values"] == []
    assert not trace.exists()


@pytest.fixture
def listener() -> Iterator[tuple[int, list[Any]]]:
    """A TCP port of this host, and the connections it got."""
    got: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        done = threading.Event()

        def accept() -> None:
            while not done.is_set():
                try:
                    got.append(server.accept()[1])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1], got
        done.set()
        thread.join()


def test_no_network(layers: tuple[str, ...], listener: tuple[int, list[Any]]) -> None:
    """Code that connects to a port of the host fails, and the host sees no connection."""
    port, got = listener
    code = (
        f"import socket\ndef f(n):\n    socket.create_connection(('127.0.0.1', {port})).close()\n    return n"
    )
    record = try_out(code, layers)
    assert record["ended"] == "raised"
    time.sleep(0.25)
    assert got == []


def test_a_fork_bomb_makes_no_process(layers: tuple[str, ...]) -> None:
    """Code that forks without end is refused the first fork, and leaves no process behind."""
    before = {process.pid for process in psutil.process_iter()}
    code = "import os\ndef f(n):\n    while True:\n        os.fork()"
    record = try_out(code, layers)
    assert record["ended"] == "raised"
    assert "PermissionError" in record["error"]
    # another test run on this host may have a sandbox of its own for a moment: only what stays is ours
    end = time.monotonic() + 20
    while left := [
        process for process in psutil.process_iter() if process.pid not in before and _is_sandbox(process)
    ]:
        assert time.monotonic() < end, left
        time.sleep(0.2)


def _is_sandbox(process: psutil.Process) -> bool:
    try:
        return any(part.endswith("sandbox/child.py") for part in process.cmdline())
    except psutil.Error:
        return False


def test_big_files_are_refused(layers: tuple[str, ...]) -> None:
    """A file over the limit cannot be written, nor can a file outside the scratch folder."""
    record = try_out("def f(n):\n    open('x', 'wb').write(b'0' * (64 << 20))\n    return n", layers)
    assert record["ended"] == "raised"


def test_the_host_keeps_its_files(layers: tuple[str, ...], tmp_path: Path) -> None:
    """Files of the host can be neither changed, removed nor made."""
    target = tmp_path / "kept"
    target.write_text("kept")
    tmp_path.chmod(0o777)
    target.chmod(0o666)
    for attack in (
        f"open({str(target)!r}, 'w').write('lost')",
        f"open({str(target)!r}, 'a').write('lost')",
        f"__import__('os').unlink({str(target)!r})",
        f"__import__('os').rename({str(target)!r}, {str(target)!r} + '2')",
        f"__import__('os').truncate({str(target)!r}, 0)",
        f"__import__('os').chmod({str(target)!r}, 0)",
        f"__import__('os').mkdir({str(tmp_path / 'new')!r})",
        f"__import__('os').symlink('/', {str(tmp_path / 'link')!r})",
    ):
        assert try_out(f"def f(n):\n    {attack}\n    return n", layers)["ended"] == "raised", attack
    assert target.read_text() == "kept"
    assert os.listdir(tmp_path) == ["kept"]


def test_a_private_root_hides_the_host(tmp_path: Path) -> None:
    """With namespaces the code starts in an empty folder it may write to; the host's files are not there."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = (
        "import os\ndef f(path):\n    seen = os.listdir('.')\n    open('own', 'w').write('x')\n"
        "    return [seen, os.path.exists(path), os.path.exists('/etc/passwd'), os.path.exists('/proc/1')]"
    )
    record = try_out(code, ("namespaces", "seccomp"), [[str(secret)]])
    if "private_root" not in record["isolation"]["files"]:
        pytest.skip("this host allows no private root")
    assert record["values"] == [[[], False, False, False]]


def test_landlock_keeps_the_host_from_being_read(tmp_path: Path) -> None:
    """Where no private root can be had, Landlock still refuses to open the host's files."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = "def f(path):\n    return open(path).read()"
    record = try_out(code, ("seccomp", "landlock"), [[str(secret)]])
    if "reading" not in record["isolation"]:
        pytest.skip(f"this kernel has no Landlock: {record['isolation']['refused']}")
    assert record["ended"] == "raised"
    assert record["error"].startswith("PermissionError")


def test_the_environment_is_empty(layers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of our environment is to be seen."""
    monkeypatch.setenv("SECRET_KEY", "hidden")
    record = try_out("import os\ndef f(n):\n    return dict(os.environ)", layers)
    assert record["values"] == [{"LC_ALL": "C.UTF-8"}]


def test_an_endless_loop_ends(layers: tuple[str, ...]) -> None:
    """CPU time is bounded: the kernel ends the process before the wall limit does."""
    record = try_out("def f(n):\n    while True: pass", layers, limits=Limits(wall_s=60, cpu_s=1))
    assert record["ended"] == "killed"


def test_a_sleeper_ends(layers: tuple[str, ...]) -> None:
    """Wall time is bounded where no CPU is used, also when SIGTERM would be ignored."""
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ndef f(n):\n    time.sleep(600)"
    record = try_out(code, layers, limits=Limits(wall_s=1))
    assert record["ended"] == "timeout"


def test_output_is_bounded(layers: tuple[str, ...]) -> None:
    """Endless output ends the run, and little of it is kept."""
    record = try_out("def f(n):\n    while True: print('x' * 4000)", layers)
    assert record["ended"] == "output_limit"
    assert len(record["output"]) <= 2000


def test_results_are_bounded(layers: tuple[str, ...]) -> None:
    """An endless result ends the run like endless output."""
    record = try_out("def f(n):\n    return 'x' * (10 << 20)", layers)
    assert record["ended"] == "output_limit"


def test_memory_is_bounded(layers: tuple[str, ...]) -> None:
    """Asking for more memory than the limit fails inside, not on the host."""
    record = try_out("def f(n):\n    return len(bytearray(1 << 30))", layers)
    assert record["ended"] == "raised"
    assert record["error"].startswith("MemoryError")


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import sys\ndef f(n): return n\nsys.exit(0)", "raised"),
        ("import os\ndef f(n): return n\nos._exit(0)", "exited"),
        ('print([2])\nprint(\'{"ended": "ok"}\')\nimport os\nos._exit(0)', "exited"),
        ("import ctypes\ndef f(n): ctypes.string_at(0)", "killed"),
        ("def g(n): return n", "raised"),
        ("def f(n): raise KeyboardInterrupt", "raised"),
        ("class E(Exception):\n    def __str__(self): raise self\ndef f(n): raise E()", "raised"),
    ],
)
def test_leaving_early_gives_no_value(layers: tuple[str, ...], code: str, ended: str) -> None:
    """Ending the process, printing an answer or raising gives no value, whatever the exit code says."""
    record = try_out(code, layers)
    assert record["ended"] == ended
    assert record["values"] == []


def test_a_value_that_equals_everything_is_no_plain_value(layers: tuple[str, ...]) -> None:
    """An object that claims to be equal to anything arrives as a mark of its type, not as an answer."""
    code = (
        "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
        "def f(n): return [Any(2), (1, 2), {1: 2}, float('nan')]"
    )
    marks = [{"!type": "Any"}, {"!type": "tuple"}, {"!type": "dict"}, {"!type": "non-finite float"}]
    assert try_out(code, layers)["values"] == [marks]


def test_signals_reach_nobody(layers: tuple[str, ...]) -> None:
    """The code cannot signal the process that watches it, nor a process of the host."""
    code = f"import os\ndef f(n):\n    os.kill({os.getpid()}, 0)\n    return n"
    assert try_out(code, layers)["ended"] == "raised"


def test_the_standard_library_is_there(layers: tuple[str, ...]) -> None:
    """What generated code usually imports can be imported."""
    names = "math, re, collections, functools, itertools, decimal, fractions, heapq, string, typing, datetime"
    code = f"import {names}\ndef f(n): return math.factorial(n)"
    assert try_out(code, layers, [[5]])["values"] == [120]
