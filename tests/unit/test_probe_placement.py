"""Where replicas go, and whether they are there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.probe import read_captured
from assay.probe.observed import observe, parse_numa_maps, read_process
from assay.probe.placement import check, plan
from engines.scripted_nvml import ScriptedNvml, plain_gpu

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "topologies"


def machine(name: str) -> dict[str, Any]:
    return read_captured(GOLDEN / name)


def two_replicas(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "a", "gpus": 4, **more}, {"name": "b", "gpus": 4, **more}]


def test_two_replicas_take_one_quad_each() -> None:
    """On two quads each replica of four stays inside one island, pinned to that island's node."""
    first, second = plan(machine("two_quads"), two_replicas())
    assert (first["gpu_indices"], second["gpu_indices"]) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert (first["islands"], second["islands"]) == (["island0"], ["island1"])
    assert first["numactl"] == ["numactl", "--cpunodebind=0", "--membind=0"]
    assert second["numactl"] == ["numactl", "--cpunodebind=1", "--membind=1"]
    assert second["cpus"] == "56-111,168-223"
    assert second["vllm_flags"] == ["--numa-bind", "--numa-bind-nodes", "1", "1", "1", "1"]
    uuids = machine("two_quads")["islands"][1]["uuids"]
    assert second["sglang_flags"] == ["--numa-node", "1", "1", "1", "1"]
    assert second["environment"] == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(uuids),
    }
    assert [rank["numa_node"] for rank in second["ranks"]] == [1, 1, 1, 1]
    assert not first["crosses_islands"]


def test_a_named_island_is_kept_for_who_named_it() -> None:
    """A later replica that names an island gets it, and the earlier automatic one takes the other."""
    wishes = [{"name": "a", "gpus": 4}, {"name": "b", "gpus": 4, "island": "island0"}]
    first, second = plan(machine("two_quads"), wishes)
    assert second["islands"] == ["island0"]
    assert first["islands"] == ["island1"]


def test_inside_one_large_island_a_replica_stays_on_one_numa_node() -> None:
    """Eight GPUs on a switch: two replicas of four do not mix the NUMA nodes."""
    for name in ("hgx_nvswitch_8", "odd_numa_order", "gb200_4"):
        topology = machine(name)
        half = len(topology["gpus"]) // 2
        entries = plan(topology, [{"name": "a", "gpus": half}, {"name": "b", "gpus": half}])
        nodes = [{rank["numa_node"] for rank in entry["ranks"]} for entry in entries]
        assert not nodes[0] & nodes[1]
    (whole,) = plan(machine("hgx_nvswitch_8"), [{"name": "a", "gpus": 8}])
    assert whole["numactl"] == ["numactl", "--cpunodebind=0,1", "--membind=0,1"]
    assert whole["vllm_flags"][2:] == ["0", "0", "0", "0", "1", "1", "1", "1"]


def test_the_tightest_island_is_taken_so_that_a_larger_replica_still_fits() -> None:
    """A replica of one takes the lone GPU, not one of a joined pair."""
    one, two = plan(machine("three_gpus_one_node"), [{"name": "a", "gpus": 1}, {"name": "b", "gpus": 2}])
    assert (one["gpu_indices"], two["gpu_indices"]) == ([1], [0, 2])


def test_a_partly_joined_island_gives_gpus_that_are_joined_to_each_other() -> None:
    """In a cube mesh four GPUs are chosen so that every pair has NVLink."""
    topology = machine("old_driver_cube_mesh")
    (entry,) = plan(topology, [{"name": "a", "gpus": 4}])
    chosen = set(entry["gpu_indices"])
    inside = [link for link in topology["links"] if {link["a"], link["b"]} <= chosen]
    assert all(link["nvlinks"] for link in inside)


