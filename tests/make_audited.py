"""A finished results folder to audit: extracts, charts and evidence of a scene, and its list written anew."""

from __future__ import annotations

import json
from pathlib import Path

from assay.audit.outcome import AuditReport
from assay.audit.walk import Audit
from assay.chart import render_chart
from assay.extract import everything
from assay.records.campaign import open_campaign
from assay.records.pins import format_sums
from assay.report.evidence import collect_sums, write_evidence


def finish(folder: Path) -> Path:
    """Extracts, charts and evidence of a built scene; returns the results folder."""
    everything.write(folder)
    data = json.loads((folder / "extracts" / "chart_data.json").read_text())
    for chart_id in data["charts"]:
        for form in ("svg", "png"):
            render_chart(data, chart_id, folder / "charts" / f"{chart_id}.{form}")
    write_evidence(folder)
    return folder.parent


def repin(results: Path) -> None:
    """Write SHA256SUMS anew, as somebody would who covers traces."""
    campaign = open_campaign(results / "campaign_test")
    (results / "campaign_test" / "SHA256SUMS").write_text(format_sums(collect_sums(campaign)))


def hash_only(results: Path) -> AuditReport:
    """The part of an audit that looks at files: what every target begins with."""
    return Audit(results / "campaign_test", "files").report
