"""docs/benchmarks.md has two authors, neither loses what the other measured, and no run leaves a process behind."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PROJECT = Path(__file__).resolve().parents[2]
QUIET = runpy.run_path(str(PROJECT / "benchmarks/quiet.py"))
PAGE = runpy.run_path(str(PROJECT / "benchmarks/page.py"))
WATCHED = runpy.run_path(str(PROJECT / "benchmarks/watched.py"))
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


def test_a_client_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A run past its limit leaves neither the server nor the client nor a child of the client."""
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\nexec sleep 600\n")
    server.chmod(0o755)
    bench = WATCHED["Bench"].__new__(WATCHED["Bench"])
    core = min(os.sched_getaffinity(0))
    bench.work, bench.port, bench.server, bench.cores = tmp_path, 1, server, (core, core)
    bench.favoured = bench.realtime = False
    children = ["sh", "-c", f"sleep 601 & echo $! > {tmp_path}/child; wait"]
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(subprocess.TimeoutExpired):
        bench.run(children, timeout_s=1.0)
    assert set(psutil.Process().children(recursive=True)) <= before
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
