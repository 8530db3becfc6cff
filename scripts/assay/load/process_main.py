"""Entry of a client process: ``python -m assay.load.process_main``.

It takes its plan and commands from standard input and reports, one JSON object a line, on standard output. It
imports neither numpy nor pyarrow, so that it starts quickly and stays small.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys

import msgspec

from assay.load.plan import WorkerPlan
from assay.load.timer import die_with_parent, sharpen_timers
from assay.load.worker import Worker


def _read_plan() -> WorkerPlan:
    (length,) = struct.unpack("<Q", _read_exactly(8))
    return msgspec.msgpack.decode(_read_exactly(length), type=WorkerPlan)


def _read_exactly(n: int) -> bytes:
    parts = []
    while n:
        part = os.read(0, min(n, 1 << 20))
        if not part:
            raise EOFError("the plan ended early")
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too and tells us
    die_with_parent(signal.SIGTERM)
    sharpen_timers()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    worker: Worker | None = None

    def end(_signal: int, _frame: object) -> None:
        if worker is None:
            raise SystemExit(143)
        worker.stop()

    signal.signal(signal.SIGTERM, end)
    try:
        worker = Worker(_read_plan())
        try:
            worker.run()
        finally:
            worker.save()  # whatever ended it: the rows so far are kept
    except (MemoryError, OSError) as error:
        os.write(1, json.dumps({"refused": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
