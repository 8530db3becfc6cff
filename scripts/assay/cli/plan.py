"""`assay plan`: what a campaign would take, and what of it is done."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from assay.config.campaign import load_campaign
from assay.stage.estimate import DONE, Estimate, Line
from assay.stage.preflight import check_campaign
from assay.stage.rehearse import Options, with_options
from assay.vocab import Stage

PLAIN_WIDTH = 170
LEGLESS_JOBS = ("probe_topology", "write_plan", "extract_rows", "write_evidence")
STATE_ORDER = (DONE, "failed", "would rerun", "to do")


def plan(
    campaign: Annotated[str, typer.Argument(help="a campaign's name, as `assay list` has it, or its file")],
    rehearse: Annotated[bool, typer.Option("--rehearse", help="of its rehearsal, in wall time")] = False,
    ci: Annotated[bool, typer.Option("--ci", help="of its rehearsal in the size for CI")] = False,
    points: Annotated[bool, typer.Option("--points", help="each point on a line of its own")] = False,
    results: Annotated[Path, typer.Option(help="the results folder")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="every line as JSON")] = False,
) -> None:
    """Show sessions, jobs, requests, tokens, time and GPU-hours of a campaign, by arm and stage, before it runs.

    Times are estimates; the source of each stands beside it: measured, rehearsed, simulated or declared. Tokens of
    texts are estimates too, and answers end by themselves. Done and to do are read from the receipts; a stage whose
    specification has changed would rerun. Nothing is started.
    """
    root = Path.cwd()
    path = (
        Path(campaign) if campaign.endswith(".yaml") else root / "config" / "campaigns" / f"{campaign}.yaml"
    )
    loaded = load_campaign(path, root)
    check_campaign(loaded)
    loaded = with_options(loaded, Options(rehearse=rehearse or ci, ci=ci))
    estimate = Estimate(loaded, results)
    lines = estimate.lines()
    n_gpus = 0 if loaded.rehearsal is not None else int(loaded.config["needs"]["gpus"])
    charts = 2 * (4 if loaded.sustained_points() else 3)
    n_other = len(LEGLESS_JOBS) + len(loaded.images) + len(loaded.points) + charts // 2
    totals = summary(lines, n_gpus, n_other, len(loaded.legs()))
    if as_json:
        print(
            json.dumps(
                {"campaign": loaded.name, "lines": [asdict(x) for x in lines], "total": totals}, indent=1
            )
        )
        return
    console = Console() if Console().is_terminal else Console(width=PLAIN_WIDTH)
    console.print(f"{loaded.name}: {loaded.config['title']}", markup=False)
    table = Table(
        "arm",
        "stage",
        "jobs",
        "requests",
        "prompt tokens",
        "output tokens",
        "time",
        "GPU h",
        "from",
        "state",
        box=None,
    )
    for row in rows_of(lines, points):
        table.add_row(*cells(row, n_gpus))
    console.print(table)
    console.print(
        f"{totals['sessions']} sessions, {totals['jobs']} jobs, {totals['requests']:,} requests, "
        f"{totals['prompt_tokens']:,} prompt tokens, {totals['output_tokens']:,} output tokens",
        highlight=False,
    )
    at_least = "at least " if totals["unknown_times"] else ""
    console.print(
        f"{at_least}{spell_s(totals['wall_s'])}"
        + (f", {at_least}{totals['gpu_hours']:.1f} GPU-hours on {n_gpus} GPUs" if n_gpus else "")
        + f"; left to do: {at_least}{spell_s(totals['wall_s_left'])}, {totals['jobs_left']} jobs of the servers",
        highlight=False,
    )
    if totals["unknown_times"]:
        console.print("Times without a source are unknown: the arm has no rehearsal profile and no rows yet.")


def rows_of(lines: list[Line], points: bool) -> list[list[Line]]:
    """The lines that make one row each: those of a leg and stage, or of a point."""
    grouped: dict[tuple[str, ...], list[Line]] = {}
    for line in lines:
        key = (line.leg, line.stage, line.point_id or "") if points else (line.leg, line.stage)
        grouped.setdefault(key, []).append(line)
    return list(grouped.values())


def total(values: list[Any]) -> Any:
    """The sum; None when nothing is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def cells(row: list[Line], n_gpus: int) -> list[str]:
    wall_s = total([line.wall_s for line in row])
    states: dict[str, int] = {}
    for line in row:
        for word, n in line.states.items():
            states[word] = states.get(word, 0) + n
    name = row[0].stage if len(row) > 1 or row[0].point_id is None else f"{row[0].stage} {row[0].point_id}"
    numbers = [
        total([getattr(line, key) for line in row])
        for key in ("n_requests", "n_prompt_tokens", "n_output_tokens")
    ]
    sources = sorted({line.source for line in row if line.source})
    return [
        row[0].leg,
        name,
        str(sum(line.n_jobs for line in row)),
        *["-" if not number else f"{number:,}" for number in numbers],
        "-" if wall_s is None else spell_s(wall_s),
        "-" if wall_s is None or not n_gpus else f"{wall_s * n_gpus / 3600:.2f}",
        ", ".join(sources) or "unknown",
        ", ".join(f"{states[word]} {word}" for word in STATE_ORDER if word in states),
    ]


def summary(lines: list[Line], n_gpus: int, n_other: int, n_sessions: int) -> dict[str, Any]:
    """Totals of the campaign. ``*_left`` are of the stages that are not done; in a stage of several jobs by their
    share, and with the fresh sessions that they need, which are in no other total."""
    shares = [1 - line.states.get(DONE, 0) / line.n_jobs if line.n_jobs else 1.0 for line in lines]
    wall_s = total([line.wall_s for line in lines if line.n_jobs]) or 0.0
    return {
        "sessions": n_sessions,
        "jobs": n_other + sum(line.n_jobs for line in lines),
        "requests": total([line.n_requests for line in lines]) or 0,
        "prompt_tokens": total([line.n_prompt_tokens for line in lines]) or 0,
        "output_tokens": total([line.n_output_tokens for line in lines]) or 0,
        "wall_s": wall_s,
        "gpu_hours": wall_s * n_gpus / 3600,
        "unknown_times": sum(line.wall_s is None for line in lines),
        "wall_s_left": sum((line.wall_s or 0.0) * share for line, share in zip(lines, shares, strict=True)),
        "jobs_left": sum(line.n_jobs - line.states.get(DONE, 0) for line in lines),
        "points": sum(line.stage in (Stage.RUN_FINITE, Stage.RUN_SUSTAINED) for line in lines),
    }


def spell_s(seconds: float) -> str:
    """`2 h 05 min`, `3.4 min`, `12 s`."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"
