"""The audit of a long soak: memory stays flat."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from assay.chart import render_chart
from assay.extract import everything
from make_million import Million

N = 1_000_000
_AUDIT = """
import resource, sys
from pathlib import Path
from assay.audit import audit_target
report = audit_target(Path(sys.argv[1]), require_sums=False)
print(report.result, report.points[0]["n"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_million_rows_fit_into_one_gib(tmp_path: Path) -> None:
    """A chart over one million requests is VERIFIED in a process that never holds more than 1 GiB."""
    folder = Million(tmp_path, N, chunks=2).build()
    everything.write(folder)
    data = json.loads((folder / "extracts" / "chart_data.json").read_text())
    chart = folder / "charts" / "throughput.svg"
    render_chart(data, "throughput", chart)
    command = [sys.executable, "-c", _AUDIT, str(chart)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.split()
    assert told[:2] == ["VERIFIED", "1"]
    assert int(told[2]) < 1 << 20  # KiB
