"""What each stage is asked, as one value: its canonical JSON is the parameter that makes Snakemake rerun it.

A spec holds exactly what the stage uses. Titles, comments, key order and file times are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.config.campaign import Campaign
from assay.digest import sha256_of_value
from assay.gates import load_policy
from assay.image import image_digest
from assay.session.engines import router
from assay.stage.rehearse import stand_in
from assay.vocab import Stage

DEFAULT_SEED = 20261009
DEFAULT_TIMEOUT_S = 600.0
TITLES = ("title", "license", "unspecified")
SHAPE = (
    "concurrency", "max_tokens", "ignore_eos", "workload_kind", "planned_prompt_tokens", "conversation", "extra_body",
)  # fmt: skip
"""What of a point makes another shape for the engine, and so for the warm-up."""
ASKED_OF_SERVER = ("engine_version", "replicas", "split", "placement", "environment")
"""Keys of an arm that are part of its server as they stand."""
CONVERSATION = ("conversations", "turns", "first_tokens", "turn_tokens")


class Specs:
    """The specs of one campaign. Reading the images' locks and the gate tasks happens once."""

    def __init__(self, campaign: Campaign):
        self.campaign = campaign
        self.image_digests = {
            name: image_digest(image, campaign.root) for name, image in campaign.images.items()
        }
        self.gate_policy = load_policy(campaign.gate_policy_path)

    def server(self, arm_name: str) -> dict[str, Any]:
        """Everything that decides which server runs for an arm."""
        arm = self.campaign.arms[arm_name]
        model = self.campaign.models[arm["model"]]
        spec = {
            "engine": arm["engine"],
            "image": arm["image"],
            "image_digest": self.image_digests[arm["image"]],
            "model": arm["model"],
            "model_sha256": model["sha256"],
            "served_name": model.get("served_name", arm["model"]),
            "flags": arm["flags"],
            "gpus": self.campaign.config["needs"]["gpus"],
        }
        spec |= {key: arm[key] for key in ASKED_OF_SERVER if key in arm}
        if "router" in arm:
            # With every limit and timeout that it will run with, asked for or by default.
            spec["router"] = {
                "image": arm["router"]["image"],
                "image_digest": self.image_digests[arm["router"]["image"]],
                "version": arm["router"].get("version"),
                "flags": router.resolve(arm["router"]),
            }
        if self.campaign.rehearsal is not None:
            spec["rehearsal"] = stand_in(self.campaign, arm_name)
        return spec | ({"port": arm["port"]} if arm.get("port") else {})

    def point(self, point_id: str) -> dict[str, Any]:
        """One point with its defaults filled in."""
        point = self.campaign.points[point_id]
        workload = self.campaign.workloads[point["workload"]]
        return {
            "point_id": point_id,
            "ignore_eos": False,
            "timeout_s": DEFAULT_TIMEOUT_S,
            "seed": DEFAULT_SEED,
            "planned_prompt_tokens": workload.get("prompt_tokens"),
            "workload_kind": workload["kind"],
            "stand_in_prompts": bool(workload.get("stand_in", False)),
            **({"conversation": conversation_of(workload)} if workload["kind"] == "conversation" else {}),
            **point,
            "extra_body": workload.get("request", {}) | point.get("extra_body", {}),
        }

    def prompts(self, point_id: str) -> dict[str, Any]:
        """Which prompts a point sends: the draw, and how many of them."""
        point = self.point(point_id)
        workload = {
            key: value
            for key, value in self.campaign.workloads[point["workload"]].items()
            if key not in TITLES
        }
        limit = {"count": point["requests"]} if point["kind"] == "finite" else {"count": point.get("pool")}
        vocabulary = sorted(
            {
                (model["vocab_size"], model.get("first_plain_token", 0))
                for model in self.campaign.models.values()
                if "vocab_size" in model
            }
        )
        draw = {"point_id": point_id, "seed": point["seed"], "workload": workload, **limit}
        if workload["kind"] == "synthetic":
            # All arms must be able to read the ids: the smallest vocabulary and the highest reserved id decide.
            draw["token_ids_below"] = min(size for size, _ in vocabulary)
            draw["token_ids_from"] = max(first for _, first in vocabulary)
        return draw

    def warm_up(self) -> dict[str, Any]:
        """The warm-up's own prompts and every (workload kind, concurrency) shape that the session will see."""
        warm_up = self.campaign.config["warm_up"]
        shapes: dict[tuple[Any, ...], dict[str, Any]] = {}
        for point_id in self.campaign.points:
            point = self.point(point_id)
            shape = {key: point[key] for key in SHAPE if key in point}
            shapes.setdefault((sha256_of_value(shape),), shape)
        workload = self.campaign.workloads[warm_up["workload"]]
        return {
            "workload": {key: value for key, value in workload.items() if key not in TITLES},
            "requests_per_slot": warm_up["requests_per_slot"],
            "shapes": sorted(
                shapes.values(), key=lambda shape: (shape["concurrency"], sha256_of_value(shape))
            ),
        }

    def stage(
        self,
        stage: Stage,
        leg_name: str | None = None,
        point_id: str | None = None,
        repeat: int | None = None,
    ) -> dict[str, Any]:
        """The spec of one stage of one leg."""
        spec: dict[str, Any] = {"stage": str(stage), "campaign": self.campaign.name}
        if self.campaign.rehearsal is not None:
            spec["rehearsal"] = dict(self.campaign.rehearsal)
        if leg_name is not None:
            leg = self.campaign.leg(leg_name)
            spec |= {"leg": leg.name, "arm": leg.arm, "server": self.server(leg.arm)}
        if stage in (Stage.GATE_BEFORE, Stage.GATE_AFTER):
            spec["gate_tasks_sha256"] = self.gate_policy.tasks_sha256
            if self.campaign.config["gates"].get("at_load"):
                spec["at_load"] = max(point["concurrency"] for point in self.campaign.points.values())
        if stage is Stage.WARM_UP:
            spec["warm_up"] = self.warm_up()
        if point_id is not None:
            spec |= {"point": self.point(point_id), "prompts": self.prompts(point_id)}
            if repeat is not None:
                spec["repeat"] = repeat
        return spec

    def plan(self) -> dict[str, Any]:
        """`plan.json`: the resolved campaign that receipts are judged against."""
        campaign, config = self.campaign, self.campaign.config
        return {
            "schema": "assay/plan/1",
            "name": campaign.name,
            "title": config["title"],
            "question": config.get("question"),
            "suite": config["suite"],
            "context_tokens": config["context_tokens"],
            "order": [leg.name for leg in campaign.legs()],
            "legs": {leg.name: {"arm": leg.arm, "rank": leg.rank} for leg in campaign.legs()},
            "arms": {
                name: {
                    "title": arm.get("title", name),
                    **self.server(name),
                    "factors": {f"flags.{key}": value for key, value in arm["flags"].items()},
                    "unspecified": arm.get("unspecified", {}),
                }
                for name, arm in campaign.arms.items()
            },
            "points": {name: self.point(name) for name in campaign.points},
            "prompts": {name: self.prompts(name) for name in campaign.points},
            "comparisons": [
                {"declared_factor": None, **comparison} for comparison in config.get("comparisons", [])
            ],
            "gates": {
                "policy": config["gates"]["policy"],
                "object": dict(self.gate_policy.spec),
                "sha256": self.gate_policy.sha256,
                "tasks_sha256": self.gate_policy.tasks_sha256,
                "at_load": bool(config["gates"].get("at_load")),
            },
            "unspecified": config.get("unspecified", {}),
            "published": config.get("published", {}),
            "publication": {
                "policy": config["publication"],
                "object": campaign.publication,
                "sha256": sha256_of_value(campaign.publication),
            },
            "images": {name: {"digest": digest} for name, digest in self.image_digests.items()},
            "models": campaign.models,
            # An arm of the rehearsal engine is one too, whatever the run is called.
            "rehearsal": campaign.rehearsal is not None
            or any(arm["engine"] == "rehearsal" for arm in campaign.arms.values()),
        }


def conversation_of(workload: Mapping[str, Any]) -> dict[str, int]:
    """The measures of a conversation workload."""
    return {key: workload[key] for key in CONVERSATION}


def root_of(campaign_path: Path) -> Path:
    """The checkout that a campaign file lies in: the folder above config/campaigns."""
    return campaign_path.resolve().parent.parent.parent