@pytest.mark.parametrize(
    ("name", "replicas", "message"),
    [
        ("no_gpu", [{"name": "a", "gpus": 8}], "8 GPUs are needed, the machine has 0 (no GPU: "),
        ("two_quads", [{"name": "a", "gpus": 16}], "16 GPUs are needed, the machine has 8"),
        ("two_quads", [{"name": "a", "gpus": 5}], "no island has 5 free GPUs (island0 has 4 free"),
        ("nvlink_pairs", two_replicas(), "no island has 4 free GPUs"),
        ("two_quads", [{"name": "a", "gpus": 4, "island": "island7"}], "there is no island 'island7'"),
        ("two_quads", [{"name": "a", "gpus": -1}], "-1 is no number of GPUs"),
        ("two_quads", [{"name": "a", "gpus": 1}, {"name": "a", "gpus": 1}], "a name of its own"),
        ("two_quads", [], "no replica to place"),
        ("two_quads", [{"name": "a", "gpus": 1, "islands": "x"}], "islands: unknown key"),
        ("two_quads", [{"name": "a", "gpus": 2, "gpu_indices": [0]}], "[0] are not 2 GPUs"),
        ("two_quads", [{"name": "a", "gpus": 1, "gpu_indices": [9]}], "there is no GPU 9"),
        ("two_quads", two_replicas(island="island1"), "no island has 4 free GPUs (island1 has 0 free)"),
    ],
)
def test_what_cannot_be_placed_says_why(name: str, replicas: list[dict[str, Any]], message: str) -> None:
    """Fewer GPUs than asked, an unknown island, a double use: one message that names it, before any start."""
    with pytest.raises(BadInput) as caught:
        plan(machine(name), replicas)
    assert message in str(caught.value)


def test_a_gpu_cut_into_instances_is_not_given_to_a_replica() -> None:
    """A GPU with MIG on is passed over, and named when it is missing."""
    topology = machine("two_quads")
    topology["gpus"][0]["mig"] = True
    (entry,) = plan(topology, [{"name": "a", "gpus": 4}])
    assert entry["gpu_indices"] == [4, 5, 6, 7]
    with pytest.raises(BadInput, match="7 whole ones \\(MIG is on for GPU 0\\)"):
        plan(topology, two_replicas())


def test_across_islands_only_when_asked() -> None:
    """`any` may cross and says so with the class of the crossing; `auto` never does."""
    (entry,) = plan(machine("nvlink_pairs"), [{"name": "a", "gpus": 4, "island": "any"}])
    assert entry["gpu_indices"] == [0, 1, 2, 3]
    assert entry["crosses_islands"]
    assert entry["worst_link"] == "NODE"


def test_what_is_unknown_is_not_bound_and_has_its_reason() -> None:
    """Without NUMA nodes and UUIDs a replica is unbound, its devices are named by index, and it says why."""
    (entry,) = plan(machine("one_gpu_old_driver"), [{"name": "a", "gpus": 1}])
    assert entry["numactl"] == []
    assert entry["vllm_flags"] == []
    assert "unknown" in entry["reasons"]["numa_nodes"]
    assert entry["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    (unbound,) = plan(machine("two_quads"), [{"name": "a", "gpus": 4, "numa": False}])
    assert unbound["numactl"] == []
    (engine_on_cpu,) = plan(machine("no_gpu"), [{"name": "a", "gpus": 0}])
    assert engine_on_cpu["environment"]["CUDA_VISIBLE_DEVICES"] == ""


def seen(pid: int, **facts: Any) -> dict[str, Any]:
    """An observed process that keeps to node 1 of the two quads."""
    return {
        "pid": pid,
        "cpus_allowed": "56-111,168-223",
        "mems_allowed": "0-1",
        "memory_policies": ["bind:1"],
        "anon_pages": {1: 1000},
        **facts,
    }


def verdicts(processes: list[dict[str, Any]], on_gpus: dict[str, list[int]] | None = None) -> dict[str, str]:
    _, entry = plan(machine("two_quads"), two_replicas())
    if on_gpus is None:
        on_gpus = {uuid: [11] for uuid in entry["gpu_uuids"]}
    observed = {"replicas": {"b": {"processes": processes, "gpu_processes": on_gpus, "gpu_reason": None}}}
    return {finding["name"]: finding["verdict"] for finding in check([entry], observed)}


def test_a_replica_where_it_should_be_passes_every_finding() -> None:
    """GPUs, CPUs, policy and memory as planned: all pass, and there are findings at all."""
    found = verdicts([seen(10), seen(11)])
    assert len(found) == 5
    assert set(found.values()) == {"pass"}


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({"cpus_allowed": "0-223"}, "placement.b.cpus"),
        ({"memory_policies": ["default"]}, "placement.b.memory_policy"),
        ({"memory_policies": ["bind:1", "prefer:1"]}, "placement.b.memory_policy"),
        ({"memory_policies": ["bind:0-1"]}, "placement.b.memory_policy"),
        ({"anon_pages": {0: 9000, 1: 1000}}, "placement.b.memory_local"),
    ],
)
def test_a_process_elsewhere_fails_the_finding_about_it(change: dict[str, Any], failed: str) -> None:
    """One process of two that may run, or has its memory, elsewhere fails exactly that finding."""
    found = verdicts([seen(10), seen(11, **change)])
    assert {name for name, verdict in found.items() if verdict == "fail"} == {failed}


