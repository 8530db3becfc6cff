"""Extracts: the tables and summaries made from a campaign's receipts and evidence."""

from assay.extract.attempts import extract_attempts
from assay.extract.chart_data import chart_ids, extract_chart_data
from assay.extract.comparisons import extract_comparisons
from assay.extract.everything import FILES, write
from assay.extract.rows import extract_rows
from assay.extract.verdicts import extract_verdicts

__all__ = [
    "FILES",
    "chart_ids",
    "extract_attempts",
    "extract_chart_data",
    "extract_comparisons",
    "extract_rows",
    "extract_verdicts",
    "write",
]
