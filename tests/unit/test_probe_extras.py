"""Slow clocks, the picture, the measured copies and the verb."""

from __future__ import annotations

import json
import random
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from assay.errors import BadInput
from assay.probe import read_captured
from assay.probe.bandwidth import measure_bandwidth
from assay.probe.clocks import find_slow_gpus
from assay.probe.picture import draw_topology

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "topologies"


def samples(clocks: dict[str, int], **facts: Any) -> list[dict[str, Any]]:
    return [
        {"uuid": uuid, "clock_sm_mhz": clock, "utilization_pct": 99, "throttle": [], **facts}
        for uuid, clock in clocks.items()
        for _ in range(6)
    ]


def test_a_gpu_below_its_peers_is_found_by_name() -> None:
    """One GPU 19 % under seven equal peers fails, with the figure; the peers pass."""
    clocks = {f"g{index}": 1980 for index in range(8)} | {"g5": 1604}
    found = find_slow_gpus(samples(clocks))
    slow = {gpu["uuid"]: gpu for gpu in found["gpus"] if gpu["verdict"] == "fail"}
    assert list(slow) == ["g5"]
    assert slow["g5"]["below_peers"] == pytest.approx(1 - 1604 / 1980, abs=1e-6)
    assert "19% below" in slow["g5"]["detail"]
    assert found["verdict"] == "fail"


def test_order_of_samples_does_not_matter() -> None:
    """Shuffled samples give the same answer."""
    data = samples({"a": 1980, "b": 1900, "c": 1980})
    shuffled = data[:]
    random.Random(3).shuffle(shuffled)
    assert find_slow_gpus(data) == find_slow_gpus(shuffled)


def test_a_throttle_reason_fails_even_at_full_clock() -> None:
    """A thermal slowdown under load fails with its name; a reason that only says idle does not."""
    data = samples({"a": 1980, "b": 1980})
    data[0] = {**data[0], "throttle": ["hw_thermal_slowdown"]}
    found = find_slow_gpus(data)
    assert [gpu["verdict"] for gpu in found["gpus"]] == ["fail", "pass"]
    assert "hw_thermal_slowdown" in found["gpus"][0]["detail"]
    assert find_slow_gpus(samples({"a": 1980, "b": 1980}, throttle=["gpu_idle"]))["verdict"] == "pass"


def test_idle_samples_and_lone_gpus_are_not_judged() -> None:
    """Clocks of idle GPUs are no evidence; without load, peers or samples the answer is not run."""
    assert find_slow_gpus(samples({"a": 210, "b": 1980}, utilization_pct=0))["verdict"] == "not_run"
    assert find_slow_gpus(samples({"a": 1980}))["gpus"][0]["detail"] == "no peer to compare with"
    assert find_slow_gpus([])["verdict"] == "not_run"


@pytest.mark.parametrize(
    "name", ["two_quads", "gb200_4", "no_gpu", "old_driver_cube_mesh", "sixteen_nvswitch"]
)
def test_the_picture_is_well_formed_and_byte_stable(name: str) -> None:
    """Equal topologies give equal bytes of well-formed SVG with a box for each GPU."""
    topology = read_captured(GOLDEN / name)
    drawn = draw_topology(topology)
    assert drawn == draw_topology(json.loads(json.dumps(topology)))
    boxes = [
        e for e in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect") if e.get("class") == "gpu"
    ]
    assert len(boxes) == len(topology["gpus"])


def test_text_from_the_machine_cannot_become_markup() -> None:
    """A name with tags or control characters is shown, never interpreted."""
    topology = read_captured(GOLDEN / "one_gpu")
    topology["host"] = '<script>alert("x")</script>\x1b[31m'
    topology["gpus"][0]["name"] = "]]><g onload='x'>"
    root = ET.fromstring(draw_topology(topology))
    assert {element.tag.split("}")[1] for element in root.iter()} <= {
        "svg",
        "style",
        "rect",
        "text",
        "path",
        "title",
    }
    assert "\x1b" not in draw_topology(topology)


def test_copy_bandwidth_says_when_it_cannot_be_measured(tmp_path: Path) -> None:
    """Without torch the result is absent with the reason; a program that breaks is failed, not absent."""
    blocked = tmp_path / "python"
    blocked.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    blocked.chmod(0o755)
    found = measure_bandwidth(blocked)
    assert (found["state"], found["pairs"]) == ("absent", [])
    assert "torch" in found["reason"]
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho oops >&2\nexit 3\n")
    broken.chmod(0o755)
    assert measure_bandwidth(broken)["state"] == "failed"
    assert measure_bandwidth(tmp_path / "missing")["state"] == "failed"


def run(*arguments: str) -> Any:
    from assay.cli.probe import probe

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(probe)
    return CliRunner().invoke(app, arguments)


def test_the_verb_writes_what_it_prints(tmp_path: Path) -> None:
    """--json, --out and --from agree, and --svg writes the picture."""
    source = str(GOLDEN / "two_quads")
    printed = run(
        "--from", source, "--json", "--out", str(tmp_path / "t.json"), "--svg", str(tmp_path / "t.svg")
    )
    assert printed.exit_code == 0, printed.output
    assert (
        json.loads(printed.stdout) == json.loads((tmp_path / "t.json").read_text()) == read_captured(source)
    )
    assert (tmp_path / "t.svg").read_text().startswith("<svg")
    summary = run("--from", source).stdout
    assert "island1: GPUs 4,5,6,7, NV6, NUMA node 1" in summary
    assert "island0 to island1: SYS" in summary


def test_the_verb_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    """A reading of this machine cannot be asked for together with another machine's capture."""
    result = run("--from", str(GOLDEN / "two_quads"), "--now", str(tmp_path / "now.json"))
    assert isinstance(result.exception, BadInput)
    assert not (tmp_path / "now.json").exists()