def test_gpus_are_judged_by_who_is_on_them() -> None:
    """A missing GPU and a stranger's process fail; when nobody on the GPUs is known, nothing is claimed."""
    _, entry = plan(machine("two_quads"), two_replicas())
    three = {uuid: [11] for uuid in entry["gpu_uuids"][:3]}
    assert verdicts([seen(11)], three)["placement.b.gpus"] == "fail"
    stranger = {uuid: [11, 99] for uuid in entry["gpu_uuids"]}
    assert verdicts([seen(11)], stranger)["placement.b.others_on_gpus"] == "fail"
    hidden = {uuid: [70001] for uuid in entry["gpu_uuids"]}
    assert verdicts([seen(11)], hidden)["placement.b.gpus"] == "not_run"


def test_nothing_seen_never_passes() -> None:
    """No plan, no process, unreadable memory maps: fail or not run, never pass."""
    assert check([], {})[0]["verdict"] == "fail"
    assert verdicts([]) == {"placement.b.processes": "fail"}
    found = verdicts([seen(11, memory_policies=None, anon_pages={})])
    assert found["placement.b.memory_policy"] == "not_run"
    assert found["placement.b.memory_local"] == "not_run"


def test_a_control_group_that_allows_one_node_counts_as_bound() -> None:
    """Memory that can come from no other node is bound, whatever the policy is called."""
    assert (
        verdicts([seen(11, memory_policies=["default"], mems_allowed="1")])["placement.b.memory_policy"]
        == "pass"
    )


def test_numa_maps_count_anonymous_memory_in_equal_pages() -> None:
    """A huge page weighs its 512 small ones; mapped files do not count."""
    text = (
        "7f00 bind:0 anon=2 dirty=2 N0=2 kernelpagesize_kB=2048\n"
        "7f10 bind:0 anon=24 N1=24 kernelpagesize_kB=4\n"
        "7f20 default file=/models/x.gguf mapped=99 N1=99 kernelpagesize_kB=4\n"
        "7f30 default\n"
    )
    assert parse_numa_maps(text) == {"memory_policies": ["bind:0"], "anon_pages": {0: 1024, 1: 24}}


def test_a_pinned_process_is_read_back_as_pinned() -> None:
    """The affinity the kernel reports for a real process is the one it was given."""
    one = min(os.sched_getaffinity(0))
    code = f"import os,sys; os.sched_setaffinity(0, {{{one}}}); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        found = read_process(process.pid)
        library = ScriptedNvml([plain_gpu(0, pids=[process.pid])])
        everything = observe({"a": process.pid}, library=library)
        process.communicate("")
    assert found is not None
    assert found["cpus_allowed"] == str(one)
    replica = everything["replicas"]["a"]
    assert [entry["pid"] for entry in replica["processes"]] == [process.pid]
    assert replica["gpu_processes"] == {plain_gpu(0)["uuid"]: [process.pid]}
    assert read_process(process.pid) is None
    gone = observe({"a": process.pid}, library=library)["replicas"]["a"]
    assert gone["processes"] == []
    assert "gone" in gone["reason"]
