"""A campaign as a rehearsal: the same DAG on the simulated node, under a name of its own.

What changes is what stands under each arm (the rehearsal engine with the arm's flags), the prompts that are
not there (stand-ins), and the results folder. `ci` cuts loads and prompts to a size for continuous integration;
the stages stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.config.campaign import REHEARSAL_SUFFIX, Campaign
from assay.config.files import read_config
from assay.digest import sha256_of_file
from assay.errors import BadInput
from assay.rehearsal.faults import read_faults
from assay.rehearsal.profile import read_profile
from assay.session.engines import Engine, engine, rehearse
from assay.session.engines.rehearsal import recipe_of_members

KEYS = ("rehearse", "ci", "time_scale", "stand_in_prompts")
WORDS = {"true": True, "false": False}
"""Snakemake knows True and False only; YAML's own words come as text."""
TIME_SCALE = 8
"""Simulated seconds in a second; the client of a small machine keeps up with it at 64 streams."""
CI_TIME_SCALE = 20
PUBLICATION = "local"
"""The policy of a machine that serves and asks at once. It decides what is invalid: no rehearsal is published."""
CI_GATES = "local"
CI = {
    "concurrency": 4,
    "requests_per_stream": 2,
    "repeats": 2,
    "max_tokens": 24,
    "windows": 2,
    "issue_s": 20.0,
    "prompt_tokens": 256,
    "first_tokens": 300,
    "turn_tokens": 60,
    "turns": 4,
    "conversations": 4,
}
CI_PARAMETERS = {"ready_s": 20.0, "reasoning_median_tokens": 2.0}


@dataclass(frozen=True)
class Options:
    """What `snakemake --config` says about a run."""

    rehearse: bool = False
    ci: bool = False
    time_scale: int | None = None
    stand_in_prompts: bool = False

    def rehearsal(self) -> dict[str, Any] | None:
        """The options that decide what a rehearsal's stages do; None for a real run."""
        if not self.rehearse:
            return None
        return {"ci": self.ci, "time_scale": self.time_scale or (CI_TIME_SCALE if self.ci else TIME_SCALE)}


def read_options(config: Mapping[str, Any]) -> Options:
    """Check the words of `--config`. BadInput for an unknown one, a wrong type, or one without `rehearse`."""
    found: dict[str, Any] = {}
    for key, word in config.items():
        if key not in KEYS:
            raise BadInput("unknown option", where="--config", key=str(key), hint=", ".join(KEYS))
        value = found[key] = WORDS.get(word, word) if isinstance(word, str) else word
        if key == "time_scale":
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
                raise BadInput(f"{value!r} is no scale", where="--config", key=key, hint="1 to 1000")
        elif not isinstance(value, bool):
            raise BadInput(f"{value!r} is neither", where="--config", key=key, hint="true or false")
    options = Options(**found)
    if not options.rehearse and (options.ci or options.time_scale):
        key = "ci" if options.ci else "time_scale"
        raise BadInput("only a rehearsal has it", where="--config", key=key, hint="rehearse=true")
    return options


def with_options(campaign: Campaign, options: Options) -> Campaign:
    """The campaign that is to be run: as it is, with stand-in prompts, or as a rehearsal."""
    rehearsal = options.rehearsal()
    if rehearsal is not None:
        return as_rehearsal(campaign, rehearsal)
    return with_stand_ins(campaign) if options.stand_in_prompts else campaign


def with_stand_ins(campaign: Campaign) -> Campaign:
    """Shipped prompts in the place of local ones; each such workload says `stand_in`."""
    workloads = {
        name: campaign.stand_ins[name]
        | {"name": name, "stand_in": True, "request": workload.get("request", {})}
        if "local" in workload
        else workload
        for name, workload in campaign.workloads.items()
    }
    return replace(campaign, workloads=workloads)


