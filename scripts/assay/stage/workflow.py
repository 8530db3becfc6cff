"""What the Snakefile asks: which campaigns there are, what their stages use, which files they leave."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from assay.config.campaign import Campaign, campaign_files, load_campaign
from assay.errors import EXIT_BAD_INPUT, BadInput
from assay.extract import everything
from assay.extract.chart_data import CHART_IDS
from assay.session import lease
from assay.stage.preflight import check_campaign, check_machine
from assay.stage.restore import RESTORE_VARIABLE
from assay.stage.specs import Specs
from assay.vocab import Stage

STAGE_RECEIPTS = ("start_server", "gate_before", "warm_up", "gate_after", "stop_server")
DEFAULT_CAMPAIGN = "campaign_local"


def is_target(word: str) -> bool:
    """Does a word of the command line name a campaign or something of its results?"""
    return word.startswith(("campaign_", "results/"))


def refuse(error: BadInput) -> None:
    """One line on stderr and exit 2; an exception would become Snakemake's traceback and exit 1."""
    print(f"assay: {error}", file=sys.stderr, flush=True)
    raise SystemExit(EXIT_BAD_INPUT)


def relay_signals(action: Callable[[int], None]) -> None:
    """Call ``action`` on a thread when this process gets SIGINT or SIGTERM, without replacing its handlers.

    Snakemake answers both by waiting for the running job; the job itself would never hear of it. Python
    writes the number of each handled signal to the wake-up descriptor, whoever has set the handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may set the descriptor; an embedded snakemake keeps its own ways
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def listen() -> None:
        while numbers := os.read(reader, 64):
            for number in numbers:
                if number in (signal.SIGINT, signal.SIGTERM):
                    action(number)

    threading.Thread(target=listen, name="assay-signals", daemon=True).start()


def interrupt_stages(_number: int) -> None:
    """End the stages that this snakemake runs, and then its servers."""
    for child in psutil.Process().children():
        try:
            child.terminate()
        except psutil.NoSuchProcess:
            continue  # it ended by itself
    lease.release(why="interrupted")


@dataclass
class Workflow:
    """The campaigns of one checkout as Snakemake sees them."""

    root: Path
    campaigns: dict[str, Campaign]
    extracts: tuple[str, ...] = everything.FILES
    extract_rooms: tuple[str, ...] = everything.ROOMS
    _specs: dict[str, Specs] = field(default_factory=dict)

    @staticmethod
    def open(root: Path, targets: Iterable[str], is_main: bool, is_remote: bool = False) -> Workflow:
        """Load every campaign; a broken one that is asked for ends the program with exit 2."""
        wanted = set(targets)
        campaigns: dict[str, Campaign] = {}
        for name, path in campaign_files(root).items():
            asked_for = name in wanted or any(target.startswith(f"results/{name}/") for target in wanted)
            asked_for = asked_for or (
                name == DEFAULT_CAMPAIGN and not any(is_target(word) for word in wanted)
            )
            try:
                campaigns[name] = load_campaign(path, root)
                check_campaign(campaigns[name])
                if is_main and asked_for:
                    check_machine(campaigns[name])
            except BadInput as error:
                campaigns.pop(name, None)
                if asked_for:
                    refuse(error)
                print(f"assay: {name} is left out: {error}", file=sys.stderr)
        # The interpreter stays out of params and shell text: a moved environment must not rerun anything.
        os.environ["ASSAY_PYTHON"] = sys.executable
        os.environ["ASSAY_OWNER_PID"] = str(os.getpid())
        # Only where a neighbour's failure deletes the outputs of a whole group are finished stages restored.
        os.environ[RESTORE_VARIABLE] = "1" if is_remote else ""
        if is_main:
            relay_signals(interrupt_stages)
        return Workflow(root, campaigns)

    def specs(self, name: str) -> Specs:
        if name not in self._specs:
            self._specs[name] = Specs(self.campaigns[name])
        return self._specs[name]

    def plan(self, name: str) -> dict[str, Any]:
        return self.specs(name).plan()

    def stage_spec(self, stage_name: str, wildcards: Any) -> dict[str, Any]:
        """The spec of the stage that a job's wildcards name."""
        specs, stage = self.specs(wildcards.campaign), Stage(stage_name)
        if stage is Stage.BUILD_IMAGE:
            return {
                "stage": stage_name,
                "image": wildcards.image,
                "digest": specs.image_digests[wildcards.image],
            }
        if stage is Stage.PREPARE_PROMPTS:
            return {
                "stage": stage_name, "campaign": wildcards.campaign, "prompts": specs.prompts(wildcards.point)
            }  # fmt: skip
        repeat = getattr(wildcards, "repeat", None)
        return specs.stage(
            stage,
            getattr(wildcards, "leg", None),
            getattr(wildcards, "point", None),
            int(repeat) if repeat is not None else None,
        )

    def priority(self, stage_rank: int, wildcards: Any) -> int:
        """Higher runs first: earlier legs, then earlier stages, then earlier points and repeats."""
        campaign = self.campaigns[wildcards.campaign]
        leg_rank = campaign.leg(wildcards.leg).rank
        points = list(campaign.points)
        point = getattr(wildcards, "point", None)
        place = points.index(point) * 100 + int(getattr(wildcards, "repeat", 0)) if point else 0
        return 10_000_000 * (100 - leg_rank) + 1_000_000 * stage_rank - place

    def gpus(self, name: str) -> int:
        return int(self.campaigns[name].config["needs"]["gpus"])

    def image_receipt(self, name: str, leg_name: str) -> list[str]:
        """The receipts of the images of a leg: its engine's, and its router's where it has one."""
        campaign = self.campaigns[name]
        arm = campaign.arms[campaign.leg(leg_name).arm]
        images = [arm["image"]] + ([arm["router"]["image"]] if "router" in arm else [])
        return [f"results/{name}/receipts/images/{image}.json" for image in images]

    def load_receipts(self, name: str, leg_name: str) -> list[str]:
        """The receipts of every measured stage of a leg."""
        campaign, base = self.campaigns[name], f"results/{name}/receipts/{leg_name}"
        finite = [
            f"{base}/finite/{point}/r{repeat}.json"
            for point in campaign.finite_points()
            for repeat in range(1, campaign.points[point]["repeats"] + 1)
        ]
        return finite + [f"{base}/sustained/{point}.json" for point in campaign.sustained_points()]

    def all_receipts(self, name: str) -> list[str]:
        """Every receipt of a campaign: Snakemake overlooks missing intermediates that no target names."""
        campaign, base = self.campaigns[name], f"results/{name}"
        receipts = [f"{base}/plan.json", f"{base}/receipts/probe_topology.json"]
        receipts += [f"{base}/receipts/images/{image}.json" for image in sorted(campaign.images)]
        receipts += [f"{base}/receipts/prompts/{point}.json" for point in campaign.points]
        for leg in campaign.legs():
            receipts += [f"{base}/receipts/{leg.name}/{stage}.json" for stage in STAGE_RECEIPTS]
            receipts += self.load_receipts(name, leg.name)
        return receipts

    def charts(self, name: str) -> list[str]:
        kinds = [
            chart for chart in CHART_IDS if chart != "sustained" or self.campaigns[name].sustained_points()
        ]
        return [f"results/{name}/charts/{kind}.{form}" for kind in kinds for form in ("svg", "png")]

    def targets(self, name: str) -> list[str]:
        """Everything that a finished campaign has."""
        extracts = [f"results/{name}/extracts/{file}" for file in everything.FILES]
        pinned = [f"results/{name}/SHA256SUMS", f"results/{name}/ro-crate-metadata.json"]
        return [*self.all_receipts(name), *extracts, *self.charts(name), *pinned]

    def release(self, why: str) -> None:
        """End the servers that this snakemake leased."""
        lease.release(why=why)
