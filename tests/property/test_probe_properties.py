"""Properties of CPU lists, islands and placements."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import BadInput
from assay.probe.cpulist import format_cpulist, parse_cpulist
from assay.probe.placement import plan
from assay.probe.topo_text import parse_topo
from assay.probe.topology import find_islands, link_cost


@given(st.sets(st.integers(0, 5000), max_size=60))
def test_cpulists_read_back_as_written(cpus: set[int]) -> None:
    """Writing and reading a list of CPUs gives the same set, in order."""
    assert parse_cpulist(format_cpulist(cpus)) == sorted(cpus)


CLASSES = ["NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"]


@st.composite
def matrices(draw: st.DrawFn) -> tuple[int, dict[tuple[int, int], str]]:
    count = draw(st.integers(1, 6))
    pairs = list(itertools.combinations(range(count), 2))
    return count, {pair: draw(st.sampled_from(CLASSES)) for pair in pairs}


def write_matrix(count: int, classes: dict[tuple[int, int], str], order: list[int], gap: str) -> str:
    lines = [gap + gap.join([f"GPU{i}" for i in order] + ["CPU Affinity"])]
    for i in order:
        cells = [" X " if i == j else classes[min(i, j), max(i, j)] for j in order]
        lines.append(gap.join([f"GPU{i}", *cells, "0-3"]))
    return "\n".join(lines) + "\n"


@given(matrices(), st.randoms(use_true_random=False), st.sampled_from(["\t", "   ", " \t "]))
def test_the_matrix_reads_the_same_in_any_order_of_rows_and_any_spacing(
    matrix: tuple[int, dict[tuple[int, int], str]], chance: Any, gap: str
) -> None:
    """The links are the ones that were written, whatever the order of devices and the white space."""
    count, classes = matrix
    order = list(range(count))
    chance.shuffle(order)
    found = parse_topo(write_matrix(count, classes, order, gap))
    assert {(link["a"], link["b"]): link["class"] for link in found["links"]} == classes


@given(matrices())
def test_islands_are_a_partition_and_nvlink_never_crosses_it(
    matrix: tuple[int, dict[tuple[int, int], str]],
) -> None:
    """Every GPU is in exactly one island, and two GPUs joined by NVLink are in the same one."""
    count, classes = matrix
    gpus = [{"index": i, "uuid": None, "numa_node": 0, "cpus": None} for i in range(count)]
    links = [
        {"a": a, "b": b, "nvlinks": int(name[2:]) if name.startswith("NV") else 0}
        for (a, b), name in classes.items()
    ]
    islands = find_islands(gpus, links)
    assert sorted(index for island in islands for index in island["gpus"]) == list(range(count))
    home = {index: island["name"] for island in islands for index in island["gpus"]}
    assert all(home[link["a"]] == home[link["b"]] for link in links if link["nvlinks"])


@settings(deadline=None)
@given(matrices(), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_a_plan_uses_no_gpu_twice_and_stays_inside_islands(
    matrix: tuple[int, dict[tuple[int, int], str]], sizes: list[int]
) -> None:
    """Whatever is asked: either a clear refusal, or disjoint sets of the right size inside one island."""
    count, classes = matrix
    order = list(range(count))
    parsed = parse_topo(write_matrix(count, classes, order, "\t"))
    gpus = [{"index": i, "uuid": f"GPU-{i}", "numa_node": 0, "cpus": "0-3"} for i in order]
    links = [{**link, "cost": link_cost(link["class"])} for link in parsed["links"]]
    topology = {
        "gpus": gpus,
        "links": links,
        "islands": find_islands(gpus, links),
        "gpus_reason": None,
        "numa_nodes": [{"node": 0, "cpus": "0-3", "memory_mib": 1, "distances": None}],
    }
    replicas = [{"name": f"r{place}", "gpus": size} for place, size in enumerate(sizes)]
    try:
        entries = plan(topology, replicas)
    except BadInput:
        largest = max(len(island["gpus"]) for island in topology["islands"])
        assert sum(sizes) > count or max(sizes) > largest or len(sizes) > 1
        return
    used = [index for entry in entries for index in entry["gpu_indices"]]
    assert len(used) == len(set(used))
    assert [len(entry["gpu_indices"]) for entry in entries] == sizes
    assert all(len(entry["islands"]) <= 1 for entry in entries)


GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "topologies"
TEXTS = [
    (GOLDEN / name / "nvidia-smi-topo-m.txt").read_text() for name in ("two_quads", "gb200_4", "one_gpu")
]


@settings(deadline=None)
@given(
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.integers(0, 4000), st.text(max_size=3)), min_size=1, max_size=4),
)
def test_damaged_text_is_either_understood_or_refused_with_its_line(
    text: str, edits: list[tuple[int, str]]
) -> None:
    """Whatever is overwritten in a matrix: a reading whose GPUs and links fit together, or a named line."""
    for place, new in edits:
        at = place % len(text)
        text = text[:at] + new + text[at + len(new) :]
    refused: str | None = None
    found: dict[str, Any] = {"gpus": [], "links": []}
    try:
        found = parse_topo(text)
    except BadInput as error:
        refused = error.key
    assert found["gpus"] or (refused or "").startswith("line ")
    indices = [gpu["index"] for gpu in found["gpus"]]
    assert len(found["links"]) == len(indices) * (len(indices) - 1) // 2
    assert len(set(indices)) == len(indices)
