"""CPUs, NUMA nodes and memory of a machine, from ``/sys``, ``/proc`` and ``lscpu -J``.

Each reader takes its source (a root folder, a text), so that a captured machine is read by the same code.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.probe.cpulist import format_cpulist, parse_cpulist

KIB_PER_MIB = 1024


def read_text(path: Path, limit_bytes: int = 1 << 20) -> str | None:
    """The text of a small file, or None when it is not there or cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return None


def parse_lscpu(text: str, *, where: object = "lscpu") -> dict[str, str]:
    """The fields of ``lscpu -J``, flattened.

    Newer versions nest them. Raises BadInput when it is no such JSON.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"not JSON: {error}", where=where, hint="the output of `lscpu -J`") from error
    if not isinstance(value, dict) or not isinstance(value.get("lscpu"), list):
        raise BadInput("no list `lscpu` in it", where=where, hint="the output of `lscpu -J`")
    fields: dict[str, str] = {}
    waiting: list[Any] = list(value["lscpu"])
    while waiting:
        entry = waiting.pop(0)
        if not isinstance(entry, dict) or not isinstance(entry.get("field"), str):
            raise BadInput(
                "an entry has no `field`", where=where, key="lscpu", hint="the output of `lscpu -J`"
            )
        if entry.get("data") is not None:
            fields[entry["field"].rstrip(":")] = str(entry["data"])
        waiting = list(entry.get("children") or []) + waiting
    return fields


def read_numa_nodes(root: Path) -> list[dict[str, Any]]:
    """NUMA nodes from ``<root>/sys/devices/system/node``: node, cpus, memory_mib, distances.

    Empty when unknown.
    """
    folder = root / "sys/devices/system/node"
    nodes = []
    found = [path for path in folder.glob("node*") if path.name[4:].isdigit()] if folder.is_dir() else []
    for path in sorted(found, key=lambda path: int(path.name[4:])):
        cpus = read_text(path / "cpulist")
        total = re.search(r"MemTotal:\s+(\d+) kB", read_text(path / "meminfo") or "")
        distances = read_text(path / "distance")
        nodes.append(
            {
                "node": int(path.name[4:]),
                "cpus": None if cpus is None else format_cpulist(parse_cpulist(cpus, where=path / "cpulist")),
                "memory_mib": None if total is None else int(total[1]) // KIB_PER_MIB,
                "distances": None if distances is None else [int(word) for word in distances.split()],
            }
        )
    return nodes


def numa_nodes_of_lscpu(fields: dict[str, str], where: object = "lscpu") -> list[dict[str, Any]]:
    """The same from ``lscpu`` (memory and distances unknown): for captures without ``/sys``."""
    nodes = []
    for name, data in fields.items():
        if match := re.fullmatch(r"NUMA node(\d+) CPU\(s\)", name):
            cpus = format_cpulist(parse_cpulist(data, where=where, key=name))
            nodes.append({"node": int(match[1]), "cpus": cpus, "memory_mib": None, "distances": None})
    return sorted(nodes, key=lambda entry: int(str(entry["node"])))


def _whole(fields: dict[str, str], name: str) -> int | None:
    text = fields.get(name, "")
    return int(text) if text.isdigit() else None


def describe_cpu(fields: dict[str, str], root: Path, where: object = "lscpu") -> dict[str, Any]:
    """Architecture, model, sockets, cores, threads and the list of online CPUs.

    Null for what no source says.
    """
    online = fields.get("On-line CPU(s) list") or read_text(root / "sys/devices/system/cpu/online")
    sockets, per_socket = _whole(fields, "Socket(s)"), _whole(fields, "Core(s) per socket")
    if sockets is None and per_socket is None and _whole(fields, "Core(s) per cluster") is not None:
        sockets, per_socket = _whole(fields, "Cluster(s)"), _whole(fields, "Core(s) per cluster")
    cpus = None if online is None else parse_cpulist(online, where=where, key="On-line CPU(s) list")
    return {
        "architecture": fields.get("Architecture") or (os.uname().machine if root == Path("/") else None),
        "vendor": fields.get("Vendor ID"),
        "model": fields.get("Model name"),
        "hypervisor": fields.get("Hypervisor vendor"),
        "sockets": sockets,
        "cores": None if sockets is None or per_socket is None else sockets * per_socket,
        "threads_per_core": _whole(fields, "Thread(s) per core"),
        "threads": None if cpus is None else len(cpus),
        "cpus": None if cpus is None else format_cpulist(cpus),
    }


def read_memory_mib(root: Path) -> int | None:
    """MemTotal of ``<root>/proc/meminfo`` in MiB."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return None if total is None else int(total[1]) // KIB_PER_MIB


def read_limits() -> dict[str, Any]:
    """What this process may use of the machine: its CPUs, its control group's CPU quota and memory limit."""
    quota_cores: float | None = None
    memory_limit_mib: int | None = None
    reasons: dict[str, str] = {}
    group = re.search(r"^0::(/.*)$", read_text(Path("/proc/self/cgroup")) or "", re.MULTILINE)
    base = Path("/sys/fs/cgroup")
    folder = base / (group[1].lstrip("/") if group else "")
    # A limit binds wherever it stands between our group and the root: the smallest one counts.
    chain = [folder, *[up for up in folder.parents if up == base or base in up.parents]]
    for place in chain:
        words = (read_text(place / "cpu.max") or "").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            cores = int(words[0]) / int(words[1])
            quota_cores = cores if quota_cores is None else min(quota_cores, cores)
        limit = (read_text(place / "memory.max") or "").strip()
        if limit.isdigit():
            mib = int(limit) // (KIB_PER_MIB * KIB_PER_MIB)
            memory_limit_mib = mib if memory_limit_mib is None else min(memory_limit_mib, mib)
    seen = any((place / "cgroup.controllers").exists() for place in chain)
    why = "no limit is set" if seen else "no control groups of version 2 under /sys/fs/cgroup"
    if quota_cores is None:
        reasons["quota_cores"] = why
    if memory_limit_mib is None:
        reasons["memory_limit_mib"] = why
    return {
        "cpus_allowed": format_cpulist(os.sched_getaffinity(0)),
        "quota_cores": quota_cores,
        "memory_limit_mib": memory_limit_mib,
        "reasons": reasons,
    }
