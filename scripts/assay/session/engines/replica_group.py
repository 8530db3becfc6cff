"""Several servers and a router in front of them, as one process tree: the `server` of a session.

`python replica_group.py --order '{...}'` starts the members, waits until each is ready, starts the router on
the session's port, and serves until it is terminated. It imports nothing of Assay and nothing that is not in
Python itself. What it started is in replicas.json in the current folder, rewritten when that changes; each
member and the router have a log of their own there.

A member that cannot start ends the group with status 3. A member that dies later is written down and the rest
serve on, so that its failures are seen and counted; the group ends when the router does, or the last member.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

CANNOT_START, ROUTER_GONE, ALL_GONE = 3, 4, 5
PR_SET_PDEATHSIG = 1
POLL_S = 0.1
SETTLE_S = 0.3
"""A terminated group hears of it at about the time its members do: a death this short before is no failure."""
RECORD = "replicas.json"

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """In a child before exec: KILL when this process dies."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int, taken: set[int]) -> list[int]:
    """Loopback ports that nothing listens on; held together so that they differ."""
    sockets: list[socket.socket] = []
    found: list[int] = []
    while len(found) < count:
        probe = socket.socket()
        sockets.append(probe)  # held until the end: a port is not given out twice
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        if port not in taken:
            found.append(port)
    for probe in sockets:
        probe.close()
    return found


def start_ticks(pid: int) -> str | None:
    """Field 22 of /proc/<pid>/stat: with the pid it names a process for good."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False  # not yet: the deadline decides


class Group:
    """The members, the router, and what is written down of them."""

    def __init__(self, order: dict[str, Any]):
        self.order = order
        self.stopping = False
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(2 * len(order["members"]) + 1, {int(order["port"])})
        self.prometheus_port = ports.pop()
        self.record: dict[str, Any] = {"schema": "assay/replica_group/1", "members": {}, "router": None}
        for member in order["members"]:
            port, side_port = ports.pop(), ports.pop()
            self.record["members"][member["name"]] = {
                "role": member["role"],
                "port": port,
                "side_port": side_port,
                "url": f"http://127.0.0.1:{port}",
                "log": f"replica_{member['name']}.log",
                "process": None,
                "ready_after_s": None,
                "t_exit_ns": None,
                "returncode": None,
            }

    def write(self) -> None:
        with open(RECORD + ".tmp", "w") as stream:
            json.dump(self.record, stream, indent=1, sort_keys=True)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(RECORD + ".tmp", RECORD)

    def start(
        self, name: str, argv: list[str], environment: dict[str, str], log: str
    ) -> dict[str, Any] | None:
        """Start one process; None, and a line in the log, when it cannot be executed."""
        with open(log, "ab") as stream:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env=os.environ | environment,
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                print(f"group: {name} cannot be executed: {error}", flush=True)
                return None
        self.processes[name] = process
        print(f"group: {name} is process {process.pid}", flush=True)
        return {"pid": process.pid, "start_ticks": start_ticks(process.pid)}

    def start_members(self) -> bool:
        """Start every member and wait until all are ready."""
        began = time.monotonic()
        for member in self.order["members"]:
            told = self.record["members"][member["name"]]
            ports = {"{member_port}": str(told["port"]), "{side_port}": str(told["side_port"])}
            argv = [fill(word, ports) for word in member["argv"]]
            environment = {key: fill(value, ports) for key, value in member["environment"].items()}
            told["process"] = self.start(member["name"], argv, environment, told["log"])
            self.write()
            if told["process"] is None:
                return False
        waiting = {member["name"]: member for member in self.order["members"]}
        while waiting and not self.stopping:
            for name, member in list(waiting.items()):
                told = self.record["members"][name]
                status = self.processes[name].poll()
                if status is not None:
                    told |= {"returncode": status, "t_exit_ns": time.monotonic_ns()}
                    print(f"group: {name} ended with status {status} before it was ready", flush=True)
                    self.write()
                    return False
                if is_ready(told["url"] + member["ready_path"]):
                    told["ready_after_s"] = time.monotonic() - began
                    print(f"group: {name} is ready", flush=True)
                    del waiting[name]
                elif time.monotonic() - began > member["ready_timeout_s"]:
                    print(f"group: {name} did not become ready", flush=True)
                    return False
            self.write()
            time.sleep(POLL_S)
        return not self.stopping

    def start_router(self) -> bool:
        router = self.order["router"]
        try:
            asked = subprocess.run(router["version_argv"], capture_output=True, text=True, timeout=60)
            version = asked.stdout.strip() or None
        except (OSError, subprocess.TimeoutExpired):
            version = None
        marks = {"{url:" + name + "}": told["url"] for name, told in self.record["members"].items()}
        marks["{prometheus_port}"] = str(self.prometheus_port)
        self.record["router"] = {
            "version": version,
            "flags": router["flags"],
            "metrics_url": f"http://127.0.0.1:{self.prometheus_port}/metrics",
            "log": "router.log",
            "process": self.start("router", [fill(word, marks) for word in router["argv"]], {}, "router.log"),
            "t_exit_ns": None,
            "returncode": None,
        }
        self.write()
        return self.record["router"]["process"] is not None

    def serve(self, wakeup: int) -> int:
        """Watch the processes until there is nothing left to serve with."""
        handles = {os.pidfd_open(process.pid): name for name, process in self.processes.items()}
        while not self.stopping:
            ended, _, _ = select.select([*handles, wakeup], [], [], 60)
            gone = [handles.pop(handle) for handle in ended if handle != wakeup]
            if gone:
                time.sleep(SETTLE_S)
            if self.is_stopping():
                break
            for name in gone:
                status = self.processes[name].wait()
                told = self.record["router"] if name == "router" else self.record["members"][name]
                told |= {"returncode": status, "t_exit_ns": time.monotonic_ns()}
                print(f"group: {name} ended with status {status}; the rest serve on", flush=True)
                self.write()
            if "router" in gone:
                return ROUTER_GONE
            if set(handles.values()) <= {"router"}:
                return ALL_GONE
        return 0

    def is_stopping(self) -> bool:
        """Has a signal come meanwhile?"""
        return self.stopping

    def end(self) -> None:
        """TERM to everything that lives; the supervisor kills what does not end."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            process.wait()


def fill(word: str, marks: dict[str, str]) -> str:
    for mark, value in marks.items():
        word = word.replace(mark, value)
    return word


def main(words: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--order", type=json.loads, required=True, help="members, router and port as JSON")
    group = Group(options.parse_args(words).order)
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def stop(_number: int, _frame: object) -> None:
        group.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    started = group.start_members() and group.start_router()
    status = group.serve(reader) if started else (0 if group.stopping else CANNOT_START)
    group.end()
    return status


if __name__ == "__main__":
    sys.exit(main())
