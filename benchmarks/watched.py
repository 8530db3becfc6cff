"""One client against the C server (sse_server.c): each on a core of its own, what it cost, and what the server saw."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
END_S = 10.0
Entry = tuple[int, int, NDArray[np.int64]]
"""One request in the server's log: its tag, when it was received, when each token was sent (monotonic ns)."""


@dataclass
class Sample:
    """CPU (ns, since its start) and resident memory (bytes) of a process tree over time (monotonic ns)."""

    t_ns: list[int] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)

    def cpu_between(self, start_ns: int, end_ns: int) -> float:
        """CPU seconds between two moments, interpolated between samples."""
        spent = np.interp([start_ns, end_ns], self.t_ns, self.cpu_ns)
        return float(spent[1] - spent[0]) / 1e9


@dataclass
class Run:
    """One run of one client: the server's log and counts, the client's cost, and the folder it wrote to."""

    log: list[Entry]
    stats: dict[str, Any]
    sample: Sample
    folder: Path
    t_start_ns: int
    wall_s: float

    @property
    def t_first_ns(self) -> int:
        """The first request of the load: a client's own test request before it is left out."""
        received = sorted(entry[1] for entry in self.log)
        return received[1] if len(received) > 1 and received[1] - received[0] > 50_000_000 else received[0]

    @property
    def t_last_ns(self) -> int:
        return max(int(entry[2][-1]) for entry in self.log if len(entry[2]))


class Bench:
    """The C server, compiled into ``work``, and a client beside it: the first and the last core that may be used."""

    def __init__(self, work: Path, port: int, *, favoured: bool, realtime: bool) -> None:
        self.work, self.port = work, port
        self.favoured, self.realtime = favoured, realtime
        self.server = work / "sse_server"
        subprocess.run(["cc", "-O2", "-o", self.server, HERE / "sse_server.c"], check=True)
        cores = sorted(os.sched_getaffinity(0))
        self.cores = (cores[0], cores[-1])
        self.url = f"http://127.0.0.1:{port}"

    def pinned(self, core: int, slow: bool = False) -> list[str]:
        realtime = ["chrt", "-f", "20"] if self.realtime and not slow else []
        return [*realtime, "taskset", "-c", str(core)]

    def favour(self, process: subprocess.Popen[bytes]) -> None:
        """Put a session of its own before other work on the machine: the highest weight of the scheduler."""
        if self.favoured:
            Path(f"/proc/{process.pid}/autogroup").write_text("-20")

    @contextmanager
    def serving(self, *flags: str) -> Iterator[tuple[Path, Path]]:
        log, stats = self.work / "server.log", self.work / "server.json"
        log.unlink(missing_ok=True)
        command = [
            *self.pinned(self.cores[0]),
            str(self.server),
            "--port",
            str(self.port),
            "--log",
            str(log),
        ]
        process = subprocess.Popen([*command, "--stats", str(stats), *flags], start_new_session=True)
        self.favour(process)
        time.sleep(0.3)
        try:
            yield log, stats
        finally:
            end(process)

    def run(self, command: list[str], *flags: str, timeout_s: float = 900.0, slow: bool = False) -> Run:
        """Run a client against a fresh server; its output goes to ``client.txt``."""
        folder = self.work / "out"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        sample = Sample()
        with self.serving(*flags) as (log, stats):
            t_start_ns = time.monotonic_ns()
            with (self.work / "client.txt").open("w") as output:
                environment = os.environ | {"OPENAI_API_KEY": "x", "TOKENIZERS_PARALLELISM": "false"}
                process = subprocess.Popen(
                    [*self.pinned(self.cores[1], slow), *command],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                )
                self.favour(process)
                watcher = threading.Thread(target=watch, args=(process.pid, sample, process.poll))
                watcher.start()
                try:
                    process.wait(timeout_s)
                finally:
                    end(process)
                    watcher.join()
            wall_s = (time.monotonic_ns() - t_start_ns) / 1e9
        return Run(read_log(log), json.loads(stats.read_text()), sample, folder, t_start_ns, wall_s)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has a session of its own, and all in that session; what has ended stays ended."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # all of it has ended
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def watch(pid: int, sample: Sample, ended: Callable[[], int | None]) -> None:
    """Sample CPU (scheduler nanoseconds) and memory of the tree under ``pid`` until it ends."""
    spent: dict[Path, int] = {}
    while ended() is None:
        rss = 0
        for one in tree(pid):
            try:
                for task in Path(f"/proc/{one}/task").iterdir():
                    spent[task] = int((task / "schedstat").read_text().split()[0])
                rss += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * 4_096
            except (OSError, ValueError, IndexError):
                continue  # it ended between two looks
        sample.t_ns.append(time.monotonic_ns())
        sample.cpu_ns.append(sum(spent.values()))
        sample.rss_bytes.append(rss)
        time.sleep(0.02)


def tree(pid: int) -> list[int]:
    """``pid`` and all processes under it."""
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it ended
    return found


def read_log(path: Path) -> list[Entry]:
    """The server's log: for each request its tag, its receipt, the number of its tokens and their times."""
    numbers = np.fromfile(path, dtype=np.uint64)
    entries, at = [], 0
    while at < len(numbers):
        n = int(numbers[at + 2])
        entries.append(
            (int(numbers[at]), int(numbers[at + 1]), numbers[at + 3 : at + 3 + n].astype(np.int64))
        )
        at += 3 + n
    return entries


def written_ns(path: Path) -> int:
    """When a file was last written, on the monotonic clock."""
    return path.stat().st_mtime_ns - (time.time_ns() - time.monotonic_ns())
