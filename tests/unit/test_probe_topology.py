"""Captured machines: islands, NUMA, crossings, and what broken text leads to."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from assay.errors import BadInput
from assay.probe import capture_machine, probe_topology, read_captured, read_volatile
from assay.probe.machine import parse_smi_list
from assay.probe.topo_text import parse_topo
from engines.scripted_nvml import ScriptedNvml, plain_gpu

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "topologies"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
SCHEMA = json.loads((ROOT / "workflow/schemas/record/topology.schema.json").read_text())


def topo_text(name: str) -> str:
    return (GOLDEN / name / "nvidia-smi-topo-m.txt").read_text()


def test_every_captured_machine_has_its_expectation() -> None:
    """At least twelve machines are captured, and each one is judged."""
    folders = {path.name for path in GOLDEN.iterdir() if path.is_dir()}
    assert folders == set(EXPECTED)
    assert len(folders) >= 12


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_islands_numa_and_crossings_are_as_the_machine_has_them(name: str) -> None:
    """A captured machine gives the islands, NUMA nodes, CPUs and crossings that were written down for it."""
    wanted, found = EXPECTED[name], read_captured(GOLDEN / name)
    assert [island["gpus"] for island in found["islands"]] == wanted["islands"]
    assert [island["joined_by"] for island in found["islands"]] == wanted["joined"]
    assert [island["numa_node"] for island in found["islands"]] == wanted["island_numa"]
    complete = wanted.get("complete", [True] * len(wanted["islands"]))
    assert [island["complete"] for island in found["islands"]] == complete
    assert [gpu["numa_node"] for gpu in found["gpus"]] == wanted["gpu_numa"]
    for index, cpus in wanted["cpus"].items():
        assert found["gpus"][int(index)]["cpus"] == cpus
    classes = [crossing["class"] for crossing in found["crossings"]]
    if "first_crossings" in wanted:
        assert classes[: len(wanted["first_crossings"])] == wanted["first_crossings"]
    else:
        assert classes == wanted["crossings"]
    assert len(found["nics"]) == wanted["nics"]
    assert len(found["numa_nodes"]) == wanted["nodes"]
    if "gpu_numa_id" in wanted:
        assert [gpu["gpu_numa_id"] for gpu in found["gpus"]] == wanted["gpu_numa_id"]
    assert found["cpu"]["cores"] == wanted.get("cores")
    assert found["memory_mib"] == wanted.get("memory_mib")
    assert found["disagreements"] == []


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_null_has_a_reason_and_the_record_fits_its_schema(name: str) -> None:
    """What could not be read is null, and the record says why; nothing is null in silence."""
    found = read_captured(GOLDEN / name)
    jsonschema.validate(found, SCHEMA)
    for gpu in found["gpus"]:
        nulls = {key for key, value in gpu.items() if value is None}
        assert nulls <= set(gpu["reasons"])
        assert all(gpu[key] is None for key in gpu["reasons"])
    nulls = {f"cpu.{key}" for key, value in found["cpu"].items() if value is None}
    nulls |= {f"software.{key}" for key, value in found["software"].items() if value is None}
    assert nulls <= set(found["reasons"])
    assert (found["gpus_reason"] is None) == bool(found["gpus"])


def test_this_machine_gives_an_equal_description_twice_and_fits_the_schema() -> None:
    """The stable content does not change while the machine does not; the volatile part is elsewhere."""
    first = probe_topology()
    assert first == probe_topology()
    jsonschema.validate(first, SCHEMA)
    assert first["host"] is None
    assert first["cpu"]["threads"] >= 1
    assert first["gpus"] or first["gpus_reason"].startswith("no GPU: ")
    assert "t_utc" in read_volatile()


def test_a_capture_of_this_machine_reads_back_as_this_machine(tmp_path: Path) -> None:
    """What --capture writes is enough for --from to say the same as the probe itself."""
    capture_machine(tmp_path)
    captured, live = read_captured(tmp_path), probe_topology()
    for name in ("cpu", "memory_mib", "gpus", "gpus_reason", "links", "islands", "software"):
        assert captured[name] == live[name]


def test_a_source_that_cannot_be_understood_here_is_one_that_was_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine at hand a broken text stops nothing: the others count, and the record has the line."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '\\tGPU0\\tCPU Affinity\\nGPU0\\t?\\t0-3\\n'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = probe_topology(library=ScriptedNvml([plain_gpu(0)]))
    assert "line 2" in found["sources"]["topo_text"]
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA H200"]


def test_without_the_library_the_texts_of_nvidia_smi_suffice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose library cannot be opened is read from nvidia-smi's matrix and list."""
    shutil.copytree(GOLDEN / "two_quads", tmp_path / "m")
    smi = tmp_path / "nvidia-smi"
    folder = tmp_path / "m"
    cases = f"topo) cat {folder}/nvidia-smi-topo-m.txt;; -L) cat {folder}/nvidia-smi-L.txt;;"
    smi.write_text(f"#!/bin/sh\ncase $1 in {cases} esac\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = probe_topology(library=ScriptedNvml([], init_error="Unknown Error"))
    assert [island["gpus"] for island in found["islands"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found["islands"][1]["uuids"][3].startswith("GPU-00000007-")


def test_outputs_are_found_under_other_names(tmp_path: Path) -> None:
    """A folder with the texts under any .txt name is understood by what is in them."""
    shutil.copy(GOLDEN / "two_quads" / "nvidia-smi-topo-m.txt", tmp_path / "what_i_pasted.txt")
    shutil.copy(GOLDEN / "two_quads" / "lscpu.json", tmp_path / "cpus.json")
    shutil.copy(GOLDEN / "two_quads" / "nvidia-smi-L.txt", tmp_path / "list.txt")
    found = read_captured(tmp_path)
    assert [island["gpus"] for island in found["islands"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found["cpu"]["cores"] == 112
    assert found["gpus"][7]["uuid"].startswith("GPU-00000007-")


def test_two_texts_that_could_be_the_matrix_are_not_chosen_between(tmp_path: Path) -> None:
    """Two candidate files under unusual names are an error, not a guess."""
    for name in ("a.txt", "b.txt"):
        shutil.copy(GOLDEN / "two_quads" / "nvidia-smi-topo-m.txt", tmp_path / name)
    with pytest.raises(BadInput, match=r"a\.txt, b\.txt could all be it"):
        read_captured(tmp_path)


def test_a_folder_without_any_output_is_refused(tmp_path: Path) -> None:
    """An empty folder is no machine without GPUs: it is bad input."""
    with pytest.raises(BadInput, match="no captured output"):
        read_captured(tmp_path)
    with pytest.raises(BadInput, match="no such folder"):
        read_captured(tmp_path / "missing")


BROKEN: list[tuple[str, Any, int, str]] = [
    ("no_header", lambda text: text.replace("GPU0", "CARD0"), 1, "no header line"),
    ("short_row", lambda text: text.replace("GPU3\tNV6\t", "GPU3\t"), 5, "is no link class"),
    ("cut_row", lambda text: text[: text.index("GPU3\tNV6") + 12] + "\n", 5, "GPU3 has 2 cells"),
    ("unknown_class", lambda text: text.replace("GPU2\tNV6", "GPU2\tNVX"), 4, "'NVX' is no link class"),
    (
        "missing_row",
        lambda text: "\n".join(t for t in text.split("\n") if not t.startswith("GPU7")),
        1,
        "GPU7",
    ),
    ("second_row", lambda text: text.replace("\nGPU2\t", "\nGPU1\t", 1), 4, "GPU1 has a second row"),
    ("x_off_diagonal", lambda text: text.replace("GPU1\tNV6\t X ", "GPU1\t X \tNV6"), 3, "no link class"),
    ("cpus", lambda text: text.replace("0-55,112-167", "0-55;112", 1), 2, "not a list of CPUs"),
    ("backward_range", lambda text: text.replace("0-55,112-167", "55-0", 1), 2, "not a range of CPUs"),
    ("huge_range", lambda text: text.replace("0-55,112-167", "0-999999", 1), 2, "not a range of CPUs"),
    ("extra_words", lambda text: text.replace("\t0\t\tN/A", "\t0\t\tN/A\tmore", 1), 2, "behind the matrix"),
    ("asymmetric", lambda text: text.replace("GPU4\tSYS", "GPU4\tPIX", 1), 2, "line 6 says PIX back"),
    ("noise", lambda text: text.replace("GPU4\tSYS", "Segmentation fault\nGPU4\tSYS", 1), 6, "no row of"),
    ("unknown_gpu", lambda text: text.replace("NIC0\tNODE", "GPU9\tNODE", 1), 10, "no column in the header"),
]


@pytest.mark.parametrize(("label", "damage", "line", "message"), BROKEN, ids=[case[0] for case in BROKEN])
def test_broken_text_names_the_file_and_the_line(
    label: str, damage: Any, line: int, message: str, tmp_path: Path
) -> None:
    """Text that is no matrix gives one clear error with file and line, never a wrong topology."""
    whole = topo_text("two_quads")
    text = damage(whole)
    assert text != whole
    path = tmp_path / "nvidia-smi-topo-m.txt"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_captured(tmp_path)
    assert caught.value.where == path
    assert caught.value.key == f"line {line}"
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_broken_json_and_lists_are_refused_by_name(tmp_path: Path) -> None:
    """A broken lscpu, NVML reading or GPU list names its file."""
    (tmp_path / "lscpu.json").write_text('{"lscpu": [{"data": "x"}]}')
    with pytest.raises(BadInput, match=r"lscpu\.json: lscpu: an entry has no `field`"):
        read_captured(tmp_path)
    (tmp_path / "lscpu.json").write_text("{")
    with pytest.raises(BadInput, match=r"lscpu\.json: not JSON"):
        read_captured(tmp_path)
    (tmp_path / "lscpu.json").unlink()
    (tmp_path / "nvml.json").write_text('{"state": "ok", "gpus": [{}], "links": []}')
    with pytest.raises(BadInput, match=r"nvml\.json: gpus\[0\]: needs an index"):
        read_captured(tmp_path)
    for gpu in ({"index": 0, "cpus": "x"}, {"index": 0, "numa_nodes": "0"}, {"index": "0"}):
        (tmp_path / "nvml.json").write_text(json.dumps({"state": "ok", "gpus": [gpu], "links": []}))
        with pytest.raises(BadInput, match=r"nvml\.json: gpus\[0\]"):
            read_captured(tmp_path)
    with pytest.raises(BadInput, match="line 1"):
        parse_smi_list("GPU 0: NVIDIA H200\n")


def test_nics_carry_their_device_names() -> None:
    """NIC columns are named by the legend, mlx5 columns by themselves, and keep their class to each GPU."""
    nics = parse_topo(topo_text("nic_laden_36"))["nics"]
    assert nics[34]["device"] == "mlx5_bond_0"
    assert nics[0]["classes"]["0"] == "PXB"
    assert nics[35]["classes"]["7"] == "SYS"
    assert parse_topo(topo_text("old_driver_cube_mesh"))["nics"][1]["device"] == "mlx5_2"


def test_the_matrix_reads_the_same_however_it_was_pasted() -> None:
    """Tabs turned into spaces, lost or whole escape codes, carriage returns: the same matrix."""
    whole = topo_text("hgx_nvswitch_8")
    plain = parse_topo(whole)
    assert "\x1b[4m" in whole
    assert parse_topo(whole.replace("\x1b", "")) == plain
    assert parse_topo(whole.expandtabs(8)) == plain
    assert parse_topo(whole.replace("\n", "\r\n")) == plain
    assert parse_topo("user@node:~$ nvidia-smi topo -m\n" + whole) == plain


def test_memory_that_comes_and_goes_is_not_part_of_the_stable_content(tmp_path: Path) -> None:
    """Where the nodes' memory is only a part of the machine's, it is null with the reason, and noted."""
    shutil.copytree(GOLDEN / "two_quads", tmp_path / "m")
    (tmp_path / "m/sys/devices/system/node/node0/meminfo").write_text("Node 0 MemTotal: 4000000 kB\n")
    found = read_captured(tmp_path / "m")
    assert [node["memory_mib"] for node in found["numa_nodes"]] == [None, None]
    assert "comes and goes" in found["reasons"]["numa_nodes[0].memory_mib"]
    assert [said["what"] for said in found["disagreements"]] == ["memory_mib"]
