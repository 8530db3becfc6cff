"""The audit of a real run: every chart is verified; a changed byte or a lost file is found and named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from assay.audit.target import audit_target
from checkout import Checkout

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def results(finished_checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished results folder somewhere else, as an auditor gets it."""
    target = tmp_path_factory.mktemp("elsewhere") / "copied"
    shutil.copytree(finished_checkout.root / "results", target)
    return target


def evidence_kinds(results: Path) -> list[Path]:
    """One file of each name in one session, and one receipt of each stage."""
    session = sorted((results / "evidence").iterdir())[0]
    kinds = {
        path.name: path for path in sorted(session.rglob("*")) if path.is_file() and path.stat().st_size > 0
    }
    receipts = (results / "campaign_tiny" / "receipts" / "a").glob("*.json")
    return [*kinds.values(), *receipts]


@pytest.mark.parametrize("chart", ["throughput.svg", "ttft.png", "arms.svg", "sustained.svg"])
def test_charts_of_a_copied_folder_are_verified(results: Path, chart: str) -> None:
    """A chart is recomputed from the copied folder alone."""
    assert audit_target(results / "campaign_tiny/charts" / chart).result == "VERIFIED"


def test_one_flipped_byte_is_found(results: Path) -> None:
    """One flipped byte in a file of any kind: not VERIFIED, and the file is named."""
    chart = results / "campaign_tiny/charts/throughput.svg"
    files = evidence_kinds(results)
    assert len(files) >= 15
    for file in files:
        good = file.read_bytes()
        middle = len(good) // 2
        file.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        report = audit_target(chart)
        file.write_bytes(good)
        assert report.result != "VERIFIED", file
        assert file.relative_to(results).as_posix() in {fault.path for fault in report.faults}, file


def test_one_lost_file_is_incomplete(results: Path) -> None:
    """One lost file of any kind: INCOMPLETE, and the file is named."""
    chart = results / "campaign_tiny/charts/throughput.svg"
    for file in evidence_kinds(results)[::4]:
        good = file.read_bytes()
        file.unlink()
        report = audit_target(chart)
        file.write_bytes(good)
        assert report.result == "INCOMPLETE", file
        assert file.relative_to(results).as_posix() in {fault.path for fault in report.faults}, file
    assert audit_target(chart).result == "VERIFIED"
