"""What a campaign will take: jobs, requests, tokens and time of each stage, and which stages are done.

Times come from the best source there is, which stands beside them: ``measured`` (this campaign's receipts and rows),
``rehearsed`` (the rows of its rehearsal), ``simulated`` (the rehearsal's scheduler, run without a clock), ``declared``
(a window's length), or none. Nothing is started and nothing fails in an estimate.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from assay.audit.recompute import read_rows_csv
from assay.config.campaign import REHEARSAL_SUFFIX, Campaign, Leg
from assay.digest import sha256_of_value
from assay.errors import AssayError, Incomplete
from assay.records.files import read_json
from assay.rehearsal.offline import Ask, ClosedLoop
from assay.rehearsal.profile import Profile, read_profile
from assay.rehearsal.recipe import Recipe, recipe_of
from assay.session.engines.rehearsal import recipe_of_members
from assay.stage.conversation import draw_conversations
from assay.stage.prompts import read_pool
from assay.stage.rehearse import profile_path, with_stand_ins
from assay.stage.specs import Specs
from assay.vocab import GateKind, Stage, StageState

CHARACTERS_PER_TOKEN = 4.0
TASK_OUTPUT_TOKENS = 120
"""About what a JSON, tool or code task answers."""
SIMULATED_S_MAX = 60.0
"""A window is simulated so long at most; what is left of it goes on at that rate."""
MEASURED, REHEARSED, SIMULATED, DECLARED = "measured", "rehearsed", "simulated", "declared"
DONE, RERUN, FAILED, MISSING = "done", "would rerun", "failed", "to do"
FRESH_SESSION = "a fresh session's start, gates and warm-up"


@dataclass(frozen=True)
class Line:
    """One stage of one leg. ``n_*`` and ``wall_s`` are of all its jobs; None is unknown."""

    leg: str
    stage: str
    point_id: str | None
    n_jobs: int
    n_requests: int | None
    n_prompt_tokens: int | None
    n_output_tokens: int | None
    wall_s: float | None
    source: str | None
    states: Mapping[str, int]


@dataclass(frozen=True)
class Load:
    """What one phase of load comes to."""

    n_requests: int
    n_prompt_tokens: int
    n_output_tokens: int
    wall_s: float | None


class Estimate:
    """The lines of a campaign, from its file, its receipts in ``results`` and its rehearsal's rows."""

    def __init__(self, campaign: Campaign, results: Path) -> None:
        self.campaign, self.results = campaign, results
        self.specs = Specs(campaign)
        self.drawn = campaign if campaign.rehearsal is not None else with_stand_ins(campaign)
        self._loads: dict[tuple[Any, ...], Load] = {}
        self._recipes: dict[str, Recipe] = {}
        self._profiles: dict[str, Profile | None] = {}
        self._lengths: dict[str, list[int]] = {}

    # ------------------------------------------------------------------ lines

    def lines(self) -> list[Line]:
        return [line for leg in self.campaign.legs() for line in self.of_leg(leg)]

    def of_leg(self, leg: Leg) -> list[Line]:
        profile = self.profile(leg.arm)
        ready_s = profile.ready_s if profile else None
        gates = self.gates(leg.arm)
        front = [
            self.line(leg, Stage.START_SERVER, None, 1, Load(0, 0, 0, ready_s), SIMULATED),
            self.line(leg, Stage.GATE_BEFORE, None, 1, gates, SIMULATED),
            self.line(leg, Stage.WARM_UP, None, 1, self.warm_up(leg.arm), SIMULATED),
        ]
        loads = [self.point_line(leg, point_id) for point_id in self.campaign.points]
        after = self.line(leg, Stage.GATE_AFTER, None, 1, gates, SIMULATED)
        stop = self.line(leg, Stage.STOP_SERVER, None, 1, Load(0, 0, 0, 0.0), DECLARED)
        if not all(map(is_done, loads)) and all(map(is_done, front)):
            if is_done(after):
                after = replace(after, states={RERUN: 1})
            if not self.is_live(leg):
                front.append(again(leg, front))
        return [*front, *loads, after, stop]

    def point_line(self, leg: Leg, point_id: str) -> Line:
        point = self.specs.point(point_id)
        finite = point["kind"] == "finite"
        stage = Stage.RUN_FINITE if finite else Stage.RUN_SUSTAINED
        n_times = point["repeats"] if finite else point["windows"]
        load, source = self.load(leg.arm, point), SIMULATED
        for rows, name in ((self.own_rows, MEASURED), (self.rehearsed_rows, REHEARSED)):
            rate = known_rate(rows, leg.arm, point)
            if rate is None:
                continue
            if finite:
                load = Load(
                    load.n_requests, load.n_prompt_tokens, load.n_output_tokens, load.n_output_tokens / rate
                )
            else:
                load = stretch(load, rate * point["issue_s"] / max(load.n_output_tokens, 1), load.wall_s)
            source = name
            break
        if not finite and load.wall_s is None:
            load, source = (
                Load(load.n_requests, load.n_prompt_tokens, load.n_output_tokens, point["issue_s"]),
                DECLARED,
            )
        return self.line(
            leg, stage, point_id, point["repeats"] if finite else 1, stretch(load, n_times), source
        )

    def line(
        self, leg: Leg, stage: Stage, point_id: str | None, n_jobs: int, load: Load, source: str
    ) -> Line:
        known = load.wall_s is not None or load.n_requests > 0
        scale = self.campaign.rehearsal["time_scale"] if self.campaign.rehearsal is not None else 1
        jobs = self.jobs(leg, stage, point_id, n_jobs)
        wall_s = None if load.wall_s is None else load.wall_s / scale
        # A load of another size took another time; what stands around the loads is much the same every time.
        took = [took_s(path) for path, word in jobs if word == DONE or point_id is None]
        if times := [one for one in took if one is not None]:
            wall_s, source = sum(times) / len(times) * n_jobs, MEASURED
        return Line(
            leg.name,
            str(stage),
            point_id,
            n_jobs,
            load.n_requests if known else None,
            load.n_prompt_tokens if known else None,
            load.n_output_tokens if known else None,
            wall_s,
            None if wall_s is None else source,
            dict(Counter(word for _, word in jobs)),
        )

    # ------------------------------------------------------------------ what is done

    def jobs(self, leg: Leg, stage: Stage, point_id: str | None, n_jobs: int) -> list[tuple[Path, str]]:
        """The receipt of each job of a stage: done, failed, to do, or done under another specification."""
        folder = self.receipts(leg)
        found = []
        for number in range(1, n_jobs + 1):
            repeat = number if stage is Stage.RUN_FINITE else None
            if stage is Stage.RUN_FINITE:
                path = folder / "finite" / str(point_id) / f"r{number}.json"
            elif stage is Stage.RUN_SUSTAINED:
                path = folder / "sustained" / f"{point_id}.json"
            else:
                path = folder / f"{stage}.json"
            found.append((path, state_of(path, self.specs.stage(stage, leg.name, point_id, repeat))))
        return found

    def receipts(self, leg: Leg) -> Path:
        return self.results / self.campaign.name / "receipts" / leg.name

    def is_live(self, leg: Leg) -> bool:
        """Is the server of the leg's receipts there still, as far as its session's record says?"""
        for path in self.receipts(leg).rglob("*.json"):
            try:
                session_id = read_json(path).get("session_id")
                session = read_json(self.results / "evidence" / str(session_id) / "session.json")
            except (Incomplete, AttributeError):
                continue
            if session.get("state") != "stopped":
                return True
        return False

    @cached_property
    def own_rows(self) -> list[dict[str, Any]]:
        return rows_of(self.results / self.campaign.name) if self.campaign.rehearsal is None else []

    @cached_property
    def rehearsed_rows(self) -> list[dict[str, Any]]:
        return rows_of(self.results / (self.campaign.name.removesuffix(REHEARSAL_SUFFIX) + REHEARSAL_SUFFIX))

    # ------------------------------------------------------------------ loads

    def profile(self, arm_name: str) -> Profile | None:
        """The profile of the arm's rehearsal; None for an arm that has none."""
        if arm_name not in self._profiles:
            self._profiles[arm_name] = self._profile(arm_name)
        return self._profiles[arm_name]

    def _profile(self, arm_name: str) -> Profile | None:
        arm = self.campaign.arms[arm_name]
        if "rehearsal" not in arm:
            return None
        profile = read_profile(profile_path(self.campaign.root, arm), self.campaign.root)
        server = self.specs.server(arm_name).get("rehearsal", arm["rehearsal"])
        return profile.with_values(server.get("parameters", {}))

    def recipe(self, arm_name: str) -> Recipe:
        if arm_name not in self._recipes:
            server = self.specs.server(arm_name)
            more = recipe_of_members(server) | self.campaign.arms[arm_name]["rehearsal"].get("recipe", {})
            self._recipes[arm_name] = recipe_of(server["engine"], server["flags"], more)
        return self._recipes[arm_name]

    def prompt_lengths(self, point: Mapping[str, Any]) -> tuple[list[int], bool]:
        """(tokens of the prompts that a point cycles, are they random ids); of texts about so many."""
        workload = self.drawn.workloads[point["workload"]]
        if workload["kind"] == "synthetic":
            return [workload["prompt_tokens"]], True
        if point["workload"] not in self._lengths:
            if workload["kind"] == "conversation":
                lines = draw_conversations(point["point_id"], workload, point["seed"])
                texts = [line["messages"] for line in lines]
            else:
                texts = [prompt.messages or [] for prompt in read_pool(self.campaign.root, workload)]
            self._lengths[point["workload"]] = [about_tokens(messages) for messages in texts]
        return self._lengths[point["workload"]], False

    def load(self, arm_name: str, point: Mapping[str, Any]) -> Load:
        """One repeat or window of a point on an arm."""
        lengths, is_random = self.prompt_lengths(point)
        n = point["requests"] if point["kind"] == "finite" else None
        asks = draw_asks(lengths, is_random, point, self.profile(arm_name), n or max(256, len(lengths)))
        return self.simulate(arm_name, asks, point["concurrency"], point.get("issue_s"))

    def gates(self, arm_name: str) -> Load:
        """The gate tasks, one after the other. A tool task is asked twice."""
        asks: list[Ask] = []
        for task in self.specs.gate_policy.tasks:
            if task.kind is GateKind.NEEDLE:
                asks.append(Ask(int(task.check["length_tokens"]), 20, len(asks)))
            else:
                times = 2 if task.is_streamed_too else 1
                n_prompt = about_tokens(list(task.messages or ()))
                asks += [Ask(n_prompt, TASK_OUTPUT_TOKENS, len(asks) + i) for i in range(times)]
        return self.simulate(arm_name, asks, 1, None)

    def warm_up(self, arm_name: str) -> Load:
        total = Load(0, 0, 0, 0.0)
        for shape in self.specs.warm_up()["shapes"]:
            lengths = [
                shape["planned_prompt_tokens"] or shape.get("conversation", {}).get("first_tokens", 60)
            ]
            n = shape["concurrency"] * self.campaign.config["warm_up"]["requests_per_slot"]
            shape = shape | {"point_id": "warm_up", "seed": 1}
            asks = draw_asks(lengths, shape["workload_kind"] == "synthetic", shape, self.profile(arm_name), n)
            total = add(total, self.simulate(arm_name, asks, shape["concurrency"], None))
        return total

    def simulate(self, arm_name: str, asks: list[Ask], concurrency: int, issue_s: float | None) -> Load:
        """The load on the simulated node without a clock; without a profile its time is unknown."""
        profile = self.profile(arm_name)
        key = (arm_name, tuple(asks), concurrency, issue_s)
        if profile is None:
            return Load(len(asks), sum(a.n_prompt for a in asks), sum(a.n_output for a in asks), None)
        if key not in self._loads:
            loop = ClosedLoop(profile, self.recipe(arm_name))
            span_s = None if issue_s is None else min(issue_s, SIMULATED_S_MAX)
            served = loop.run(asks, concurrency, duration_s=span_s)
            end_s = max(one.t_end_s for one in served) - min(one.t_send_s for one in served)
            n_prompt, n_output = (
                sum(one.ask.n_prompt for one in served),
                sum(one.ask.n_output for one in served),
            )
            whole = Load(len(served), n_prompt, n_output, end_s)
            if issue_s is not None and span_s is not None:
                whole = stretch(whole, issue_s / span_s, issue_s + end_s - span_s)
            self._loads[key] = whole
        return self._loads[key]