def as_rehearsal(campaign: Campaign, rehearsal: Mapping[str, Any]) -> Campaign:
    """The campaign on the simulated node; `rehearsal` is `Options.rehearsal()`."""
    check_rehearsal(campaign)
    campaign = with_stand_ins(campaign)
    config = campaign.config | {"name": campaign.name + REHEARSAL_SUFFIX, "publication": PUBLICATION}
    workloads = campaign.workloads
    if rehearsal["ci"]:
        config |= {
            "points": {
                name: cut_point(point, workloads[point["workload"]])
                for name, point in campaign.points.items()
            },
            "gates": {"policy": CI_GATES},
        }
        workloads = {name: cut_workload(workload) for name, workload in workloads.items()}
    policy = campaign.root / "config" / "publication" / f"{PUBLICATION}.yaml"
    publication = read_config(campaign.root, "publication", policy)
    return replace(
        campaign, config=config, workloads=workloads, publication=publication, rehearsal=dict(rehearsal)
    )


def check_rehearsal(campaign: Campaign) -> None:
    """Each arm says what stands for it. BadInput names the key."""
    for name, arm in campaign.arms.items():
        if "rehearsal" not in arm and arm["engine"] != "rehearsal":
            raise BadInput(
                "nothing says what stands for the arm",
                where=campaign.path,
                key=f"arms.{name}.rehearsal",
                hint="rehearsal: {profile: <a file of config/rehearsal/profiles>}",
            )
    check_stand_ins(campaign)


def check_stand_ins(campaign: Campaign) -> None:
    """The simulation takes what is said of each arm. BadInput names the key."""
    for name, arm in campaign.arms.items():
        key = f"arms.{name}.rehearsal"
        if "rehearsal" not in arm:
            continue
        profile = profile_path(campaign.root, arm)
        if not profile.is_file():
            known = ", ".join(sorted(path.stem for path in profile.parent.glob("*.yaml"))) or "none"
            raise BadInput(
                f"no profile {profile.stem!r}", where=campaign.path, key=f"{key}.profile", hint=known
            )
        read_profile(profile, campaign.root).with_values(
            arm["rehearsal"].get("parameters", {}), campaign.path
        )
        read_faults(arm["rehearsal"].get("faults", []), campaign.path)


def profile_path(root: Path, arm: Mapping[str, Any]) -> Path:
    return root / "config" / "rehearsal" / "profiles" / f"{arm['rehearsal']['profile']}.yaml"


def cut_point(point: Mapping[str, Any], workload: Mapping[str, Any]) -> dict[str, Any]:
    """A point in the size for continuous integration; of a conversation some turns are left."""
    cut = dict(point)
    for key in ("concurrency", "repeats", "max_tokens", "windows", "issue_s"):
        if key in cut:
            cut[key] = min(cut[key], CI[key])
    if "requests" in cut:
        most = int(CI["requests_per_stream"]) * cut["concurrency"]
        if workload["kind"] == "conversation":
            most = max(most, int(CI["turns"]))
        cut["requests"] = min(cut["requests"], most)
    return cut


def cut_workload(workload: Mapping[str, Any]) -> dict[str, Any]:
    cut = dict(workload)
    for key in ("prompt_tokens", "first_tokens", "turn_tokens", "turns", "conversations"):
        if key in cut:
            cut[key] = min(cut[key], int(CI[key]))
    return cut


def stand_in(campaign: Campaign, arm_name: str) -> dict[str, Any]:
    """What a rehearsed arm's server runs: scale, profile with its digest, faults, replaced settings."""
    assert campaign.rehearsal is not None
    arm, ci = campaign.arms[arm_name], campaign.rehearsal["ci"]
    told: dict[str, Any] = {"time_scale": campaign.rehearsal["time_scale"]}
    if "rehearsal" in arm:
        profile = profile_path(campaign.root, arm)
        about = arm["rehearsal"]
        told |= {
            "profile": profile.relative_to(campaign.root).as_posix(),
            "profile_sha256": sha256_of_file(profile),
            "faults": about.get("faults", []),
            "recipe": about.get("recipe", {}),
            "parameters": about.get("parameters", {}) | (CI_PARAMETERS if ci else {}),
        }
    return told


def engine_of(server: Mapping[str, Any]) -> Engine:
    """The engine of a leg's server; of a rehearsed one the simulated node that plays its replicas and all."""
    if "profile" not in server.get("rehearsal", {}):
        return engine(server["engine"])
    told = server["rehearsal"]
    options = {key: told[key] for key in ("time_scale", "faults", "parameters") if key in told}
    recipe = recipe_of_members(server) | told.get("recipe", {})
    return rehearse(engine(server["engine"]), options | ({"recipe": recipe} if recipe else {}))
