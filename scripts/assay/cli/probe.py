"""``assay probe``: what this machine, or a captured one, is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from assay.errors import BadInput
from assay.probe import capture_machine, probe_topology, read_captured, read_volatile
from assay.probe.bandwidth import measure_bandwidth
from assay.probe.picture import draw_topology
from assay.records.files import write_json, write_text


def _shown(value: Any, unit: str = "") -> str:
    return "unknown" if value is None else f"{value}{unit}"


def _on_off(value: bool | None) -> str:
    return "on" if value else "off"


def _gpu_lines(gpu: dict[str, Any]) -> list[str]:
    width = f"PCIe gen {gpu['pcie_gen_max']} x{gpu['pcie_width_max']}"
    words = {
        "numa_node": f"NUMA node {gpu['numa_node']}",
        "cpus": f"CPUs {gpu['cpus']}",
        "pcie_width_max": width,
        "mig": f"MIG {_on_off(gpu['mig'])}",
        "ecc": f"ECC {_on_off(gpu['ecc'])}",
        "persistence": f"persistence {_on_off(gpu['persistence'])}",
        "power_cap_w": f"power cap {gpu['power_cap_w']} W",
        "clock_sm_max_mhz": f"SM clock at most {gpu['clock_sm_max_mhz']} MHz",
    }
    known = [text for field, text in words.items() if gpu[field] is not None]
    unknown = [field for field in words if gpu[field] is None]
    known += [f"unknown: {', '.join(unknown)}"] if unknown else []
    name, memory = _shown(gpu["name"]), _shown(gpu["memory_mib"], " MiB")
    return [f"  GPU {gpu['index']}: {name}, {memory}, {_shown(gpu['uuid'])}", f"    {', '.join(known)}"]


def summarise(topology: dict[str, Any]) -> str:
    """The topology in lines a person reads; everything in it is in the record as well."""
    cpu, software = topology["cpu"], topology["software"]
    counts = [f"{_shown(cpu[name])} {name}" for name in ("sockets", "cores", "threads")]
    versions = [f"{name} {_shown(software[name])}" for name in ("kernel", "driver", "cuda")]
    lines = [
        f"CPU: {_shown(cpu['model'])} ({_shown(cpu['architecture'])}), {', '.join(counts)}",
        f"Memory: {_shown(topology['memory_mib'], ' MiB')}",
        f"Software: {', '.join(versions)}",
    ]
    for node in topology["numa_nodes"]:
        memory = _shown(node["memory_mib"], " MiB")
        lines.append(f"NUMA node {node['node']}: CPUs {node['cpus'] or 'none'}, memory {memory}")
    if not topology["gpus"]:
        lines.append(topology["gpus_reason"])
    else:
        lines.append(f"{len(topology['gpus'])} GPUs in {len(topology['islands'])} islands")
    for gpu in topology["gpus"]:
        lines += _gpu_lines(gpu)
    for island in topology["islands"]:
        joined = island["joined_by"] or "no NVLink"
        partly = "" if island["complete"] else ", not every pair"
        place = f"NUMA node {island['numa_node']}" if island["numa_reason"] is None else island["numa_reason"]
        indices = ",".join(str(index) for index in island["gpus"])
        lines.append(
            f"{island['name']}: GPUs {indices}, {joined}{partly}, {place}, CPUs {_shown(island['cpus'])}"
        )
    for crossing in topology["crossings"]:
        lines.append(f"{crossing['a']} to {crossing['b']}: {_shown(crossing['class'])}")
    for said in topology["disagreements"]:
        sources = "; ".join(f"{source} says {value}" for source, value in said["sources"].items())
        lines.append(f"DISAGREEMENT {said['what']}: {sources}; used: {said['used']}")
    for source, state in topology["sources"].items():
        if state != "ok":
            lines.append(f"not read: {source}: {state}")
    return "\n".join("".join(c if c.isprintable() else "?" for c in str(line)) for line in lines)


def probe(
    captured: Path = typer.Option(
        None, "--from", help="Judge a folder of captured outputs instead of this machine."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the record instead of the summary."),
    svg: Path = typer.Option(None, "--svg", help="Write a picture of the machine."),
    out: Path = typer.Option(None, "--out", help="Write the record (stable content) as JSON."),
    now: Path = typer.Option(
        None, "--now", help="Write what changes from moment to moment (clocks, processes)."
    ),
    capture: Path = typer.Option(
        None, "--capture", help="Write this machine's raw outputs into a folder, for --from."
    ),
    host_name: bool = typer.Option(False, "--host-name", help="Record the host's name as well."),
    bandwidth: Path = typer.Option(
        None,
        "--bandwidth",
        help="Measure copies between GPUs and write them; says so where there is no CUDA.",
    ),
    bandwidth_python: Path = typer.Option(
        None, "--bandwidth-python", help="Interpreter with torch, for --bandwidth."
    ),
) -> None:
    """Read the machine: CPUs, NUMA nodes, GPUs, links, islands, crossings, and where sources disagree."""
    live_only = {
        "--now": now,
        "--capture": capture,
        "--host-name": host_name or None,
        "--bandwidth": bandwidth,
    }
    if captured is not None:
        for option, value in live_only.items():
            if value is not None:
                raise BadInput("reads this machine, --from another one", where=option, hint="leave one out")
    if bandwidth_python is not None and bandwidth is None:
        raise BadInput("has no use without --bandwidth", where="--bandwidth-python")
    topology = read_captured(captured) if captured is not None else probe_topology(with_host_name=host_name)
    if out is not None:
        write_json(out, topology)
    if svg is not None:
        write_text(svg, draw_topology(topology))
    if now is not None:
        write_json(now, read_volatile())
    if capture is not None:
        capture_machine(capture)
    measured = None
    if bandwidth is not None:
        measured = measure_bandwidth(bandwidth_python)
        write_json(bandwidth, measured)
    if as_json:
        typer.echo(json.dumps(topology, indent=1, sort_keys=True))
        return
    typer.echo(summarise(topology))
    if measured is not None and measured["state"] != "ok":
        typer.echo(f"copy bandwidth: {measured['state']}: {measured['reason']}")
    for pair in (measured or {}).get("pairs", []):
        typer.echo(f"copy GPU {pair['from']} to GPU {pair['to']}: {pair['gb_per_s_median']:.1f} GB/s")
