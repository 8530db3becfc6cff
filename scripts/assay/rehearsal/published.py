"""The published figures and the simulated node side by side: the same arms, loads and metrics.

config/rehearsal/published.yaml says which profile, recipe and load stand for which published arm and point;
the figures are those of config/reference/published_results.csv. Nothing here is read by the scheduler.
"""

from __future__ import annotations

import csv
import math
import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.config.files import read_config
from assay.rehearsal.offline import Ask, ClosedLoop, Served, output_tok_s, percentile
from assay.rehearsal.profile import Profile, read_profile
from assay.rehearsal.recipe import Recipe

CASES = Path("config/rehearsal/published.yaml")
REFERENCE = Path("config/reference/published_results.csv")
PROFILES = Path("config/rehearsal/profiles")


@dataclass(frozen=True)
class Case:
    """One published point and what stands for it."""

    campaign: str
    arm: str
    workload: str
    concurrency: int
    profile: str
    recipe: Recipe
    load: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.campaign, self.arm, self.workload, self.concurrency


@dataclass(frozen=True)
class Comparison:
    """One figure, published and rehearsed; ``unit`` and ``statistic`` as published."""

    campaign: str
    arm: str
    workload: str
    concurrency: int | None
    metric: str
    unit: str
    statistic: str
    published: float
    published_text: str
    rehearsed: float

    @property
    def ratio(self) -> float:
        return self.rehearsed / self.published


def read_cases(root: Path) -> list[Case]:
    """The cases of published.yaml. Raises BadInput."""
    config = read_config(root, "rehearsal_published", root / CASES)
    cases = []
    for campaign, entry in config["campaigns"].items():
        for arm, about in entry["arms"].items():
            recipe = Recipe(**about.get("recipe", {}))
            for point in entry["points"]:
                if arm not in point.get("arms", [arm]):
                    continue
                workload = config["workloads"][point["workload"]]
                cases.append(
                    Case(
                        campaign,
                        arm,
                        point["workload"],
                        point["concurrency"],
                        about["profile"],
                        recipe,
                        {**workload, **point},
                    )
                )
    return cases


def draw_asks(load: Mapping[str, Any], profile: Profile, count: int, seed: int = 1) -> list[Ask]:
    """``count`` requests of a workload: fixed lengths, or chat prompts and answers of drawn lengths."""
    source = random.Random(f"{load['workload']}/{load['concurrency']}/{seed}")
    asks = []
    for _ in range(count):
        if "prompt_tokens" in load:
            asks.append(
                Ask(load["prompt_tokens"], load["output_tokens"], source.getrandbits(31), load["random"])
            )
            continue
        n_prompt = round(source.lognormvariate(math.log(load["prompt_median"]), load["prompt_sigma"]))
        n_answer = round(source.lognormvariate(math.log(profile.answer_median_tokens), profile.answer_sigma))
        n_output = min(max(n_answer, 1), load["max_tokens"])
        asks.append(Ask(max(n_prompt, 1), n_output, source.getrandbits(31)))
    return asks


def run_case(case: Case, profile: Profile) -> dict[str, float]:
    """Metric -> value in the published units; repeats and windows are put together as they were."""
    load = case.load
    pool = load.get("pool") or load["requests"]
    runs: list[list[Served]] = []
    loop = ClosedLoop(profile, case.recipe)
    for repeat in range(load.get("repeats", 1)):
        asks = draw_asks(load, profile, pool, 1 if load.get("same_prompts", True) else repeat)
        served = loop.run(
            asks, case.concurrency, requests=load.get("requests"), duration_s=load.get("duration_s")
        )
        runs.append(list(served))
    rates = [output_tok_s(served) for served in runs]
    every = [item for served in runs for item in served]
    if "duration_s" in load:  # windows: pooled over the elapsed time of all
        elapsed = [max(s.t_end_s for s in run) - min(s.t_send_s for s in run) for run in runs]
        rate = sum(item.ask.n_output for item in every) / sum(elapsed)
        stretch = load.get("stands_for_s", load["duration_s"] * load.get("repeats", 1)) / (
            load["duration_s"] * load.get("repeats", 1)
        )
    else:
        rate, stretch = statistics.median(rates), 1.0
    ttft = [item.ttft_ms for item in every]
    tpot = [item.tpot_ms for item in every]
    e2e = [item.e2e_ms for item in every]
    n_output = sum(item.ask.n_output for item in every)
    return {
        "output_throughput": rate,
        "served_rate": statistics.median(item.ask.n_output * 1e3 / item.e2e_ms for item in every),
        "ttft_p50": percentile(ttft, 50),
        "ttft_p99": percentile(ttft, 99),
        "tpot_p50": percentile(tpot, 50),
        "e2e_p99": percentile(e2e, 99),
        "completed_requests": len(every) * stretch,
        "acceptance_length": n_output / sum(item.n_chunks for item in every),
        "kv_capacity": float(loop.node.replicas[0].kv_capacity_tokens),
    }


def read_reference(root: Path) -> list[dict[str, str]]:
    """The rows of the reference table."""
    with (root / REFERENCE).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def compare(
    root: Path, profiles: Mapping[str, Profile] | None = None, cases: Iterable[Case] | None = None
) -> list[Comparison]:
    """Every published figure that a case stands for, beside what the simulated node gives."""
    rows = read_reference(root)
    known = dict(profiles or {})
    result = []
    for case in read_cases(root) if cases is None else cases:
        if case.profile not in known:
            known[case.profile] = read_profile(root / PROFILES / f"{case.profile}.yaml", root)
        values = None
        for row in rows:
            if (row["campaign"], row["arm"]) != (case.campaign, case.arm):
                continue
            of_arm = row["metric"] in ("kv_capacity", "acceptance_length") and not row["concurrency"]
            here = (row["workload"], row["concurrency"]) == (case.workload, str(case.concurrency))
            if not here and not (of_arm and case.load.get("tells_arm")):
                continue
            values = values or run_case(case, known[case.profile])
            name = _value_name(row)
            if name in values:
                result.append(_comparison(case, row, values[name]))
    return result


def _value_name(row: Mapping[str, str]) -> str:
    metric = row["metric"]
    return (
        f"{metric}_{'p99' if 'p99' in row['statistic'] else 'p50'}"
        if metric in ("ttft", "tpot", "e2e")
        else metric
    )


def _comparison(case: Case, row: Mapping[str, str], value: float) -> Comparison:
    if row["unit"] == "s" and row["metric"] in ("ttft", "e2e"):
        value /= 1e3
    low, dash, high = row["value"].partition("-")
    published = (float(low) + float(high)) / 2 if dash else float(low)
    return Comparison(
        case.campaign,
        case.arm,
        row["workload"],
        int(row["concurrency"]) if row["concurrency"] else None,
        row["metric"],
        row["unit"],
        row["statistic"],
        published,
        row["value"],
        value,
    )
