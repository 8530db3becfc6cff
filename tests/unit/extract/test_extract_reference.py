"""Published figures: facts with their source, and the ratios that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.audit.recompute import read_rows_csv
from assay.errors import BadInput
from assay.extract import everything
from assay.extract.reference import read_reference, side_by_side
from assay.records.campaign import open_campaign
from make_results import ROOT, Scene

REFERENCE = ROOT / "config" / "reference" / "published_results.csv"


@pytest.mark.parametrize(
    ("campaign", "numerator", "denominator", "workload", "concurrency", "ratio"),
    [
        ("campaign_256k", "dspark5", "base", "chat", "1", 2.34),
        ("campaign_256k", "dspark5", "base", "chat", "16", 1.29),
        ("campaign_256k", "dspark5", "base", "chat", "64", 1.23),
        ("campaign_256k", "dspark5", "base", "sustained_chat", "64", 1.38),
        ("dsv41_32k", "native_tp4_dspark5", "native_tp4", "chat", "1", 2.33),
    ],
)
def test_published_ratios_follow_from_their_operands(
    campaign: str, numerator: str, denominator: str, workload: str, concurrency: str, ratio: float
) -> None:
    """The published ratio column is the quotient of the published operands, rounded to two digits."""
    figures = {
        row["arm"]: float(row["value"])
        for row in read_reference(REFERENCE)
        if (row["campaign"], row["workload"], row["concurrency"], row["metric"])
        == (campaign, workload, concurrency, "output_throughput")
    }
    assert round(figures[numerator] / figures[denominator], 2) == ratio


def test_a_fact_without_source_is_refused(tmp_path: Path) -> None:
    """A reference row that does not say where it comes from is bad input, named by its line."""
    lines = REFERENCE.read_text().splitlines()
    path = tmp_path / "reference.csv"
    path.write_text("\n".join([lines[0], lines[1].replace("000_a7ec0205710e3e70.txt", "")]) + "\n")
    with pytest.raises(BadInput, match=r"reference\.csv:2.*source"):
        read_reference(path)


def test_published_and_measured_side_by_side(tmp_path: Path) -> None:
    """A measured median stands beside the published figure, in its unit; what was not measured says so."""
    scene = Scene(tmp_path, "campaign_256k")
    folder = scene.build()
    everything.write(folder)
    head = "campaign,arm,workload,concurrency,metric,unit,value,statistic,source,note\n"
    facts = tmp_path / "facts.csv"
    facts.write_text(
        head
        + "campaign_256k,base,chat,2,output_throughput,tokens/s,100.0,median of 3,a.txt,\n"
        + "campaign_256k,base,sustained_chat,2,ttft,s,0.2,p50,a.txt,\n"
        + "campaign_256k,base,chat,64,output_throughput,tokens/s,2369.1,median of 3,a.txt,\n"
        + "campaign_other,base,chat,2,output_throughput,tokens/s,1.0,,a.txt,\n"
    )
    rows = read_rows_csv(folder / "extracts" / "rows.csv")
    one, sustained, missing = side_by_side(read_reference(facts), open_campaign(folder), rows)["lines"]
    assert one["measured"] == pytest.approx(110.0)
    assert one["measured_over_published"] == pytest.approx(1.1)
    assert sustained["measured"] == pytest.approx(0.1)
    assert missing["measured"] is None
    assert missing["why_null"] == "not measured"
