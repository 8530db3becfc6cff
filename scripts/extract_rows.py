"""Rule extract_rows: rows, attempts, comparisons, verdicts, summary, findings, cards and chart data."""

from __future__ import annotations

import argparse
from pathlib import Path

from assay.extract import everything
from assay.stage.adapter import finish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaign-dir", type=Path, required=True)
    arguments = parser.parse_args()
    finish(lambda: everything.write(arguments.campaign_dir))


if __name__ == "__main__":
    main()