def stretch(load: Load, factor: float, wall_s: float | None = None) -> Load:
    """A load so many times, or at so many times its rate when its time is given."""
    if wall_s is None and load.wall_s is not None:
        wall_s = load.wall_s * factor
    return Load(
        round(load.n_requests * factor),
        round(load.n_prompt_tokens * factor),
        round(load.n_output_tokens * factor),
        wall_s,
    )


def add(one: Load, other: Load) -> Load:
    wall_s = None if one.wall_s is None or other.wall_s is None else one.wall_s + other.wall_s
    return Load(
        one.n_requests + other.n_requests,
        one.n_prompt_tokens + other.n_prompt_tokens,
        one.n_output_tokens + other.n_output_tokens,
        wall_s,
    )


def about_tokens(messages: list[Any]) -> int:
    """About how many tokens a chat has, from its characters."""
    return max(1, round(sum(len(str(m.get("content", ""))) for m in messages) / CHARACTERS_PER_TOKEN))


def draw_asks(
    lengths: list[int], is_random: bool, point: Mapping[str, Any], profile: Profile | None, count: int
) -> list[Ask]:
    """``count`` requests: the prompts in turn, answers forced or of drawn length under the cap."""
    # Not by the point's name: points of one load are simulated once.
    source = random.Random(f"{point['workload_kind']}/{point['concurrency']}/{point['seed']}")
    asks = []
    for number in range(count):
        n_output, seed = point["max_tokens"], source.getrandbits(31)
        if not point["ignore_eos"] and profile is not None:
            drawn = source.lognormvariate(math.log(profile.answer_median_tokens), profile.answer_sigma)
            n_output = min(n_output, max(1, round(drawn)))
        asks.append(Ask(lengths[number % len(lengths)], n_output, seed, is_random))
    return asks


