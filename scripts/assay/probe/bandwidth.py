"""Copy bandwidth between each pair of GPUs, measured where torch and CUDA are present.

The harness itself carries no torch: the program below runs in an interpreter that does (an engine's image).
Absent, it says so; nothing is estimated.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PAIR_TIMEOUT_S = 600
_PROGRAM = r"""
import json, sys
try:
    import torch
except ImportError as error:
    print(json.dumps({"state": "absent", "reason": f"torch is not installed: {error}", "pairs": []}));
    sys.exit(0)
if not torch.cuda.is_available():
    print(json.dumps({"state": "absent", "reason": "torch sees no CUDA device", "pairs": []})); sys.exit(0)
size, repeats = int(sys.argv[1]), int(sys.argv[2])
pairs = []
for a in range(torch.cuda.device_count()):
    for b in range(torch.cuda.device_count()):
        if a == b:
            continue
        source = torch.empty(size, dtype=torch.uint8, device=f"cuda:{a}")
        target = torch.empty(size, dtype=torch.uint8, device=f"cuda:{b}")
        seconds = []
        for repeat in range(repeats + 1):
            torch.cuda.synchronize(a); torch.cuda.synchronize(b)
            with torch.cuda.device(a):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record(); target.copy_(source, non_blocking=True); end.record(); end.synchronize()
                torch.cuda.synchronize(b)
                seconds.append(start.elapsed_time(end) / 1000)
        rates = sorted(size / s / 1e9 for s in seconds[1:])
        pairs.append({"from": a, "to": b, "p2p": torch.cuda.can_device_access_peer(a, b), "n": repeats,
                      "gb_per_s_min": rates[0], "gb_per_s_median": rates[len(rates) // 2],
                      "gb_per_s_max": rates[-1]})
        del source, target
if len(pairs) == 0:
    print(json.dumps({"state": "absent", "reason": "one GPU has no pair", "pairs": []})); sys.exit(0)
print(json.dumps({"state": "ok", "reason": None, "bytes": size, "torch": torch.__version__, "pairs": pairs}))
"""


def measure_bandwidth(
    python: Path | None = None, *, size_bytes: int = 256 << 20, repeats: int = 5
) -> dict[str, Any]:
    """Copy ``size_bytes`` between every ordered pair of GPUs; GB/s (10^9 bytes) over ``repeats``.

    The first copy of a pair opens the peer connection and is left out. Returns ``{state, reason, pairs}``;
    ``state`` is ``absent`` without torch, CUDA or a second GPU, ``failed`` when the program broke.
    """
    argv = [str(python or sys.executable), "-c", _PROGRAM, str(size_bytes), str(repeats)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PAIR_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"state": "failed", "reason": str(error)[:500], "pairs": []}
    try:
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        reason = f"ended {done.returncode}: {done.stderr.strip()[-400:]}"
        return {"state": "failed", "reason": reason, "pairs": []}
    return result
