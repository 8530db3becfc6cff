"""Write docs/figures.md: the card of each campaign that needs GPUs, from its rehearsal, with the audit of the chart.

    python docs/make_figures.py [--full] [CAMPAIGN ...]

Each campaign is validated, planned, rehearsed to its end (cut to the size for continuous integration unless --full)
in results/<campaign>_rehearsal, and its card audited. A campaign that was not run now keeps what it had.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from assay.config.campaign import campaign_files, load_campaign

PROJECT = Path(__file__).resolve().parent.parent
FOLDER = PROJECT / "docs" / "img" / "rehearsed"
STATE = FOLDER / "figures.json"
HEAD = """# Figures of the published campaigns, rehearsed

Written by `docs/make_figures.py`; do not edit. Each card comes out of a rehearsal: the whole DAG of the campaign on a
simulated node, in simulated time. It shows that the campaign runs to its end and what its figure will look like; it is
no measurement of a model. *Size* `ci` cuts loads and prompts (docs/rehearsal.md); *full* does not. What is published
stands in `config/reference/published_results.csv`; `assay compare --reference` puts both side by side.

| campaign | size | rows | invalid | sessions | wall time s | card |
|---|---|---|---|---|---|---|
"""


def run(*words: str) -> str:
    """The output of a command; its failure ends the script."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(words)}: ended {done.returncode}\n{(done.stdout + done.stderr)[-3_000:]}"
        )
    return done.stdout


def rows_of(results: Path) -> list[dict[str, str]]:
    file = results / "extracts" / "rows.csv"
    return list(csv.DictReader(file.read_text().splitlines())) if file.is_file() else []


def sessions_of(rows: list[dict[str, str]]) -> set[str]:
    return {row["session_id"] for row in rows if row["session_id"]}


def rehearse(name: str, path: Path, full: bool, known: dict[str, Any]) -> dict[str, Any]:
    """Validate, plan, rehearse and audit one campaign; what its line of the page says.

    A run that only drew again keeps the wall time of the run that measured, which is in ``known``.
    """
    assay = (sys.executable, "-m", "assay")
    run(*assay, "validate", str(path))
    run(*assay, "plan", name, "--rehearse")
    results = PROJECT / "results" / f"{name}_rehearsal"
    before = sessions_of(rows_of(results))
    start_s = time.monotonic()
    options = ["rehearse=true"] if full else ["rehearse=true", "ci=true"]
    run("snakemake", "--cores", "all", name, "--config", *options)
    wall_s = round(time.monotonic() - start_s)
    verdicts = [
        run(*assay, "audit", str(chart)).split()[-1] for chart in sorted((results / "charts").glob("*.svg"))
    ]
    shutil.copyfile(results / "charts" / "arms.svg", FOLDER / f"{name}.svg")
    rows = rows_of(results)
    if sessions_of(rows) == before:
        wall_s = known.get("wall_s", wall_s)
    return {
        "size": "full" if full else "ci",
        "rows": len(rows),
        "invalid": sum(row["invalid"] == "true" for row in rows),
        "sessions": len(sessions_of(rows)),
        "wall_s": wall_s,
        "audit": f"{verdicts.count('VERIFIED')} of {len(verdicts)} charts VERIFIED",
    }


def page(found: dict[str, dict[str, Any]]) -> str:
    """The page out of what the campaigns' lines say."""
    lines = [
        f"| {name} | {one['size']} | {one['rows']} | {one['invalid']} | {one['sessions']} | {one['wall_s']} "
        f"| {one['audit']} |"
        for name, one in sorted(found.items())
    ]
    pictures = [f"\n## {name}\n![card of {name}](img/rehearsed/{name}.svg)" for name in sorted(found)]
    return HEAD + "\n".join([*lines, *pictures]) + "\n"


def main() -> None:
    files = {
        name: path
        for name, path in campaign_files(PROJECT).items()
        if load_campaign(path, PROJECT).config["needs"]["gpus"]
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaigns", nargs="*", default=sorted(files), metavar="CAMPAIGN")
    parser.add_argument("--full", action="store_true", help="every point in full")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in options.campaigns:
        if name not in files:
            parser.error(f"{name}: no such campaign that needs GPUs; there are {', '.join(sorted(files))}")
        found = json.loads(STATE.read_text()) if STATE.is_file() else {}
        found[name] = rehearse(name, files[name], options.full, found.get(name, {}))
        STATE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        (PROJECT / "docs" / "figures.md").write_text(page(found))
        print(name, found[name], flush=True)


if __name__ == "__main__":
    main()
