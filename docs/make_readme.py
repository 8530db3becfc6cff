"""Write the README's table and charts from results/campaign_local: no number in it is typed in."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
CAMPAIGN = PROJECT / "results" / "campaign_local"
CHARTS = ("throughput", "arms")


def cell(text: str, form: str) -> str:
    return format(float(text), form) if text else "-"


def table(rows: list[dict[str, str]]) -> str:
    """One line per row of rows.csv, as Markdown."""
    lines = [
        "| row | ok / issued | output tok/s | TTFT p50 ms | TPOT p50 ms | publishable | invalid | gates failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        failed = sorted(
            reason.removesuffix("_gate:fail")
            for reason in json.loads(row["reasons"] or "[]")
            if reason.endswith("_gate:fail")
        )
        lines.append(
            f"| {row['row_id']} | {row['n_ok']} / {row['n_issued']} | {cell(row['output_tok_s'], '.1f')} "
            f"| {cell(row['ttft_ms_p50'], '.1f')} | {cell(row['tpot_ms_p50'], '.2f')} | {row['publishable']} "
            f"| {row['invalid']} | {', '.join(failed) or '-'} |"
        )
    return "\n".join(lines)


def main() -> None:
    rows = list(csv.DictReader((CAMPAIGN / "extracts" / "rows.csv").read_text().splitlines()))
    readme = PROJECT / "README.md"
    block = f"<!-- table -->\n{table(rows)}\n<!-- /table -->"
    readme.write_text(
        re.sub(r"<!-- table -->.*<!-- /table -->", lambda _: block, readme.read_text(), flags=re.S)
    )
    folder = PROJECT / "docs" / "img"
    folder.mkdir(exist_ok=True)
    for name in CHARTS:
        shutil.copyfile(CAMPAIGN / "charts" / f"{name}.svg", folder / f"{name}.svg")


if __name__ == "__main__":
    main()
