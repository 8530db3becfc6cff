"""What the DAG itself costs; writes its section of docs/benchmarks.md.

    python benchmarks/dag.py [--repeats 3] [--rehearse campaign_dsv41_32k]

In a clone of this checkout, so that nothing of the user's results is touched: the dry-run of the full
campaign_256k, the plan of a campaign with 1,000 points, and what a run takes beside its stages' own work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import yaml
from page import machine_words, update

ROOT = Path(__file__).resolve().parents[1]
N_POINTS = 1_000
MANY = "campaign_many_points"
HEADING = ["| what | seconds, median (min-max) | to be under | runs |", "|---|---|---|---|"]


def snakemake(root: Path, *words: str) -> tuple[float, str]:
    """Wall seconds and output of one snakemake; its failure ends the benchmark."""
    environment = os.environ | {
        "PYTHONPATH": str(root / "scripts"),
        "ASSAY_LOCK_DIR": str(root / "locks"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    start_s = time.monotonic()
    run = subprocess.run(
        ["snakemake", *words], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    wall_s = time.monotonic() - start_s
    if run.returncode != 0:
        raise SystemExit(run.stdout[-2_000:] + run.stderr[-2_000:])
    return wall_s, run.stdout + run.stderr


def line(what: str, seconds: Sequence[float], bar_s: float) -> str:
    middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
    return f"| {what} | {middle:.2f} ({low:.2f}-{high:.2f}) | {bar_s:g} | {len(seconds)} |"


def dry_run(root: Path, repeats: int) -> str:
    """The full matched pair; its GPUs are not here, so it is the rehearsal's DAG, which is the same one."""
    runs = [
        snakemake(root, "-n", "campaign_256k", "--config", "rehearse=true", "--quiet", "rules")
        for _ in range(repeats)
    ]
    jobs = re.search(r"total\s+(\d+)", runs[0][1])
    assert jobs is not None
    return line(f"`snakemake -n` of campaign_256k, {jobs.group(1)} jobs", [wall for wall, _ in runs], 5)


def many_points(root: Path, repeats: int) -> str:
    """One arm of campaign_local with 1,000 finite points."""
    campaign = yaml.safe_load((root / "config/campaigns/campaign_local.yaml").read_text())
    point = next(one for one in campaign["points"].values() if one["kind"] == "finite") | {"repeats": 1}
    campaign |= {"name": MANY, "points": {f"p{n:04d}": point | {"seed": n} for n in range(N_POINTS)}}
    arm = campaign["order"][0]
    campaign |= {"order": [arm], "arms": {arm: campaign["arms"][arm]}, "comparisons": []}
    (root / f"config/campaigns/{MANY}.yaml").write_text(yaml.safe_dump(campaign, sort_keys=False))
    runs = [snakemake(root, "-n", MANY, "--quiet", "rules") for _ in range(repeats)]
    jobs = re.search(r"run_finite\s+(\d+)", runs[0][1])
    assert jobs is not None, runs[0][1][-2_000:]
    assert int(jobs.group(1)) == N_POINTS
    return line(f"`snakemake -n` of {N_POINTS:,} points", [wall for wall, _ in runs], 20)


def own_work_s(root: Path) -> float:
    """Seconds between the begin and the end of every attempt at a stage that talks to a server."""
    total = 0.0
    for file in (root / "results/evidence").rglob("stage.json"):
        record = json.loads(file.read_text())
        begin, end = (datetime.fromisoformat(record[key]) for key in ("t_start_utc", "t_end_utc"))
        total += (end - begin).total_seconds()
    for file in (root / "results/evidence").glob("*/session.json"):
        total += json.loads(file.read_text())["ready_after_s"]
    return total


def overhead(root: Path, target: str) -> str:
    """What a whole run takes beside the stages' own work, over its jobs.

    An upper bound: the work of the stages without a server (prompts, extracts, charts, digests) is in it.
    """
    wall_s, output = snakemake(root, "--cores", "all", target, "--config", "rehearse=true", "ci=true")
    done = re.findall(r"(\d+) of (\d+) steps", output)
    n_jobs = int(done[-1][1])
    per_job_s = (wall_s - own_work_s(root)) / n_jobs
    return line(
        f"overhead a job: run of {target} (rehearsal cut short, {n_jobs} jobs, {wall_s:.0f} s)",
        [per_job_s],
        1.5,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rehearse", default="campaign_dsv41_32k", help="campaign of the overhead")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/benchmarks.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="assay-dag-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        lines = [dry_run(clone, options.repeats), many_points(clone, options.repeats)]
        lines.append(overhead(clone, options.rehearse))
    update(options.out, {"dag": HEADING + lines, "dag_machine": [machine_words()]})
    print("\n".join(HEADING + lines))


if __name__ == "__main__":
    main()
