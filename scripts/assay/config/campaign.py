"""A campaign with everything it names: images, models, workloads, gate policy, publication policy."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.config.consistency import check_consistency
from assay.config.files import read_config, shown
from assay.digest import sha256_of_file
from assay.errors import BadInput

REHEARSAL_SUFFIX = "_rehearsal"
"""Ends the name under which a rehearsal's results lie, so that no campaign's own name may end so."""


@dataclass(frozen=True)
class Leg:
    """One planned session of one arm. ``name`` is the arm's, or `<arm>.<k>` when the order visits it again."""

    name: str
    arm: str
    rank: int


@dataclass(frozen=True)
class Campaign:
    """``config`` is the campaign file; the other dicts hold the files it names, by name.

    ``stand_ins`` are the workloads that stand in for local prompts, by the name of what they stand in for.
    ``rehearsal`` holds the options of a rehearsal, None for a real run.
    """

    root: Path
    path: Path
    config: dict[str, Any]
    images: dict[str, dict[str, Any]]
    models: dict[str, dict[str, Any]]
    workloads: dict[str, dict[str, Any]]
    publication: dict[str, Any]
    stand_ins: dict[str, dict[str, Any]] = field(default_factory=dict)
    rehearsal: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        return dict(self.config["arms"])

    @property
    def points(self) -> dict[str, dict[str, Any]]:
        return dict(self.config["points"])

    @property
    def gate_policy_path(self) -> Path:
        return self.root / "config" / "gates" / f"{self.config['gates']['policy']}.yaml"

    def legs(self) -> list[Leg]:
        """The sessions in their order."""
        order: list[str] = self.config["order"]
        seen: dict[str, int] = {}
        legs = []
        for rank, arm in enumerate(order):
            seen[arm] = seen.get(arm, 0) + 1
            legs.append(Leg(f"{arm}.{seen[arm]}" if order.count(arm) > 1 else arm, arm, rank))
        return legs

    def leg(self, name: str) -> Leg:
        for leg in self.legs():
            if leg.name == name:
                return leg
        raise BadInput(
            f"no leg {name!r}", where=self.path, key="order", hint=f"legs: {[x.name for x in self.legs()]}"
        )

    def finite_points(self) -> list[str]:
        return [name for name, point in self.points.items() if point["kind"] == "finite"]

    def sustained_points(self) -> list[str]:
        return [name for name, point in self.points.items() if point["kind"] == "sustained"]


def campaign_files(root: Path) -> dict[str, Path]:
    """Every campaign of a checkout: target name -> file."""
    return {path.stem: path for path in sorted((root / "config" / "campaigns").glob("*.yaml"))}


def _is_there(path: Path) -> bool:
    """A name that is too long for a file system is not there either."""
    try:
        return path.is_file()
    except OSError:
        return False


def _named(root: Path, kind: str, folder: str, name: str, where: Path, key: str) -> dict[str, Any]:
    path = root / "config" / folder / f"{name}.yaml"
    if not _is_there(path):
        known = sorted(other.stem for other in path.parent.glob("*.yaml"))
        near = difflib.get_close_matches(name[:200], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise BadInput(f"no {kind} {shown(name)} in config/{folder}", where=where, key=key, hint=hint)
    value = read_config(root, kind, path)
    if value.get("name", name) != name:
        raise BadInput(
            f"is {value['name']!r} in {path.name}", where=path, key="name", hint=f"it must be {name!r}"
        )
    return value


def load_campaign(path: Path, root: Path) -> Campaign:
    """Read and check a campaign file and every config it names. BadInput names file, key and what is right."""
    config = read_config(root, "campaign", path)
    if config["name"] != path.stem:
        raise BadInput(
            f"{config['name']!r} is not the file's name", where=path, key="name", hint=f"{path.stem!r}"
        )
    if path.stem.endswith(REHEARSAL_SUFFIX):
        raise BadInput(
            "is the name of a rehearsal's results",
            where=path,
            key="name",
            hint=f"another end than {REHEARSAL_SUFFIX}",
        )
    arms = config["arms"]
    for index, arm in enumerate(config["order"]):
        _known(arm, arms, path, f"order[{index}]", "arm")
    for arm in arms:
        if arm not in config["order"]:
            raise BadInput("the arm is never run", where=path, key=f"arms.{arm}", hint="name it in order")
    for index, comparison in enumerate(config.get("comparisons", [])):
        for side in ("numerator", "denominator"):
            _known(comparison[side], arms, path, f"comparisons[{index}].{side}", "arm")
    if not _is_there(root / "config" / "gates" / f"{config['gates']['policy']}.yaml"):
        _named(root, "gates", "gates", config["gates"]["policy"], path, "gates.policy")
    images = {
        arm["image"]: _named(root, "image", "images", arm["image"], path, f"arms.{name}.image")
        for name, arm in arms.items()
    } | {
        arm["router"]["image"]: _named(
            root, "image", "images", arm["router"]["image"], path, f"arms.{name}.router.image"
        )
        for name, arm in arms.items()
        if "router" in arm
    }
    models = {
        arm["model"]: _named(root, "model", "models", arm["model"], path, f"arms.{name}.model")
        for name, arm in arms.items()
    }
    asked: dict[str, str] = {}  # each workload once, by the first key that names it
    for point_id, point in config["points"].items():
        asked.setdefault(point["workload"], f"points.{point_id}.workload")
    asked.setdefault(config["warm_up"]["workload"], "warm_up.workload")
    workloads = {name: _workload(root, name, path, key) for name, key in asked.items()}
    check_consistency(config, workloads, path)
    publication = _named(root, "publication", "publication", config["publication"], path, "publication")
    stand_ins = {
        name: _workload(
            root, workload["stand_in_by"], root / "config" / "workloads" / f"{name}.yaml", "stand_in_by"
        )
        for name, workload in workloads.items()
        if "local" in workload
    }
    return Campaign(root, path, config, images, models, workloads, publication, stand_ins)


def local_path(text: str) -> Path:
    """A path of this machine out of a config: ~ and variables of the environment filled in."""
    return Path(os.path.expandvars(text)).expanduser()


def _known(name: str, known: dict[str, Any], where: Path, key: str, what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name[:200], list(known), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"{what}s: {', '.join(known)}"
        raise BadInput(f"no {what} {shown(name)}", where=where, key=key, hint=hint)


def _workload(root: Path, name: str, where: Path, key: str) -> dict[str, Any]:
    workload = _named(root, "workload", "workloads", name, where, key)
    if "file" in workload:
        file = root / "config" / "workloads" / workload["file"]
        config_path = root / "config" / "workloads" / f"{name}.yaml"
        if not _is_there(file):
            raise BadInput(
                f"no such file {shown(str(file))}",
                where=config_path,
                key="file",
                hint="the prompts, a JSON object a line",
            )
        found = sha256_of_file(file)
        if workload.get("sha256", found) != found:
            raise BadInput(
                f"{file.name} has sha256 {found}",
                where=config_path,
                key="sha256",
                hint=f"declared is {workload['sha256']}",
            )
        workload = workload | {"sha256": found}
    return workload
