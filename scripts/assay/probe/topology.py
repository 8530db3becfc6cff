"""One machine from several sources: GPUs, links, islands, crossings, and where the sources disagree.

Pure: the readings come in, the stable description goes out. The driver's library counts first, then the text
of ``nvidia-smi topo -m``, then ``/sys``; a lower source fills what a higher one cannot say, and every pair of
sources that both speak is compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from assay.probe.cpulist import format_cpulist, parse_cpulist
from assay.probe.topo_text import LINK_COSTS, nvlink_count

SCHEMA = "assay/topology/1"
LEAST_MEMORY_SHARE = 0.98
"""Of MemTotal that the NUMA nodes together must have, to be believed."""
_FROM_NVML = (
    "uuid",
    "name",
    "pci_bus_id",
    "memory_mib",
    "compute_capability",
    "pcie_gen_max",
    "pcie_width_max",
    "mig",
    "ecc",
    "persistence",
    "power_cap_w",
    "power_cap_default_w",
    "clock_sm_max_mhz",
    "clock_mem_max_mhz",
    "vbios",
)
_PLACED = ("cpus", "numa_nodes", "gpu_numa_id")


def link_cost(link_class: str | None) -> int | None:
    """0 for NVLink, 1 (PIX) to 5 (SYS) for paths without it, null for an unknown class."""
    return 0 if nvlink_count(link_class) else LINK_COSTS.get(link_class or "")


def _by_index(reading: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
    return {gpu["index"]: gpu for gpu in (reading or {}).get("gpus", [])}


def _sysfs_of(sysfs: dict[str, dict[str, Any]], gpu: dict[str, Any]) -> dict[str, Any]:
    return sysfs.get(gpu.get("pci_bus_id") or "", {})


def _same(name: str, one: Any, other: Any) -> bool:
    if name == "numa_nodes":
        return set(one) == set(other)
    return bool(one == other)


def _place_gpu(
    gpu: dict[str, Any], sources: dict[str, dict[str, Any]], disagreements: list[dict[str, Any]]
) -> None:
    """Fill CPUs and NUMA nodes of a GPU from the first source that knows them; note those that differ."""
    for name in _PLACED:
        said = {source: reading[name] for source, reading in sources.items() if reading.get(name) is not None}
        gpu[name] = next(iter(said.values()), None)
        if gpu[name] is not None:
            gpu["reasons"].pop(name, None)
        elif name not in gpu["reasons"]:
            gpu["reasons"][name] = f"not told by any source ({', '.join(sources) or 'none was readable'})"
        first = next(iter(said), None)
        for source, value in said.items():
            if first is not None and not _same(name, said[first], value):
                what = f"gpus[{gpu['index']}].{name}"
                disagreements.append(
                    {"what": what, "sources": {first: said[first], source: value}, "used": first}
                )


def _nodes_with_cpus(numa_nodes: list[dict[str, Any]]) -> dict[int, set[int]]:
    return {node["node"]: set(parse_cpulist(node["cpus"])) for node in numa_nodes if node["cpus"]}


def _choose_numa_node(gpu: dict[str, Any], nodes: dict[int, set[int]]) -> None:
    """The NUMA node to bind a GPU's process to: of its nodes the one that has CPUs; else by its CPUs.

    On machines whose GPU memory is a NUMA node too (GB200) a GPU lists many nodes, most without CPUs.
    """
    candidates = list(gpu["numa_nodes"] or [])
    with_cpus = [node for node in candidates if node in nodes]
    gpu["numa_node"] = None
    if with_cpus or (candidates and not nodes):
        gpu["numa_node"] = min(with_cpus or candidates)
        return
    cpus = set(parse_cpulist(gpu["cpus"])) if gpu["cpus"] else set()
    by_cpus = [node for node, own in sorted(nodes.items()) if cpus and cpus <= own]
    if len(by_cpus) == 1 or len(nodes) == 1:
        gpu["numa_node"] = by_cpus[0] if by_cpus else next(iter(nodes))  # the machine has no other
    elif candidates:
        gpu["reasons"]["numa_node"] = f"none of its nodes {format_cpulist(candidates)} has CPUs here"
    else:
        gpu["reasons"]["numa_node"] = gpu["reasons"].get("numa_nodes", "not told by any source")


def merge_gpus(
    nvml: dict[str, Any],
    topo: dict[str, Any] | None,
    names: dict[int, dict[str, Any]],
    sysfs: dict[str, dict[str, Any]],
    numa_nodes: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The GPUs of every source by index, and the disagreements about them.

    ``names`` is ``nvidia-smi -L`` (index -> uuid, name), ``sysfs`` PCI address -> cpus, numa_nodes, pcie.
    """
    from_nvml, from_text = _by_index(nvml), _by_index(topo)
    disagreements: list[dict[str, Any]] = []
    listed = {"nvml": sorted(from_nvml), "topo_text": sorted(from_text), "nvidia-smi -L": sorted(names)}
    listed = {source: indices for source, indices in listed.items() if indices}
    if len({tuple(indices) for indices in listed.values()}) > 1:
        disagreements.append(
            {"what": "gpus", "sources": listed, "used": "nvml" if from_nvml else "all of them"}
        )
    nodes = _nodes_with_cpus(numa_nodes)
    gpus = []
    for index in sorted(from_nvml or set(from_text) | set(names)):
        known = from_nvml.get(index, {})
        gpu: dict[str, Any] = {"index": index, "reasons": dict(known.get("reasons", {}))}
        for name in _FROM_NVML:
            gpu[name] = known.get(name, names.get(index, {}).get(name))
            if gpu[name] is None:
                gpu["reasons"].setdefault(name, nvml.get("reason") or "NVML did not say")
            else:
                gpu["reasons"].pop(name, None)
        uuid = names.get(index, {}).get("uuid")
        if uuid and known.get("uuid") and uuid != known["uuid"]:
            said = {"nvml": known["uuid"], "nvidia-smi -L": uuid}
            disagreements.append({"what": f"gpus[{index}].uuid", "sources": said, "used": "nvml"})
        readings = {"nvml": known, "topo_text": from_text.get(index, {}), "sysfs": _sysfs_of(sysfs, gpu)}
        _place_gpu(gpu, {name: reading for name, reading in readings.items() if reading}, disagreements)
        _choose_numa_node(gpu, nodes)
        gpus.append(gpu)
    return gpus, disagreements


