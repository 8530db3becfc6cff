"""docs/benchmarks.md has two authors, and neither loses what the other measured."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
QUIET = runpy.run_path(str(PROJECT / "benchmarks/quiet.py"))
PAGE = runpy.run_path(str(PROJECT / "benchmarks/page.py"))
DAG = ["| what | s |", "|---|---|", "| dry-run | 3 |"]


def test_each_script_replaces_its_own_sections(tmp_path: Path) -> None:
    """The load client's lines stay when the DAG is measured, and the other way round."""
    out = tmp_path / "benchmarks.md"
    PAGE["update"](out, {"full": ["| 1 | assay |"], "machine": ["one."]})
    assert out.read_text().endswith("## The DAG itself\nnot run\n")
    PAGE["update"](out, {"dag": DAG, "dag_machine": ["two."]})
    PAGE["update"](out, {"full": ["| 2 | assay |"]})
    text = out.read_text()
    assert "Machine: one.\n" in text
    assert "| 2 | assay |\n" in text
    assert "| 1 | assay |" not in text
    assert text.endswith("## The DAG itself\nMachine: two.\n\n" + "\n".join(DAG) + "\n")
    assert set(json.loads(out.with_suffix(".json").read_text())) == {"full", "machine", "dag", "dag_machine"}


def test_the_page_is_what_its_numbers_say() -> None:
    """Nobody has edited docs/benchmarks.md by hand."""
    known = json.loads((PROJECT / "docs/benchmarks.json").read_text())
    assert (PROJECT / "docs/benchmarks.md").read_text() == PAGE["page"](known)


def test_time_that_another_process_took_is_seen() -> None:
    """A spinning process that shares its core with another loses a good part of its time, and reports it."""
    core = min(os.sched_getaffinity(0))
    other = subprocess.Popen([sys.executable, PROJECT / "benchmarks/quiet.py", str(core), "30"])
    try:
        assert float(QUIET["noise"]([core], 1.0).split("%")[0]) > 10
    finally:
        other.terminate()
        other.wait()
