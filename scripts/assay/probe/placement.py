"""Where replicas go: islands, GPUs, CUDA_VISIBLE_DEVICES, numactl and vLLM's NUMA flags, from the topology.

Pure. ``check`` holds a plan against what was observed after the start (``assay.probe.observed``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

from assay.errors import BadInput
from assay.probe.cpulist import format_cpulist, parse_cpulist
from assay.probe.topology import link_cost
from assay.vocab import Verdict

MOST_CHOICES = 20_000
"""Above this many ways to choose GPUs the lowest indices are taken instead of the best set."""
LEAST_LOCAL_SHARE = 0.9
"""Anonymous memory of a pinned replica that must lie on its own NUMA nodes."""
_KNOWN_KEYS = {"name", "gpus", "island", "gpu_indices", "numa"}


def _links(topology: dict[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    found = {}
    for link in topology["links"]:
        found[link["a"], link["b"]] = found[link["b"], link["a"]] = link
    return found


def _rank_set(
    indices: Sequence[int], by_index: dict[int, dict[str, Any]], links: dict[tuple[int, int], dict[str, Any]]
) -> tuple[Any, ...]:
    """Order of preference of a set of GPUs: cheap links, few NUMA nodes, wide NVLinks, low indices."""
    pairs = [links[a, b] for a, b in itertools.combinations(indices, 2)]
    costs = [9 if link["cost"] is None else link["cost"] for link in pairs]
    nodes = {by_index[index]["numa_node"] for index in indices}
    return (
        max(costs, default=0),
        sum(costs),
        len(nodes),
        -sum(link["nvlinks"] for link in pairs),
        tuple(indices),
    )


def _choose(free: list[int], count: int, topology: dict[str, Any]) -> tuple[int, ...]:
    by_index = {gpu["index"]: gpu for gpu in topology["gpus"]}
    links = _links(topology)
    if math.comb(len(free), count) > MOST_CHOICES:
        return tuple(free[:count])
    return min(itertools.combinations(free, count), key=lambda chosen: _rank_set(chosen, by_index, links))


def _check_replicas(topology: dict[str, Any], replicas: Sequence[dict[str, Any]]) -> None:
    """Everything about the wishes that needs no placing. Raises BadInput."""
    if not replicas:
        raise BadInput("no replica to place", where="placement", key="replicas", hint="at least one")
    names = [replica.get("name") for replica in replicas]
    known = [island["name"] for island in topology["islands"]]
    indices = [gpu["index"] for gpu in topology["gpus"]]
    for place, replica in enumerate(replicas):
        where = f"replicas[{place}]"
        if unknown := set(replica) - _KNOWN_KEYS:
            raise BadInput("unknown key", where=where, key=min(unknown), hint=f"one of {sorted(_KNOWN_KEYS)}")
        if not isinstance(replica.get("name"), str) or names.count(replica["name"]) > 1:
            raise BadInput("every replica needs a name of its own", where=where, key="name")
        gpus = replica.get("gpus")
        if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
            raise BadInput(f"{gpus!r} is no number of GPUs", where=where, key="gpus", hint="0 or more")
        island = replica.get("island", "auto")
        if island not in ("auto", "any", *known):
            hint = f"auto, any, or one of {', '.join(known) or 'no island: ' + str(topology['gpus_reason'])}"
            raise BadInput(f"there is no island {island!r}", where=where, key="island", hint=hint)
        wanted = replica.get("gpu_indices")
        if wanted is not None and (len(wanted) != gpus or len(set(wanted)) != gpus):
            raise BadInput(f"{wanted} are not {gpus} GPUs", where=where, key="gpu_indices")
        if wanted is not None and (missing := set(wanted) - set(indices)):
            hint = f"there are {format_cpulist(indices) or 'none'}"
            raise BadInput(f"there is no GPU {min(missing)}", where=where, key="gpu_indices", hint=hint)
    total = sum(replica["gpus"] for replica in replicas)
    cut = [gpu["index"] for gpu in topology["gpus"] if gpu.get("mig")]
    if total > len(indices) - len(cut) and cut:
        message = f"{total} GPUs are needed, the machine has {len(indices) - len(cut)} whole ones"
        raise BadInput(message, where="placement", hint=f"MIG is on for GPU {format_cpulist(cut)}")
    if total > len(indices):
        why = topology["gpus_reason"] or f"it has {len(indices)}"
        raise BadInput(
            f"{total} GPUs are needed, the machine has {len(indices)}", where="placement", hint=why
        )


def _take(topology: dict[str, Any], replica: dict[str, Any], free: set[int], where: str) -> tuple[int, ...]:
    count = replica["gpus"]
    wanted, island_name = replica.get("gpu_indices"), replica.get("island", "auto")
    islands = {island["name"]: island for island in topology["islands"]}
    if wanted is not None:
        if taken := set(wanted) - free:
            raise BadInput(f"GPU {min(taken)} is taken", where=where, key="gpu_indices")
        if island_name in islands and not set(wanted) <= set(islands[island_name]["gpus"]):
            raise BadInput(f"GPUs {wanted} are not all in {island_name}", where=where, key="gpu_indices")
        return tuple(wanted)
    if island_name == "any":
        if len(free) < count:
            raise BadInput(f"{count} GPUs are needed, {len(free)} are free", where=where, key="gpus")
        return _choose(sorted(free), count, topology)
    rooms = {
        name: sorted(free & set(island["gpus"]))
        for name, island in islands.items()
        if island_name in ("auto", name)
    }
    fitting = [name for name, room in rooms.items() if len(room) >= count]
    if not fitting:
        said = ", ".join(f"{name} has {len(room)} free" for name, room in rooms.items())
        hint = "`island: any` takes GPUs across islands, at the cost of the crossing"
        raise BadInput(f"no island has {count} free GPUs ({said})", where=where, key="gpus", hint=hint)
    # The tightest island that fits, so that a larger one stays whole for a larger replica.
    best = min(fitting, key=lambda name: len(rooms[name]))
    return _choose(rooms[best], count, topology)


def _describe(topology: dict[str, Any], replica: dict[str, Any], chosen: tuple[int, ...]) -> dict[str, Any]:
    by_index = {gpu["index"]: gpu for gpu in topology["gpus"]}
    gpus = [by_index[index] for index in chosen]
    islands = [island["name"] for island in topology["islands"] if set(island["gpus"]) & set(chosen)]
    links = _links(topology)
    classes = [links[a, b]["class"] for a, b in itertools.combinations(chosen, 2)]
    known = [name for name in classes if name is not None]
    uuids = [gpu["uuid"] for gpu in gpus]
    nodes = [gpu["numa_node"] for gpu in gpus]
    cpus_of = {node["node"]: node["cpus"] for node in topology["numa_nodes"]}
    reasons: dict[str, str] = {}
    bound: list[int] | None = None
    if not replica.get("numa", True):
        reasons["numa_nodes"] = "binding was not asked for"
    elif not chosen:
        reasons["numa_nodes"] = "it has no GPU to be near to"
    elif None in nodes:
        unknown = format_cpulist(gpu["index"] for gpu in gpus if gpu["numa_node"] is None)
        reasons["numa_nodes"] = f"the NUMA node of GPU {unknown} is unknown"
    else:
        bound = sorted({int(node) for node in nodes})
    if bound is not None and any(not cpus_of.get(node) for node in bound):
        reasons["cpus"] = f"the CPUs of NUMA node {format_cpulist(bound)} are unknown"
    cpus: set[int] = set()
    if bound is not None and "cpus" not in reasons:
        cpus = set(itertools.chain.from_iterable(parse_cpulist(cpus_of[node]) for node in bound))
    by_uuid = all(uuids)
    if not by_uuid:
        reasons["gpu_uuids"] = "a GPU's UUID is unknown; devices are named by index in PCI order"
    visible = ",".join(str(name) for name in (uuids if by_uuid else chosen))
    per_rank = [str(node) for node in nodes]
    listed = None if bound is None else ",".join(str(node) for node in bound)
    return {
        "replica": replica["name"],
        "islands": islands,
        "gpu_indices": list(chosen),
        "gpu_uuids": uuids,
        "environment": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible},
        "ranks": [
            {"rank": rank, "gpu_index": gpu["index"], "uuid": gpu["uuid"], "numa_node": gpu["numa_node"]}
            for rank, gpu in enumerate(gpus)
        ],
        "worst_link": max(known, key=lambda name: link_cost(name) or 0, default=None),
        "crosses_islands": len(islands) > 1,
        "numa_nodes": bound,
        "cpus": format_cpulist(cpus) or None,
        "numactl": [] if listed is None else ["numactl", f"--cpunodebind={listed}", f"--membind={listed}"],
        "vllm_flags": ["--numa-bind", "--numa-bind-nodes", *per_rank] if bound is not None else [],
        "sglang_flags": ["--numa-node", *per_rank] if bound is not None else [],
        "reasons": reasons,
    }


def plan(
    topology: dict[str, Any], replicas: Sequence[dict[str, Any]], *, exclude: Collection[int] = ()
) -> list[dict[str, Any]]:
    """Place every replica; one entry each, in the order asked.

    A replica is ``{name, gpus, island, gpu_indices, numa}``: ``island`` is a name, ``auto`` (default: any
    one island with room, never across) or ``any`` (also across islands); ``gpu_indices`` fixes the GPUs;
    ``numa: false`` leaves it unbound. ``exclude``: indices that are not to be used. An entry has the GPUs
    as ranks, ``environment``, ``numactl`` (a prefix of argv), ``vllm_flags`` and ``sglang_flags`` (one node
    for each visible GPU, in their order); what could not be bound has its reason. A GPU that MIG has cut
    into instances is not given away.

    Replicas that fix GPUs or an island go first, then the larger ones. Raises BadInput, naming the replica,
    when there are fewer GPUs than asked, in all or in any island.
    """
    _check_replicas(topology, replicas)
    free = {gpu["index"] for gpu in topology["gpus"] if not gpu.get("mig")} - set(exclude)

    def first(place: int) -> tuple[Any, ...]:
        replica = replicas[place]
        kind = (
            0
            if replica.get("gpu_indices") is not None
            else {"auto": 2, "any": 3}.get(replica.get("island", "auto"), 1)
        )
        return kind, -replica["gpus"], place

    chosen: dict[int, tuple[int, ...]] = {}
    for place in sorted(range(len(replicas)), key=first):
        replica = replicas[place]
        taken = _take(topology, replica, free, f"replica {replica['name']}") if replica["gpus"] else ()
        free -= set(taken)
        chosen[place] = taken
    return [_describe(topology, replica, chosen[place]) for place, replica in enumerate(replicas)]


def _finding(
    name: str, measured: Any, threshold: Any, verdict: Verdict, detail: str | None
) -> dict[str, Any]:
    return {
        "name": name,
        "measured": measured,
        "threshold": threshold,
        "verdict": str(verdict),
        "detail": detail,
    }


def _yes(answer: bool) -> Verdict:
    return Verdict.PASS if answer else Verdict.FAIL


def _check_gpus(entry: dict[str, Any], seen: dict[str, Any], pids: set[int]) -> list[dict[str, Any]]:
    name = entry["replica"]
    on_gpus = seen.get("gpu_processes")
    planned = sorted(str(uuid) for uuid in entry["gpu_uuids"])
    if on_gpus is None or not all(entry["gpu_uuids"]):
        why = seen.get("gpu_reason") or "the GPUs' UUIDs or processes are unknown"
        return [_finding(f"placement.{name}.gpus", None, planned, Verdict.NOT_RUN, why)]
    used = sorted(uuid for uuid, there in on_gpus.items() if pids & set(there))
    foreign = {uuid: sorted(set(on_gpus.get(uuid, [])) - pids) for uuid in planned}
    foreign = {uuid: there for uuid, there in foreign.items() if there}
    if not used and foreign and planned:
        # In a container the driver may list pids of another namespace: nothing can be said, not even "wrong".
        why = "none of the processes on the GPUs is known as the replica's"
        return [_finding(f"placement.{name}.gpus", None, planned, Verdict.NOT_RUN, why)]
    return [
        _finding(f"placement.{name}.gpus", used, planned, _yes(used == planned), None),
        _finding(f"placement.{name}.others_on_gpus", foreign, {}, _yes(not foreign), None),
    ]


def _check_numa(entry: dict[str, Any], processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    name = entry["replica"]
    if entry["numa_nodes"] is None:
        why = entry["reasons"].get("numa_nodes")
        return [_finding(f"placement.{name}.numa", None, None, Verdict.NOT_RUN, why)]
    nodes, findings = set(entry["numa_nodes"]), []
    if entry["cpus"] is None:
        cpus = _finding(f"placement.{name}.cpus", None, None, Verdict.NOT_RUN, entry["reasons"].get("cpus"))
    else:
        allowed = set(parse_cpulist(entry["cpus"]))
        wide = {
            str(process["pid"]): process["cpus_allowed"]
            for process in processes
            if not set(parse_cpulist(process["cpus_allowed"])) <= allowed
        }
        cpus = _finding(
            f"placement.{name}.cpus",
            wide,
            entry["cpus"],
            _yes(not wide),
            "processes that may run elsewhere" if wide else None,
        )
    findings.append(cpus)
    known = [process for process in processes if process["memory_policies"] is not None]
    loose = {
        str(process["pid"]): process["memory_policies"]
        for process in known
        if not _memory_bound(process, nodes)
    }
    listed = format_cpulist(nodes)
    if len(known) < len(processes) and not loose:
        why = "numa_maps of a process could not be read"
        findings.append(_finding(f"placement.{name}.memory_policy", None, listed, Verdict.NOT_RUN, why))
    else:
        findings.append(_finding(f"placement.{name}.memory_policy", loose, listed, _yes(not loose), None))
    pages = [(sum(p["anon_pages"].values()), sum(p["anon_pages"].get(n, 0) for n in nodes)) for p in known]
    total = sum(all_pages for all_pages, _ in pages)
    if total == 0:
        why = "no anonymous page was seen"
        share = _finding(f"placement.{name}.memory_local", None, LEAST_LOCAL_SHARE, Verdict.NOT_RUN, why)
    else:
        local = sum(own for _, own in pages) / total
        verdict = _yes(local >= LEAST_LOCAL_SHARE)
        share = _finding(f"placement.{name}.memory_local", round(local, 6), LEAST_LOCAL_SHARE, verdict, None)
    return [*findings, share]


def _memory_bound(process: dict[str, Any], nodes: set[int]) -> bool:
    """Bound by policy (``bind:0``) or because its control group allows no other node."""
    if set(parse_cpulist(process["mems_allowed"])) <= nodes:
        return True
    policies = process["memory_policies"]
    bound = [policy.partition(":") for policy in policies]
    return bool(policies) and all(
        kind.partition("=")[0] == "bind" and set(parse_cpulist(listed)) <= nodes for kind, _, listed in bound
    )


def check(planned: Sequence[dict[str, Any]], observed: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings ``{name, measured, threshold, verdict, detail}`` of a plan against ``observed.observe``.

    GPUs in use are exactly the planned ones, no other process is on them, every process of a bound replica
    may run on its CPUs only, its memory policy binds to its nodes, and its anonymous memory lies there.
    What could not be observed is ``not_run``, never a pass; an empty plan or a replica without processes
    fails.
    """
    findings: list[dict[str, Any]] = []
    if not planned:
        return [_finding("placement", 0, ">= 1 replica", Verdict.FAIL, "no replica was planned")]
    for entry in planned:
        seen = observed.get("replicas", {}).get(entry["replica"], {})
        processes = seen.get("processes", [])
        if not processes:
            name = f"placement.{entry['replica']}.processes"
            findings.append(
                _finding(name, 0, ">= 1 process", Verdict.FAIL, seen.get("reason") or "none was seen")
            )
            continue
        if entry["gpu_indices"]:
            findings += _check_gpus(entry, seen, {process["pid"] for process in processes})
        findings += _check_numa(entry, processes)
    return findings
