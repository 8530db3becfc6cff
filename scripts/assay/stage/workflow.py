"""What the Snakefile asks: which campaigns there are, what their stages use, which files they leave."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil

from assay.config.campaign import REHEARSAL_SUFFIX, Campaign, campaign_files, load_campaign
from assay.errors import EXIT_BAD_INPUT, BadInput
from assay.extract import everything
from assay.extract.chart_data import CHART_IDS, CURVES
from assay.session import lease
from assay.stage.preflight import check_campaign, check_machine
from assay.stage.rehearse import Options, read_options, with_options
from assay.stage.restore import RESTORE_VARIABLE, UNNOTED_VARIABLE, unnoted_receipts
from assay.stage.specs import Specs
from assay.vocab import Stage

STAGE_RECEIPTS = ("start_server", "gate_before", "warm_up", "gate_after", "stop_server")
DEFAULT_CAMPAIGN = "campaign_local"


def is_target(word: str) -> bool:
    """Does a word of the command line name a campaign or something of its results?"""
    return word.startswith(("campaign_", "results/"))


def is_asked_for(name: str, words: set[str]) -> bool:
    """Is a campaign named by a word of the command line, or by none while it is the default?"""
    folders = (f"results/{name}/", f"results/{name}{REHEARSAL_SUFFIX}/")
    if name in words or any(word.startswith(folders) for word in words):
        return True
    return name == DEFAULT_CAMPAIGN and not any(is_target(word) for word in words)


def refuse(error: BadInput) -> NoReturn:
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
    files: dict[str, Path]
    """Target -> campaign file."""
    options: Options = field(default_factory=Options)
    extracts: tuple[str, ...] = everything.FILES
    extract_rooms: tuple[str, ...] = everything.ROOMS
    _campaigns: dict[str, Campaign] = field(default_factory=dict)
    _specs: dict[str, Specs] = field(default_factory=dict)

    @staticmethod
    def open(
        root: Path,
        targets: Iterable[str],
        is_main: bool,
        is_remote: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> Workflow:
        """Load and check the campaigns that are asked for; a broken one ends the program with exit 2.

        ``config`` is what `snakemake --config` says. Other campaigns are read when a job names them.
        """
        wanted = set(targets)
        try:
            flow = Workflow(root, campaign_files(root), read_options(config or {}))
            for name in flow.files if is_main else ():
                if is_asked_for(name, wanted):
                    campaign = flow.campaign(flow.result_name(name))
                    if not flow.options.rehearse:
                        check_machine(campaign)
        except BadInput as error:
            refuse(error)
        # The interpreter stays out of params and shell text: a moved environment must not rerun anything.
        os.environ["ASSAY_PYTHON"] = sys.executable
        os.environ["ASSAY_OWNER_PID"] = str(os.getpid())
        # Only where a neighbour's failure deletes the outputs of a whole group are all finished stages restored.
        os.environ[RESTORE_VARIABLE] = "1" if is_remote else ""
        if is_main:
            os.environ[UNNOTED_VARIABLE] = json.dumps(unnoted_receipts(Path.cwd()))
            relay_signals(interrupt_stages)
        return flow

    def result_name(self, target: str) -> str:
        """The name under which a target's results lie: a rehearsal has a folder of its own."""
        return target + REHEARSAL_SUFFIX if self.options.rehearse else target

    def campaign(self, name: str) -> Campaign:
        """The campaign of a results folder, read and checked once. BadInput."""
        if name not in self._campaigns:
            target = name.removesuffix(REHEARSAL_SUFFIX) if self.options.rehearse else name
            if target not in self.files or self.result_name(target) != name:
                wrong = "of a rehearsal" if name.endswith(REHEARSAL_SUFFIX) else "not of a rehearsal"
                raise BadInput(
                    f"no campaign {name!r}",
                    where="results",
                    hint=f"--config rehearse=true? the name is {wrong}",
                )
            campaign = load_campaign(self.files[target], self.root)
            check_campaign(campaign)
            self._campaigns[name] = with_options(campaign, self.options)
        return self._campaigns[name]

    def specs(self, name: str) -> Specs:
        if name not in self._specs:
            self._specs[name] = Specs(self.campaign(name))
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
            } | ({"rehearsal": True} if self.options.rehearse else {})
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
        campaign = self.campaign(wildcards.campaign)
        leg_rank = campaign.leg(wildcards.leg).rank
        points = list(campaign.points)
        point = getattr(wildcards, "point", None)
        place = points.index(point) * 100 + int(getattr(wildcards, "repeat", 0)) if point else 0
        return 10_000_000 * (100 - leg_rank) + 1_000_000 * stage_rank - place

    def gpus(self, name: str) -> int:
        return 0 if self.options.rehearse else int(self.campaign(name).config["needs"]["gpus"])

    def image_receipt(self, name: str, leg_name: str) -> list[str]:
        """The receipts of the images of a leg: its engine's, and its router's where it has one."""
        campaign = self.campaign(name)
        arm = campaign.arms[campaign.leg(leg_name).arm]
        images = [arm["image"]] + ([arm["router"]["image"]] if "router" in arm else [])
        return [f"results/{name}/receipts/images/{image}.json" for image in images]

    def load_receipts(self, name: str, leg_name: str) -> list[str]:
        """The receipts of every measured stage of a leg."""
        campaign, base = self.campaign(name), f"results/{name}/receipts/{leg_name}"
        finite = [
            f"{base}/finite/{point}/r{repeat}.json"
            for point in campaign.finite_points()
            for repeat in range(1, campaign.points[point]["repeats"] + 1)
        ]
        return finite + [f"{base}/sustained/{point}.json" for point in campaign.sustained_points()]

    def all_receipts(self, name: str) -> list[str]:
        """Every receipt of a campaign: Snakemake overlooks missing intermediates that no target names."""
        campaign, base = self.campaign(name), f"results/{name}"
        receipts = [f"{base}/plan.json", f"{base}/receipts/probe_topology.json"]
        receipts += [f"{base}/receipts/images/{image}.json" for image in sorted(campaign.images)]
        receipts += [f"{base}/receipts/prompts/{point}.json" for point in campaign.points]
        for leg in campaign.legs():
            receipts += [f"{base}/receipts/{leg.name}/{stage}.json" for stage in STAGE_RECEIPTS]
            receipts += self.load_receipts(name, leg.name)
        return receipts

    def charts(self, name: str) -> list[str]:
        """The charts that the campaign's points can fill: curves want finite ones, window sets sustained ones."""
        campaign = self.campaign(name)
        wanted = {chart: campaign.finite_points() for chart in CURVES} | {
            "sustained": campaign.sustained_points()
        }
        kinds = [chart for chart in CHART_IDS if wanted.get(chart, True)]
        return [f"results/{name}/charts/{kind}.{form}" for kind in kinds for form in ("svg", "png")]

    def targets(self, target: str) -> list[str]:
        """Everything that a finished campaign has."""
        name = self.result_name(target)
        extracts = [f"results/{name}/extracts/{file}" for file in everything.FILES]
        pinned = [f"results/{name}/SHA256SUMS", f"results/{name}/ro-crate-metadata.json"]
        return [*self.all_receipts(name), *extracts, *self.charts(name), *pinned]

    def release(self, why: str) -> None:
        """End the servers that this snakemake leased."""
        lease.release(why=why)
