"""Where a server's processes really are: CPUs and memory policy from ``/proc``, GPUs from NVML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from assay.probe.host import read_text
from assay.probe.nvml import read_now

LARGEST_MAPS_BYTES = 64 << 20


def parse_numa_maps(text: str) -> dict[str, Any]:
    """``/proc/<pid>/numa_maps``: the policies of the areas with anonymous memory, and its pages by node.

    Files that are mapped (a model, a library) lie where the page cache put them, whoever read them first:
    they are left out. Without any anonymous area the policies of all areas count.
    """
    anonymous: set[str] = set()
    everything: set[str] = set()
    pages: dict[int, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2:
            continue
        everything.add(words[1])
        facts = dict(word.split("=", 1) for word in words[2:] if "=" in word)
        if "anon" not in facts or "file" in facts:
            continue
        anonymous.add(words[1])
        size_kib = (
            int(facts.get("kernelpagesize_kB", "4")) if facts.get("kernelpagesize_kB", "4").isdigit() else 4
        )
        for key, value in facts.items():
            if re.fullmatch(r"N\d+", key) and value.isdigit():
                # Counted in pages of 4 KiB, so that huge pages weigh what they hold.
                pages[int(key[1:])] = pages.get(int(key[1:]), 0) + int(value) * size_kib // 4
    return {"memory_policies": sorted(anonymous or everything), "anon_pages": dict(sorted(pages.items()))}


def read_process(pid: int, proc: Path = Path("/proc")) -> dict[str, Any] | None:
    """Affinity and memory policy of one process, or None when it is gone.

    ``{pid, cpus_allowed, mems_allowed, memory_policies, anon_pages, reason}``; the last three are null and
    empty, with a reason, when numa_maps cannot be read (another user's process, a kernel without NUMA).
    """
    status = read_text(proc / str(pid) / "status") or ""
    lists = dict(re.findall(r"^(Cpus|Mems)_allowed_list:[ \t]*(\S*)$", status, re.MULTILINE))
    if not lists.get("Cpus"):
        return None
    maps = read_text(proc / str(pid) / "numa_maps", LARGEST_MAPS_BYTES)
    facts: dict[str, Any] = {"memory_policies": None, "anon_pages": {}}
    if maps is not None:
        facts = parse_numa_maps(maps)
    return {
        "pid": pid,
        "cpus_allowed": lists["Cpus"],
        "mems_allowed": lists.get("Mems", ""),
        **facts,
        "reason": None if maps is not None else "numa_maps cannot be read",
    }


def list_tree(root_pid: int) -> list[int]:
    """A process and all below it; empty when it is gone."""
    try:
        root = psutil.Process(root_pid)
        return [root_pid, *sorted(child.pid for child in root.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def observe(
    root_pids: Mapping[str, int],
    *,
    library: Any | None = None,
    processes_of: Callable[[int], list[int]] = list_tree,
    proc: Path = Path("/proc"),
) -> dict[str, Any]:
    """What ``placement.check`` needs; ``root_pids`` maps a replica's name to the pid of its first process."""
    gpus = read_now(library)
    on_gpus: dict[str, list[int]] | None = None
    reason: str | None = "no GPU can be read"
    if gpus and all(gpu["uuid"] and gpu.get("processes") is not None for gpu in gpus):
        on_gpus = {gpu["uuid"]: [process["pid"] for process in gpu["processes"]] for gpu in gpus}
        reason = None
    elif gpus:
        reason = "; ".join(sorted({why for gpu in gpus for why in gpu["reasons"].values()}))[:500]
    replicas = {}
    for name, root_pid in root_pids.items():
        read = [read_process(pid, proc) for pid in processes_of(root_pid)]
        replicas[name] = {
            "processes": [process for process in read if process is not None],
            "reason": None if any(read) else f"process {root_pid} is gone",
            "gpu_processes": on_gpus,
            "gpu_reason": reason,
        }
    return {"replicas": replicas}
