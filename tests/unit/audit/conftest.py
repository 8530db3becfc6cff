"""A finished campaign, and a copy of it for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from make_audited import finish
from make_results import Scene


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished campaign; tests work on copies."""
    return finish(Scene(tmp_path_factory.mktemp("pristine")).build())


@pytest.fixture
def results(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "elsewhere" / "results"))
