"""Checks that need no server: what is declared against the engines' parsers, and against this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from assay.config.campaign import Campaign, local_path
from assay.digest import sha256_of_file
from assay.errors import BadInput
from assay.gates import load_policy
from assay.probe import probe_topology
from assay.session.engines.arm import check_arm
from assay.stage.local_prompts import check_local
from assay.stage.rehearse import check_stand_ins

MODEL_INDEX = "model.safetensors.index.json"


def check_campaign(campaign: Campaign) -> None:
    """Flags against the engine's own list, the gate policy, what synthetic prompts need. BadInput if wrong."""
    for name, arm in campaign.arms.items():
        check_arm(arm, campaign.path, f"arms.{name}", campaign.config["needs"]["gpus"])
        check_image_model(campaign, name)
    load_policy(campaign.gate_policy_path)
    check_stand_ins(campaign)
    for point_id, point in campaign.points.items():
        workload = campaign.workloads[point["workload"]]
        models = campaign.models.values()
        if workload["kind"] == "synthetic" and not all("vocab_size" in model for model in models):
            lacking = [name for name, model in campaign.models.items() if "vocab_size" not in model]
            raise BadInput(
                f"random token ids need the vocabulary size of {lacking[0]!r}",
                where=campaign.root / "config" / "models" / f"{lacking[0]}.yaml",
                key="vocab_size",
                hint=f"point {point_id} of {campaign.name} uses {point['workload']}",
            )


def check_machine(campaign: Campaign) -> None:
    """GPUs, models, prompts and ports as this machine has them now. BadInput before anything starts."""
    check_gpus(campaign)
    for name, model in campaign.models.items():
        source = model["source"]
        where = campaign.root / "config" / "models" / f"{name}.yaml"
        if "repository" in source:
            check_model_folder(local_path(source["path"]), model, where)
        elif "path" in source:
            check_model_file(local_path(source["path"]), model["sha256"], where, "source.path")
    for name, workload in campaign.workloads.items():
        if "local" in workload:
            check_local(workload, campaign.root / "config" / "workloads" / f"{name}.yaml")
    for name, arm in campaign.arms.items():
        if arm.get("port"):
            check_port(arm["port"], campaign.path, f"arms.{name}.port")


def check_gpus(campaign: Campaign) -> None:
    needed = campaign.config["needs"]["gpus"]
    if needed == 0:
        return
    topology = probe_topology()
    found = len(topology["gpus"])
    if found < needed:
        reason = f" ({topology['gpus_reason']})" if topology.get("gpus_reason") else ""
        raise BadInput(
            f"{campaign.name} needs {needed} GPUs, this machine has {found}{reason}",
            where=campaign.path,
            key="needs.gpus",
            hint=f"rehearse it here: snakemake --cores all {campaign.name} --config rehearse=true; "
            "the small one runs anywhere: snakemake --cores all campaign_local",
        )


def check_model_file(path: Path, sha256: str, where: Path, key: str) -> None:
    """The file is there and is the one that was declared."""
    if not path.is_file():
        raise BadInput(
            f"no model file {path}", where=where, key=key, hint="the path of the weights on this machine"
        )
    found = sha256_of_file(path)
    if found != sha256:
        raise BadInput(f"{path} has sha256 {found}", where=where, key="sha256", hint=f"declared is {sha256}")


def check_model_folder(path: Path, model: dict[str, Any], where: Path) -> None:
    """The folder of a checkpoint is there, and its index is the one that was declared, if one was."""
    source = model["source"]
    revision = source["revision"]
    if not (path / "config.json").is_file():
        pinned = f" --revision {revision}" if revision else ""
        raise BadInput(
            f"no checkpoint of {source['repository']} at {path}",
            where=where,
            key="source.path",
            hint=f"hf download {source['repository']}{pinned} --local-dir {source['path']}",
        )
    if model["sha256"] is not None:
        check_model_file(path / source.get("index", MODEL_INDEX), model["sha256"], where, "sha256")


def check_port(port: int, where: Path, key: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise BadInput(
                f"port {port} cannot be had: {error.strerror}",
                where=where,
                key=key,
                hint="another port, or none",
            ) from error


def check_image_model(campaign: Campaign, arm_name: str) -> None:
    """A model that the image carries is declared by the image with the same digest."""
    arm = campaign.arms[arm_name]
    model = campaign.models[arm["model"]]
    name = model["source"].get("image_file")
    if name is None:
        return
    where = campaign.root / "config" / "models" / f"{arm['model']}.yaml"
    carried = campaign.images[arm["image"]].get("models", {})
    if name not in carried:
        there = ", ".join(carried) or "none"
        raise BadInput(
            f"image {arm['image']!r} carries no {name!r}",
            where=where,
            key="source.image_file",
            hint=f"it has: {there}",
        )
    if carried[name]["sha256"] != model["sha256"]:
        raise BadInput(
            f"{model['sha256']} is not the digest of {name!r}",
            where=where,
            key="sha256",
            hint=f"image {arm['image']!r} declares {carried[name]['sha256']}",
        )
