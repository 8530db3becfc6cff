"""All extracts of a campaign in one pass over its evidence."""

from __future__ import annotations

from pathlib import Path

from assay.extract import attempts
from assay.extract.cards import make_cards
from assay.extract.chart_data import make_chart_data
from assay.extract.comparisons import make_comparisons, write_comparisons
from assay.extract.rows import build_rows, write_rows
from assay.extract.summary import write_summary
from assay.extract.verdicts import make_verdicts
from assay.records.campaign import open_campaign
from assay.records.files import write_json, write_text

FILES = (
    "rows.csv",
    "rows.parquet",
    "attempts.csv",
    "comparisons.json",
    "comparison.csv",
    "verdicts.json",
    "summary.json",
    "findings.json",
    "cards.json",
    "chart_data.json",
)
ROOMS = ("digest", "vocab", "records", "metrics", "verdict", "extract")
"""What the extracts are computed by; their digest makes a changed formula run again."""


def write(campaign_dir: Path, out_dir: Path | None = None) -> list[Path]:
    """Write every extract into ``out_dir`` (``<campaign_dir>/extracts``); the written paths, in the order
    of FILES."""
    campaign = open_campaign(campaign_dir)
    out = {name: (out_dir or campaign.folder / "extracts") / name for name in FILES}
    rows = build_rows(campaign)
    verdicts = make_verdicts(campaign, rows)
    comparisons = make_comparisons(campaign, rows)
    write_rows(rows, out["rows.csv"], out["rows.parquet"])
    write_text(out["attempts.csv"], attempts.format_csv(attempts.collect_attempts(campaign)))
    write_comparisons(comparisons, out["comparisons.json"], out["comparison.csv"])
    write_json(out["verdicts.json"], verdicts)
    write_summary(campaign, rows, verdicts, out["summary.json"], out["findings.json"])
    write_json(out["cards.json"], make_cards(campaign, rows))
    write_json(out["chart_data.json"], make_chart_data(campaign, rows, comparisons))
    return list(out.values())
