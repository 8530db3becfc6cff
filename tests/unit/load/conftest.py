"""Running a small load against a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from assay.load import LoadSpec, Prompt, run_load, summarise
from assay.records.requests import read_requests


@dataclass(frozen=True)
class Outcome:
    """What a load left behind."""

    folder: Path
    client: dict[str, Any]
    table: pa.Table
    summary: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.table.to_pylist(), key=lambda row: row["request_id"])


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Outcome]:
    """``load(url, requests=2, ...)``: run a load with small defaults and read its records."""
    n_runs = 0

    def run(
        url: str, prompts: list[Prompt] | None = None, opening: list[Prompt] | None = None, **options: Any
    ) -> Outcome:
        nonlocal n_runs
        n_runs += 1
        folder = tmp_path / f"load-{n_runs}"
        chosen: dict[str, Any] = {
            "model": "m",
            "concurrency": 1,
            "timeout_s": 20.0,
            "drain_limit_s": 5.0,
        } | options
        if "requests" not in chosen and "duration_s" not in chosen:
            chosen["requests"] = 1
        given = prompts or [
            Prompt(f"p{i}", messages=[{"role": "user", "content": f"say {i}"}]) for i in range(8)
        ]
        client = run_load(LoadSpec(url=url, **chosen), given, folder, opening)
        return Outcome(folder, client, read_requests(folder / "requests.parquet"), summarise(folder))

    return run
