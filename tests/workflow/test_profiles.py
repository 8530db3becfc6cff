"""The profiles name the rules that are there."""

from __future__ import annotations

import re
from typing import Any

import yaml

from checkout import PROJECT


def profile(name: str) -> dict[str, Any]:
    (file,) = (PROJECT / "profiles" / name).iterdir()
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def test_on_a_cluster_every_stage_of_a_leg_is_in_its_group() -> None:
    """Each rule that asks for GPUs is in the group of its leg, with all cores: its server lives in that allocation."""
    text = "".join(file.read_text() for file in sorted((PROJECT / "workflow/rules").glob("*.smk")))
    rules = re.split(r"^(?:rule|checkpoint) (\w+):", text, flags=re.MULTILINE)
    of_a_leg = {name for name, body in zip(rules[1::2], rules[2::2], strict=True) if "gpu=gpus" in body}
    assert len(of_a_leg) == 7
    slurm = profile("slurm")
    assert {word.partition("=")[0] for word in slurm["groups"]} == of_a_leg
    assert {word.partition("=")[2] for word in slurm["groups"]} == {"leg"}
    assert {word.partition("=")[0] for word in slurm["set-threads"]} == of_a_leg
