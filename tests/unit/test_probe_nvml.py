"""The driver's library as first source, and its disagreements with the text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from assay.probe import probe_topology, read_captured
from assay.probe.nvml import read_gpus, read_now, throttle_names
from engines.scripted_nvml import NVMLError, ScriptedNvml, plain_gpu

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "topologies"


def quads(**facts: object) -> ScriptedNvml:
    """Two quads: every pair inside a quad has six links of its own."""
    inside = {(a, b): 6 for q in (0, 4) for a in range(q, q + 4) for b in range(a + 1, q + 4)}
    return ScriptedNvml([plain_gpu(index, **facts) for index in range(8)], direct=inside)


def test_direct_links_make_two_islands() -> None:
    """Links that lead straight to a peer join exactly these two GPUs."""
    reading = read_gpus(quads())
    classes = {(link["a"], link["b"]): link["class"] for link in reading["links"]}
    assert classes[0, 3] == "NV6"
    assert classes[3, 4] == "SYS"
    assert [island["gpus"] for island in probe_topology(library=quads())["islands"]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_links_to_switches_join_only_gpus_that_reach_each_other() -> None:
    """Two GPUs on switches are an island only if the driver says that they see each other over NVLink."""
    gpus = [plain_gpu(index) for index in range(4)]
    switched = {index: 18 for index in range(4)}
    together = ScriptedNvml(
        gpus, switched=switched, reachable={(a, b) for a in range(4) for b in range(a, 4)}
    )
    apart = ScriptedNvml(gpus, switched=switched, reachable={(0, 1), (2, 3)}, ancestors={(0, 2): 40})
    assert {link["class"] for link in read_gpus(together)["links"]} == {"NV18"}
    classes = {(link["a"], link["b"]): link["class"] for link in read_gpus(apart)["links"]}
    assert (classes[0, 1], classes[0, 2], classes[1, 2]) == ("NV18", "NODE", "SYS")


def test_facts_of_a_gpu_have_units_and_failed_calls_have_reasons() -> None:
    """A call that the driver does not support gives null with the driver's words; the others stay."""
    library = ScriptedNvml([plain_gpu(0, mig=NVMLError("Not Supported"))])
    gpu = read_gpus(library)["gpus"][0]
    assert gpu["memory_mib"] == 141 * 1024
    assert gpu["power_cap_w"] == 700.0
    assert gpu["cpus"] == "0-7"
    assert gpu["pci_bus_id"] == "0000:1b:00.0"
    assert gpu["mig"] is None
    assert "Not Supported" in gpu["reasons"]["mig"]
    assert gpu["ecc"] is None
    assert "ecc" in gpu["reasons"]
    assert library.opened == 0


def test_no_driver_is_absent_with_the_reason_and_not_an_error() -> None:
    """A library that cannot be initialised gives an empty list of GPUs and says why."""
    library = ScriptedNvml([], init_error="Driver Not Loaded")
    assert read_gpus(library)["state"] == "absent"
    assert read_now(library) == []
    assert probe_topology(library=library)["gpus_reason"] == "no GPU: NVML: Driver Not Loaded"
    assert probe_topology(library=ScriptedNvml([]))["gpus_reason"] == "no GPU: NVML sees no GPU"


def test_stable_content_does_not_follow_clocks_and_processes() -> None:
    """A GPU that works, heats up and throttles is the same machine."""
    idle = quads(clock=210, throttle=1, pids=[])
    busy = quads(clock=1500, throttle=8, pids=[4242])
    assert probe_topology(library=idle) == probe_topology(library=busy)
    now = read_now(busy)[0]
    assert (now["clock_sm_mhz"], now["throttle"]) == (1500, ["hw_slowdown"])
    assert now["processes"] == [{"pid": 4242, "memory_mib": 1024, "kind": "compute"}]


def test_unknown_throttle_bits_are_kept() -> None:
    """A reason that is newer than this program shows as its bit."""
    assert throttle_names(0x8 | 0x4000) == ["hw_slowdown", "bit_0x4000"]
    assert throttle_names(0) == []


def test_sources_that_differ_are_noted_and_the_library_counts(tmp_path: Path) -> None:
    """The library and the text disagree on a link and on CPUs: both are in the record, the first is used."""
    shutil.copy(GOLDEN / "two_quads" / "nvidia-smi-topo-m.txt", tmp_path)
    reading = read_gpus(quads())
    reading["links"][0]["class"] = "SYS"
    (tmp_path / "nvml.json").write_text(json.dumps(reading))
    found = read_captured(tmp_path)
    said = {entry["what"]: entry for entry in found["disagreements"]}
    assert said["links[0,1].class"]["sources"] == {"nvml": "SYS", "topo_text": "NV6"}
    assert said["gpus[0].cpus"] == {
        "what": "gpus[0].cpus",
        "sources": {"nvml": "0-7", "topo_text": "0-55,112-167"},
        "used": "nvml",
    }
    assert found["gpus"][0]["cpus"] == "0-7"


def test_a_gpu_that_only_one_source_sees_is_a_disagreement(tmp_path: Path) -> None:
    """The text lists eight GPUs and the library seven: the record says so."""
    shutil.copy(GOLDEN / "two_quads" / "nvidia-smi-topo-m.txt", tmp_path)
    reading = read_gpus(ScriptedNvml([plain_gpu(index) for index in range(7)]))
    (tmp_path / "nvml.json").write_text(json.dumps(reading))
    found = read_captured(tmp_path)
    assert found["disagreements"][0]["what"] == "gpus"
    assert len(found["gpus"]) == 7


def test_devices_without_a_driver_are_named(tmp_path: Path) -> None:
    """NVIDIA devices on the bus and no driver: no GPU, and the reason names them."""
    device = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", "-1")):
        (device / name).write_text(text + "\n")
    shutil.copy(GOLDEN / "no_gpu" / "lscpu.json", tmp_path)
    assert "0000:1b:00.0" in read_captured(tmp_path)["gpus_reason"]
