"""A machine captured elsewhere, as a folder of outputs: judged by the same code as the machine at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.probe.cpulist import parse_cpulist
from assay.probe.host import parse_lscpu
from assay.probe.machine import combine, parse_smi_list
from assay.probe.topo_text import parse_topo
from assay.probe.topology import link_cost

LARGEST_FILE_BYTES = 8 << 20
_TOPO_NAMES = ("nvidia-smi-topo-m.txt", "nvidia-smi_topo_-m.txt", "topo-m.txt", "topo.txt", "topo_m.txt")
_SMI_NAMES = ("nvidia-smi-L.txt", "nvidia-smi_-L.txt", "smi-L.txt")
_LSCPU_NAMES = ("lscpu.json", "lscpu-J.json", "lscpu-J.txt", "lscpu.txt")


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise BadInput(
                f"larger than {LARGEST_FILE_BYTES} bytes", where=path, hint="a captured output is small"
            )
        return path.read_text(errors="replace")
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error


def _find(folder: Path, names: tuple[str, ...], mark: str) -> tuple[Path | None, str | None]:
    """A file by one of its usual names, else the only text file whose content has the mark."""
    for name in names:
        if (folder / name).is_file():
            return folder / name, _read(folder / name)
    found = []
    for path in sorted(folder.iterdir()):
        if (
            path.is_file()
            and path.suffix in {".txt", ".json", ".out", ".log", ""}
            and path.name != "nvml.json"
        ):
            text = _read(path)
            if mark in text:
                found.append((path, text))
    if len(found) > 1:
        raise BadInput(
            f"{', '.join(path.name for path, _ in found)} could all be it",
            where=folder,
            hint=f"name one {names[0]}",
        )
    return found[0] if found else (None, None)


def _check_gpu(gpu: dict[str, Any], path: Path, key: str) -> None:
    """The fields that later steps compute with; the others are only shown."""
    cpus, nodes = gpu.get("cpus"), gpu.get("numa_nodes")
    if cpus is not None:
        parse_cpulist(str(cpus), where=path, key=f"{key}.cpus")
    if nodes is not None and not (isinstance(nodes, list) and all(isinstance(node, int) for node in nodes)):
        raise BadInput(f"{str(nodes)[:60]!r} is no list of NUMA nodes", where=path, key=f"{key}.numa_nodes")
    if not isinstance(gpu.get("reasons", {}), dict):
        raise BadInput("is no mapping", where=path, key=f"{key}.reasons")


def _read_nvml(folder: Path) -> dict[str, Any]:
    path = folder / "nvml.json"
    absent = {"state": "absent", "reason": "no nvml.json in the capture", "driver": None, "cuda": None}
    if not path.is_file():
        return {**absent, "gpus": [], "links": []}
    try:
        reading: dict[str, Any] = json.loads(_read(path))
    except ValueError as error:
        raise BadInput(f"not JSON: {error}", where=path) from error
    shaped = isinstance(reading, dict) and all(
        isinstance(reading.get(name), list) for name in ("gpus", "links")
    )
    if not shaped or not isinstance(reading.get("state"), str):
        raise BadInput("no NVML reading", where=path, hint="written by `assay probe --capture DIR`")
    indices = []
    for place, gpu in enumerate(reading["gpus"]):
        key = f"gpus[{place}]"
        if not isinstance(gpu, dict) or not isinstance(gpu.get("index"), int) or gpu["index"] in indices:
            raise BadInput("needs an index of its own", where=path, key=key)
        indices.append(gpu["index"])
        _check_gpu(gpu, path, key)
    for place, link in enumerate(reading["links"]):
        known = isinstance(link, dict) and link.get("a") in indices and link.get("b") in indices
        if not known or not (link.get("class") is None or link_cost(str(link["class"])) is not None):
            raise BadInput("needs two known GPUs and a link class", where=path, key=f"links[{place}]")
    return reading


def read_captured(folder: Path | str) -> dict[str, Any]:
    """The topology of a captured machine, in the form that ``probe_topology`` gives for the one at hand.

    Read are, as far as they are there: ``nvidia-smi-topo-m.txt``, ``nvidia-smi-L.txt``, ``lscpu.json``,
    ``nvml.json``, ``kernel.txt``, ``proc/meminfo``, ``sys/...``. Raises BadInput when the folder has none
    of the first four, or when one of them is broken (the message names the file and the line).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BadInput("no such folder", where=folder, hint="a folder with captured outputs")
    topo_path, topo_text = _find(folder, _TOPO_NAMES, "CPU Affinity")
    smi_path, smi_text = _find(folder, _SMI_NAMES, "(UUID: GPU-")
    lscpu_path, lscpu_text = _find(folder, _LSCPU_NAMES, '"lscpu"')
    reading = _read_nvml(folder)
    known = topo_text is not None or smi_text is not None or lscpu_text is not None
    if not known and not (folder / "nvml.json").is_file():
        hint = f"{_TOPO_NAMES[0]}, {_SMI_NAMES[0]}, {_LSCPU_NAMES[0]} or nvml.json"
        raise BadInput("no captured output in it", where=folder, hint=hint)
    kernel = folder / "kernel.txt"
    place: object = lscpu_path
    return combine(
        folder,
        lscpu=parse_lscpu(lscpu_text, where=place) if lscpu_text is not None else {},
        topo=parse_topo(topo_text, where=topo_path) if topo_text is not None else None,
        smi_list=parse_smi_list(smi_text, where=smi_path) if smi_text is not None else {},
        nvml_reading=reading,
        limits=None,
        kernel=_read(kernel).strip() if kernel.is_file() else None,
        host_name=None,
        sources={
            "nvml": "ok" if reading["state"] == "ok" else str(reading.get("reason")),
            "topo_text": "ok" if topo_text is not None else "not in the capture",
            "lscpu": "ok" if lscpu_text is not None else "not in the capture",
        },
        lscpu_place=place,
    )