def merge_links(
    nvml: dict[str, Any], topo: dict[str, Any] | None, indices: list[int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One link a pair of GPUs, ``{a, b, class, nvlinks, cost, reason}``, and where the sources differ."""
    said = {
        source: {(link["a"], link["b"]): link for link in (reading or {}).get("links", [])}
        for source, reading in (("nvml", nvml), ("topo_text", topo))
    }
    links, disagreements = [], []
    for place, a in enumerate(indices):
        for b in indices[place + 1 :]:
            classes = {
                source: pairs[a, b]["class"]
                for source, pairs in said.items()
                if (a, b) in pairs and pairs[a, b]["class"]
            }
            used = next(iter(classes.values()), None)
            links.append(
                {
                    "a": a,
                    "b": b,
                    "class": used,
                    "nvlinks": nvlink_count(used),
                    "cost": link_cost(used),
                    "reason": None if used else "no source tells this pair's class",
                }
            )
            if len(set(classes.values())) > 1:
                what = f"links[{a},{b}].class"
                disagreements.append({"what": what, "sources": classes, "used": next(iter(classes))})
    return links, disagreements


def _components(indices: list[int], joined: set[tuple[int, int]]) -> list[list[int]]:
    left, groups = set(indices), []
    for start in indices:
        if start not in left:
            continue
        group, waiting = [], [start]
        left.discard(start)
        while waiting:
            one = waiting.pop()
            group.append(one)
            near = {b for a, b in joined if a == one} | {a for a, b in joined if b == one}
            waiting += sorted(near & left)
            left -= near
        groups.append(sorted(group))
    return groups


def find_islands(gpus: list[dict[str, Any]], links: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Islands: GPUs reachable from each other over NVLink, in order of their lowest index.

    A GPU without NVLink is an island of one (``joined_by`` null). ``complete`` says whether every pair inside
    has NVLink of its own. ``numa_node`` is the node all members share, null when they do not.
    """
    by_index = {gpu["index"]: gpu for gpu in gpus}
    joined = {(link["a"], link["b"]) for link in links if link["nvlinks"]}
    islands = []
    for place, members in enumerate(_components(sorted(by_index), joined)):
        inside = [link for link in links if link["a"] in members and link["b"] in members]
        widths = sorted({link["nvlinks"] for link in inside if link["nvlinks"]})
        numa = sorted(
            {by_index[index]["numa_node"] for index in members if by_index[index]["numa_node"] is not None}
        )
        unknown = [index for index in members if by_index[index]["numa_node"] is None]
        cpus: set[int] = set()
        for index in members:
            cpus.update(parse_cpulist(by_index[index]["cpus"] or ""))
        reason = None
        if unknown:
            reason = f"the NUMA node of GPU {format_cpulist(unknown)} is unknown"
        elif len(numa) > 1:
            reason = f"its GPUs sit on NUMA nodes {format_cpulist(numa)}"
        islands.append(
            {
                "name": f"island{place}",
                "gpus": members,
                "uuids": [by_index[index]["uuid"] for index in members],
                "joined_by": "/".join(f"NV{width}" for width in widths) or None,
                "complete": all(link["nvlinks"] for link in inside),
                "numa_node": None if reason else numa[0],
                "numa_nodes": numa,
                "numa_reason": reason,
                "cpus": format_cpulist(cpus) or None,
            }
        )
    return islands


def find_crossings(islands: list[dict[str, Any]], links: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each pair of islands the most costly class between their GPUs, and the count of each class."""
    crossings = []
    for place, one in enumerate(islands):
        for other in islands[place + 1 :]:
            pair = [
                link["class"]
                for link in links
                if (link["a"] in one["gpus"] and link["b"] in other["gpus"])
                or (link["b"] in one["gpus"] and link["a"] in other["gpus"])
            ]
            known = [name for name in pair if name is not None]
            worst = max(known, key=lambda name: link_cost(name) or 0, default=None)
            crossings.append(
                {
                    "a": one["name"],
                    "b": other["name"],
                    "class": worst,
                    "cost": link_cost(worst),
                    "pairs": dict(sorted(Counter(known).items())),
                    "unknown_pairs": len(pair) - len(known),
                }
            )
    return crossings


def settle_memory(
    numa_nodes: list[dict[str, Any]], memory_mib: int | None
) -> tuple[list[dict[str, Any]], dict[str, str], list[dict[str, Any]]]:
    """The nodes' memory as far as it is a fact of the machine; reasons; disagreements.

    Some virtual machines get and lose memory while they run; then the nodes' sum is not the whole, changes by
    the minute, and must not decide what is measured again: null, and the numbers go to the volatile part.
    """
    known = [node["memory_mib"] for node in numa_nodes]
    if memory_mib is None or not known or None in known or sum(known) >= memory_mib * LEAST_MEMORY_SHARE:
        missing = {
            f"numa_nodes[{node['node']}].memory_mib": "no MemTotal of this node"
            for node in numa_nodes
            if node["memory_mib"] is None
        }
        return numa_nodes, missing, []
    why = "the nodes' sum is less than the machine's memory: it comes and goes while the machine runs"
    reasons = {f"numa_nodes[{node['node']}].memory_mib": why for node in numa_nodes}
    said = {"meminfo": "all of it", "numa_nodes": "a part of it"}
    settled = [{**node, "memory_mib": None} for node in numa_nodes]
    return settled, reasons, [{"what": "memory_mib", "sources": said, "used": "meminfo"}]


def build_topology(
    *,
    cpu: dict[str, Any],
    limits: dict[str, Any] | None,
    memory_mib: int | None,
    numa_nodes: list[dict[str, Any]],
    software: dict[str, Any],
    nvml: dict[str, Any],
    topo: dict[str, Any] | None,
    smi_list: dict[int, dict[str, Any]],
    sysfs_gpus: dict[str, dict[str, Any]],
    sources: dict[str, str],
    host: str | None,
) -> dict[str, Any]:
    """The stable description of a machine (``workflow/schemas/record/topology.schema.json``).

    ``sources`` says for each source ``ok`` or why it was not read. Nothing in the result changes while the
    machine stays what it is and is set as it is: no clock, temperature, free memory or time stamp.
    """
    gpus, gpu_disagreements = merge_gpus(nvml, topo, smi_list, sysfs_gpus, numa_nodes)
    links, link_disagreements = merge_links(nvml, topo, [gpu["index"] for gpu in gpus])
    islands = find_islands(gpus, links)
    numa_nodes, memory_reasons, memory_disagreements = settle_memory(numa_nodes, memory_mib)
    reasons = {
        **memory_reasons,
        **{f"cpu.{name}": "not told by lscpu or /sys" for name, value in cpu.items() if value is None},
        **({} if memory_mib is not None else {"memory_mib": "no MemTotal in /proc/meminfo"}),
        **({} if numa_nodes else {"numa_nodes": "neither /sys nor lscpu lists NUMA nodes"}),
        **{
            f"software.{name}": nvml.get("reason") or "NVML did not say"
            for name in ("driver", "cuda")
            if software.get(name) is None
        },
        **({} if software.get("kernel") else {"software.kernel": "not in the capture"}),
    }
    gpus_reason = None
    if not gpus:
        gpus_reason = f"no GPU: {nvml.get('reason') or 'no source lists one'}"
        bare = sorted(sysfs_gpus)
        if bare:
            gpus_reason += f"; {len(bare)} NVIDIA device(s) on the PCI bus ({', '.join(bare[:8])}), no driver"
    return {
        "schema": SCHEMA,
        "host": host,
        "host_reason": None if host else "not asked for",
        "cpu": cpu,
        "limits": limits,
        "memory_mib": memory_mib,
        "numa_nodes": numa_nodes,
        "software": software,
        "gpus": gpus,
        "gpus_reason": gpus_reason,
        "nics": (topo or {}).get("nics", []),
        "links": links,
        "islands": islands,
        "crossings": find_crossings(islands, links),
        "disagreements": gpu_disagreements + link_disagreements + memory_disagreements,
        "sources": sources,
        "reasons": reasons,
    }