def state_of(path: Path, spec: Mapping[str, Any]) -> str:
    """Is a stage done under this specification? A failed one stands until `assay retry --failed`."""
    try:
        receipt = read_json(path)
    except Incomplete:
        return MISSING if not path.exists() else RERUN
    if receipt.get("spec_sha256") != sha256_of_value(spec):
        return RERUN
    return DONE if receipt.get("state") == StageState.COMPLETED else FAILED


def is_done(line: Line) -> bool:
    return line.states.get(DONE, 0) == line.n_jobs


def again(leg: Leg, front: list[Line]) -> Line:
    """What comes before a load can go on when the server is gone: no job of its own, and the front of a session."""
    times = [line.wall_s for line in front if line.wall_s is not None]
    wall_s, source = None, None
    if len(times) == len(front):
        wall_s, source = sum(times), MEASURED if {line.source for line in front} == {MEASURED} else SIMULATED
    return Line(leg.name, FRESH_SESSION, None, 0, None, None, None, wall_s, source, {MISSING: 1})


def took_s(receipt: Path) -> float | None:
    """Seconds that a completed stage took by its receipt, a server's start until it was ready; None without one."""
    try:
        record = read_json(receipt)
        if record["state"] != StageState.COMPLETED:
            return None
        ready_s = (record.get("measured") or {}).get("ready_after_s")
        if ready_s is not None:
            return float(ready_s)
        begin, end = (datetime.fromisoformat(record[key]) for key in ("t_start_utc", "t_end_utc"))
    except (Incomplete, AttributeError, KeyError, TypeError, ValueError):
        return None
    return (end - begin).total_seconds()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of a finished campaign; empty when it has none."""
    path = folder / "extracts" / "rows.csv"
    try:
        return read_rows_csv(path) if path.is_file() else []
    except AssayError:
        return []  # rows that cannot be read tell no rate


def known_rate(rows: list[dict[str, Any]], arm: str, point: Mapping[str, Any]) -> float | None:
    """Output tokens/s of the valid rows of a point of the same size; None without one."""
    rates = [
        row["output_tok_s"]
        for row in rows
        if (row["arm"], row["point_id"], row["concurrency"], row["max_tokens"])
        == (arm, point["point_id"], point["concurrency"], point["max_tokens"])
        and row["kind"] in ("repeat", "pooled")
        and row["output_tok_s"]
        and not row["invalid"]
    ]
    return sum(rates) / len(rates) if rates else None
