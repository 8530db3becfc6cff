"""Rule write_evidence: SHA256SUMS, the research-object crate and the statements of a campaign."""

from __future__ import annotations

import argparse
from pathlib import Path

from assay.report.evidence import write_evidence
from assay.stage.adapter import finish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaign-dir", type=Path, required=True)
    arguments = parser.parse_args()
    finish(lambda: write_evidence(arguments.campaign_dir))


if __name__ == "__main__":
    main()
