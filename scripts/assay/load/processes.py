"""The client processes as their parent sees them: start, barrier, messages, end."""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any, TextIO

import msgspec

from assay.digest import PACKAGE_ROOT
from assay.errors import BadInput
from assay.load.plan import BodyEntry, WorkerPlan
from assay.load.prompts import Prompt
from assay.load.spec import LoadSpec, Target, body_of, encode_body, endpoint_of

STOP_LIMIT_S = 5.0


def resolve(target: Target) -> list[tuple[int, list[str | int]]]:
    """The addresses of the server, in the order to try them. Raises BadInput."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"{target.host}: {error.strerror or error}", where="load", key="url") from error
    except UnicodeError as error:
        raise BadInput(f"{target.host!r} is no host name", where="load", key="url") from error
    return [
        (int(family), [part for part in address if isinstance(part, str | int)])
        for family, _, _, _, address in found
    ]


def write_bodies(spec: LoadSpec, prompts: Sequence[Prompt], stream: Any, offset: int) -> list[BodyEntry]:
    """Append each prompt's body to ``stream``; where each lies. Processes map the file."""
    entries = []
    for prompt in prompts:
        data = encode_body(body_of(spec, prompt))
        stream.write(data)
        entries.append(BodyEntry(offset, len(data), endpoint_of(spec, prompt)))
        offset += len(data)
    return entries


class ClientProcess:
    """One started process; messages come line by line."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.number = plan.process
        self.errors: TextIO = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in close()
        environment = dict(os.environ)
        paths = [str(PACKAGE_ROOT.parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "assay.load.process_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            pass_fds=[plan.counter_fd],
            env=environment,
        )
        self.ready: dict[str, Any] | None = None
        self.done: dict[str, Any] | None = None
        self.opened = False
        self.refused: str | None = None
        self._rest = b""
        data = msgspec.msgpack.encode(plan)
        self.tell(struct.pack("<Q", len(data)) + data)

    def tell(self, data: bytes) -> None:
        """Send bytes; a process that is gone is noticed by its output's end."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended; `over` says so

    def messages(self) -> list[dict[str, Any]] | None:
        """What it wrote since the last call; None once it has ended."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def last_words(self) -> str:
        """The end of its standard error."""
        self.errors.seek(0)
        return self.errors.read()[-2_000:].strip()

    def close(self) -> None:
        """End it, first gently, and free the pipes."""
        if self.process.poll() is None:
            self.tell(b"stop\n")
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # bytes it never read
        self.errors.close()


class Crew:
    """All client processes of a load."""

    def __init__(self, plans: Sequence[WorkerPlan]) -> None:
        self.members: list[ClientProcess] = []
        self.samples: list[dict[str, Any]] = []
        self._selector = selectors.DefaultSelector()
        self._open: set[int] = set()
        try:
            for plan in plans:
                member = ClientProcess(plan)
                self.members.append(member)
                assert member.process.stdout is not None
                self._selector.register(member.process.stdout, selectors.EVENT_READ, member)
                self._open.add(member.number)
        except BaseException:
            self.close()
            raise

    @property
    def refused(self) -> str | None:
        """Why a process could not do its part, if one could not."""
        return next((member.refused for member in self.members if member.refused), None)

    def tell(self, text: str) -> None:
        for member in self.members:
            member.tell(text.encode() + b"\n")

    def pump(self, timeout_s: float) -> bool:
        """Take the messages that come within ``timeout_s``. False once every process has ended."""
        if not self._open:
            return False
        for key, _ in self._selector.select(timeout_s):
            member: ClientProcess = key.data
            messages = member.messages()
            if messages is None:
                self._selector.unregister(key.fileobj)
                self._open.discard(member.number)
                member.process.wait()
                if member.done is None and member.refused is None:
                    code = member.process.returncode
                    member.refused = (
                        f"client process {member.number} ended with {code}: {member.last_words()}"
                    )
                continue
            for message in messages:
                self._take(member, message)
        return bool(self._open)

    def _take(self, member: ClientProcess, message: dict[str, Any]) -> None:
        if "health" in message:
            self.samples.append({"process": member.number, **message["health"]})
            if len(self.samples) > 2_000:
                self.samples = self.samples[::2]
        elif "ready" in message:
            member.ready = message
        elif "opened" in message:
            member.opened = True
        elif "refused" in message:
            member.refused = message["refused"]
        elif "done" in message:
            member.done = message["done"]
            member.refused = member.refused or member.done["refused"]

    def wait_until(self, what: str, limit_s: float) -> bool:
        """Pump until every member has ``ready`` or ``opened`` set; False on refusal, end or time-out."""
        limit = time.monotonic() + limit_s
        while not all(getattr(member, what) for member in self.members):
            if self.refused or time.monotonic() > limit or not self.pump(0.1):
                return False
        return True

    def close(self) -> None:
        for member in self.members:
            member.close()
        self._selector.close()
