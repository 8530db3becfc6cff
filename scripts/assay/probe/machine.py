"""Read this machine: run the sources, keep what they said, hand it to the pure merge."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from assay.errors import BadInput
from assay.probe import host, nvml
from assay.probe.cpulist import format_cpulist, parse_cpulist
from assay.probe.topo_text import parse_topo
from assay.probe.topology import build_topology
from assay.records.files import write_json, write_text

_Parsed = TypeVar("_Parsed")
COMMAND_TIMEOUT_S = 60
NVIDIA_VENDOR = "0x10de"
_SMI_LINE = re.compile(r"^GPU (\d{1,3}): (.{1,200}?) \(UUID: (GPU-[0-9a-fA-F-]{8,64})\)\s*$")


def run_source(argv: list[str]) -> tuple[str | None, str]:
    """The output of a command, or None; and ``ok`` or why there is none."""
    program = shutil.which(argv[0])
    if program is None:
        return None, f"{argv[0]} is not installed"
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{' '.join(argv)}: {error}"
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        return None, f"{' '.join(argv)} ended {done.returncode}: {said[-1][:200] if said else 'no words'}"
    return done.stdout.decode("utf-8", "replace"), "ok"


def parse_smi_list(text: str, *, where: object = "nvidia-smi -L") -> dict[int, dict[str, Any]]:
    """``nvidia-smi -L``: index -> uuid and name; the lines of MIG devices are passed over."""
    found: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SMI_LINE.match(line):
            found[int(match[1])] = {"name": match[2], "uuid": match[3]}
        elif line.startswith("GPU "):
            hint = "like GPU 0: NVIDIA H200 (UUID: GPU-...)"
            raise BadInput(f"{line[:80]!r} is no GPU line", where=where, key=f"line {number}", hint=hint)
    return found


def read_sysfs_gpus(root: Path) -> dict[str, dict[str, Any]]:
    """NVIDIA GPUs on the PCI bus: address -> cpus, numa_nodes (null where the firmware does not say)."""
    found: dict[str, dict[str, Any]] = {}
    folder = root / "sys/bus/pci/devices"
    for device in sorted(folder.iterdir()) if folder.is_dir() else []:
        vendor = (host.read_text(device / "vendor") or "").strip()
        kind = (host.read_text(device / "class") or "").strip()
        if vendor != NVIDIA_VENDOR or not kind.startswith("0x03"):
            continue
        node = (host.read_text(device / "numa_node") or "").strip()
        cpus = (host.read_text(device / "local_cpulist") or "").strip()
        found[device.name] = {
            "numa_nodes": [int(node)] if node.isdigit() else None,
            "cpus": format_cpulist(parse_cpulist(cpus, where=device / "local_cpulist")) if cpus else None,
        }
    return found


def combine(
    root: Path,
    *,
    lscpu: dict[str, str],
    topo: dict[str, Any] | None,
    smi_list: dict[int, dict[str, Any]],
    nvml_reading: dict[str, Any],
    limits: dict[str, Any] | None,
    kernel: str | None,
    host_name: str | None,
    sources: dict[str, str],
    lscpu_place: object = "lscpu -J",
) -> dict[str, Any]:
    """Add what ``/sys`` and ``/proc`` below ``root`` say to the parsed outputs, and build the topology."""
    nodes = host.read_numa_nodes(root)
    return build_topology(
        cpu=host.describe_cpu(lscpu, root, lscpu_place),
        limits=limits,
        memory_mib=host.read_memory_mib(root),
        numa_nodes=nodes or host.numa_nodes_of_lscpu(lscpu, lscpu_place),
        software={"kernel": kernel, "driver": nvml_reading.get("driver"), "cuda": nvml_reading.get("cuda")},
        nvml=nvml_reading,
        topo=topo,
        smi_list=smi_list,
        sysfs_gpus=read_sysfs_gpus(root),
        sources={**sources, "sysfs": "ok" if nodes else "no NUMA nodes under sys/devices/system/node"},
        host=host_name,
    )


def read_source(argv: list[str], parse: Callable[[str], _Parsed], nothing: _Parsed) -> tuple[_Parsed, str]:
    """A command's parsed output and ``ok``; else ``nothing`` and why.

    Text that cannot be understood is a source that was not read, with its line: on the machine at hand it
    must not stop a campaign that the other sources suffice for.
    """
    text, state = run_source(argv)
    if text is None:
        return nothing, state
    try:
        return parse(text), "ok"
    except BadInput as error:
        return nothing, f"not understood: {error}"


def probe_topology(*, with_host_name: bool = False, library: Any | None = None) -> dict[str, Any]:
    """What this machine is: the stable content only, so that an unchanged machine gives an equal dictionary.

    CPUs, cores, NUMA nodes with CPUs and memory, GPUs, links, islands, crossings, disagreements; nulls with
    their reasons. Without a GPU, ``gpus`` is empty and ``gpus_reason`` says why; a source that could not be
    read has its reason in ``sources``. ``library`` stands in for the ``pynvml`` module in tests.
    """
    no_fields: dict[str, str] = {}
    lscpu, lscpu_state = read_source(["lscpu", "-J"], host.parse_lscpu, no_fields)
    reading = nvml.read_gpus(library)
    no_matrix: dict[str, Any] | None = None
    topo, topo_state = read_source(["nvidia-smi", "topo", "-m"], parse_topo, no_matrix)
    smi_list: dict[int, dict[str, Any]] = {}
    if topo is not None and reading["state"] != "ok":
        smi_list, _ = read_source(["nvidia-smi", "-L"], parse_smi_list, smi_list)
    return combine(
        Path("/"),
        lscpu=lscpu,
        topo=topo,
        smi_list=smi_list,
        nvml_reading=reading,
        limits=host.read_limits(),
        kernel=platform.release(),
        host_name=platform.node() if with_host_name else None,
        sources={
            "nvml": "ok" if reading["state"] == "ok" else str(reading["reason"]),
            "topo_text": topo_state,
            "lscpu": lscpu_state,
        },
    )


def read_volatile(library: Any | None = None) -> dict[str, Any]:
    """What changes from moment to moment: time, load, free memory, GPU clocks, temperatures, processes."""
    meminfo = host.read_text(Path("/proc/meminfo")) or ""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return {
        "schema": "assay/topology_now/1",
        "t_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_average_1min": os.getloadavg()[0],
        "memory_available_mib": None if available is None else int(available[1]) // host.KIB_PER_MIB,
        "numa_memory_mib": {
            str(node["node"]): node["memory_mib"] for node in host.read_numa_nodes(Path("/"))
        },
        "gpus": nvml.read_now(library),
    }


def capture_machine(folder: Path, library: Any | None = None) -> list[str]:
    """Write what the sources say into ``folder``, for ``read_captured`` elsewhere. Returns the files' names.

    Serial numbers and the host's name are not among it; the GPUs' UUIDs are.
    """
    written = []
    commands = {
        "lscpu.json": ["lscpu", "-J"],
        "nvidia-smi-topo-m.txt": ["nvidia-smi", "topo", "-m"],
        "nvidia-smi-L.txt": ["nvidia-smi", "-L"],
    }
    for name, argv in commands.items():
        text, _ = run_source(argv)
        if text is not None:
            write_text(folder / name, text)
            written.append(name)
    reading = nvml.read_gpus(library)
    write_json(folder / "nvml.json", reading)
    write_text(folder / "kernel.txt", platform.release() + "\n")
    root = Path("/")
    wanted = [root / "proc/meminfo"]
    for node in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        wanted += [node / "cpulist", node / "meminfo", node / "distance"]
    for address in read_sysfs_gpus(root):
        device = root / "sys/bus/pci/devices" / address
        wanted += [device / name for name in ("vendor", "class", "numa_node", "local_cpulist")]
    for path in wanted:
        text = host.read_text(path)
        if text is not None:
            write_text(folder / path.relative_to(root), text)
            written.append(str(path.relative_to(root)))
    return [*written, "nvml.json", "kernel.txt"]
