"""Fit the rehearsal's profiles to the published figures, and write the table of both into docs/rehearsal.md.

    python benchmarks/fit_rehearsal.py fit dsv41_native_tp4 [--evaluations 300]
    python benchmarks/fit_rehearsal.py table

A fit moves the parameters named in FITS, starting from the values in the profile file, by a pattern search
over the squared logarithms of rehearsed / published, and writes them back into the file. It is deterministic.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
from pathlib import Path

from assay.errors import BadInput
from assay.records.files import write_text
from assay.rehearsal.cost import shifted
from assay.rehearsal.profile import Profile, read_profile
from assay.rehearsal.published import PROFILES, Case, Comparison, compare, read_cases

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "rehearsal.md"
BEGIN, END = "<!-- published and rehearsed: begin -->", "<!-- published and rehearsed: end -->"
NOT_FITTED = ("completed_requests", "kv_capacity", "acceptance_length")
WEIGHTS = {"output_throughput": 3.0, "served_rate": 3.0, "ttft": 1.0, "tpot": 2.0, "e2e": 1.0}
FITS: dict[str, tuple[str, ...]] = {
    "dsv41_native_tp4": (
        "step_fixed_s", "moe_load_s", "moe_tokens", "token_s", "prefill_token_s", "prefill_context_s",
        "prefill_request_s", "mixed_step_s", "draft_fixed_s", "acceptance_text", "acceptance_spread",
    ),
    "glm53_flash_tp4": (
        "step_fixed_s", "moe_load_s", "moe_tokens", "token_s", "prefill_token_s", "prefill_request_s",
        "mixed_step_s", "acceptance_random", "acceptance_spread", "handoff_s", "eager_prefill_factor",
        "eager_prefill_request_s",
    ),
    "glm53_flash_ep4": ("step_fixed_s", "acceptance_text"),
    "dsv41_fp8_tp8": (
        "step_fixed_s", "moe_load_s", "moe_tokens", "token_s", "host_step_eager_s", "acceptance_text",
    ),
    "spark_deepseek_v4_flash": ("step_fixed_s",),
    "spark_qwen38_flash_next": ("step_fixed_s",),
    "spark_glm53_flash": ("step_fixed_s",),
}  # fmt: skip
FIRST_STEP, LAST_STEP = 0.25, 0.02
DIGITS = 4
SHORTER = {"duration_s": 60.0, "repeats": 1}
"""Windows are run this long while fitting; the table runs them in full."""


def shortened(case: Case) -> Case:
    """The case with its windows cut, for the search."""
    if "duration_s" not in case.load:
        return dataclasses.replace(case, load={**case.load, "repeats": 1})
    return dataclasses.replace(case, load={**case.load, **SHORTER})


def moved(profile: Profile, name: str, factor: float) -> Profile:
    """The profile with one parameter times ``factor``; of probabilities the odds are multiplied."""
    value = getattr(profile, name)
    if isinstance(value, tuple):
        return profile.with_values({name: [round(x, DIGITS) for x in shifted(value, math.log(factor))]})
    return profile.with_values({name: float(f"{value * factor:.{DIGITS}g}")})


def loss(profile_name: str, profile: Profile, cases: list[Case]) -> float:
    """Weighted mean of squared log ratios over the fitted figures."""
    total = weights = 0.0
    for figure in compare(ROOT, {profile_name: profile}, cases):
        # A cut soak has its opening burst among its slowest hundredth, a whole one has not.
        is_cut = figure.workload == "soak_chat" and figure.metric == "ttft"
        if figure.metric not in NOT_FITTED and not is_cut:
            weight = WEIGHTS[figure.metric]
            total += weight * math.log(figure.ratio) ** 2
            weights += weight
    return total / weights


def fit(profile_name: str, evaluations: int) -> Profile:
    """Search; prints each improvement."""
    path = ROOT / PROFILES / f"{profile_name}.yaml"
    profile = read_profile(path, ROOT)
    cases = [shortened(case) for case in read_cases(ROOT) if case.profile == profile_name]
    best, step, left = loss(profile_name, profile, cases), FIRST_STEP, evaluations
    directions = dict.fromkeys(FITS[profile_name], 1)
    print(f"{profile_name}: start, root mean square of the log ratios {math.sqrt(best):.4f}")
    while step >= LAST_STEP and left > 0:
        improved = False
        for name in FITS[profile_name]:
            for _ in range(2):
                left -= 1
                tried = moved(profile, name, (1 + step) ** directions[name])
                value = loss(profile_name, tried, cases)
                if value < best - 1e-7:
                    profile, best, improved = tried, value, True
                    print(f"  {name} {getattr(profile, name)}: {math.sqrt(best):.4f}", flush=True)
                    break
                directions[name] = -directions[name]
        if not improved:
            step /= 2
    write_values(path, {name: getattr(profile, name) for name in FITS[profile_name]})
    return profile


def write_values(path: Path, values: dict[str, object]) -> None:
    """Put values into a profile file; everything else in it stays as it is."""
    text = path.read_text(encoding="utf-8")
    for name, value in values.items():
        shown = repr(list(value)) if isinstance(value, tuple) else repr(value)
        shown = re.sub(r"^(\d+)e-", r"\1.0e-", shown)  # YAML takes 1e-05 for a word
        text, n = re.subn(
            rf"^(  {name}: {{value: )(\[[^\]]*\]|[^,]+)(, )", rf"\g<1>{shown}\g<3>", text, flags=re.M
        )
        if n != 1:
            raise BadInput("the parameter has no line of its own", where=path, key=name)
    write_text(path, text)


def table(figures: list[Comparison]) -> str:
    """Markdown: one line a figure."""
    lines = [
        "| campaign | arm | workload | c | figure | published | rehearsed | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for item in figures:
        what = f"{item.metric} {item.statistic}".strip()
        digits = 0 if item.rehearsed >= 1000 else 1 if item.rehearsed >= 100 else 2
        lines.append(
            f"| {item.campaign} | {item.arm} | {item.workload or '-'} | {item.concurrency or '-'} "
            f"| {what}, {item.unit} | {item.published_text} | {item.rehearsed:.{digits}f} | {item.ratio:.2f} |"
        )
    return "\n".join(lines)


def summary(figures: list[Comparison]) -> str:
    """How far off the figures are, per campaign."""
    lines = ["| campaign | figures | within 10 % | within 25 % | farthest off |", "|---|---|---|---|---|"]
    for campaign in dict.fromkeys(item.campaign for item in figures):
        mine = [item for item in figures if item.campaign == campaign]
        off = [abs(math.log(item.ratio)) for item in mine]
        worst = mine[off.index(max(off))]
        within = [sum(value <= math.log(1 + limit) for value in off) for limit in (0.10, 0.25)]
        lines.append(
            f"| {campaign} | {len(mine)} | {within[0]} | {within[1]} | {worst.arm}, {worst.workload or '-'}, "
            f"c {worst.concurrency or '-'}, {worst.metric}: {worst.ratio:.2f} |"
        )
    return "\n".join(lines)


def write_table() -> None:
    """Replace what stands between the two marks of the document."""
    figures = compare(ROOT)
    text = DOCUMENT.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadInput("the marks of the table are missing", where=DOCUMENT, key=BEGIN)
    write_text(DOCUMENT, f"{before}{BEGIN}\n\n{summary(figures)}\n\n{table(figures)}\n\n{END}{after}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    fitting = verbs.add_parser("fit", help="fit one profile and write it")
    fitting.add_argument("profile", choices=sorted(FITS))
    fitting.add_argument("--evaluations", type=int, default=300)
    verbs.add_parser("table", help="write the table into docs/rehearsal.md")
    options = parser.parse_args(argv)
    if options.verb == "fit":
        fit(options.profile, options.evaluations)
    else:
        write_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
