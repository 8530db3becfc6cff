"""How quiet the machine is: the time that processes spinning on two cores do not get, `python quiet.py CORE S`.

A virtual machine's host takes cores away without a word; what that costs a client shows in its timing errors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

GAP_NS = 500_000
"""A spinning process that sees this much time pass between two looks at the clock was not running."""


def lost_ns(core: int, duration_s: float) -> list[int]:
    """Spin on ``core``; each stretch of time (ns) longer than GAP_NS in which this process did not run."""
    os.sched_setaffinity(0, {core})
    last = time.monotonic_ns()
    end, found = last + round(duration_s * 1e9), []
    while last < end:
        now = time.monotonic_ns()
        if now - last > GAP_NS:
            found.append(now - last)
        last = now
    return found


def noise(cores: Sequence[int], duration_s: float = 4.0) -> str:
    """One clause for the page: share of time lost on each of ``cores``, all of them spinning at once."""
    running = [
        subprocess.Popen([sys.executable, __file__, str(core), str(duration_s)], stdout=subprocess.PIPE)
        for core in cores
    ]
    gaps = [json.loads(process.communicate()[0]) for process in running]
    shares = " and ".join(f"{sum(one) / duration_s / 1e9:.1%}" for one in gaps)
    longest = max((gap for one in gaps for gap in one), default=0) / 1e6
    return f"{shares}, at most {longest:.1f} ms at a time"


if __name__ == "__main__":
    print(json.dumps(lost_ns(int(sys.argv[1]), float(sys.argv[2]))))
