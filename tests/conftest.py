"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from assay.image import build_image
from checkout import Checkout

SERIAL_FOLDERS = ("unit/load",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that compare times with what a server logged have the machine to themselves."""
    for item in items:
        if any(f"tests/{folder}/" in item.path.as_posix() for folder in SERIAL_FOLDERS):
            item.add_marker(pytest.mark.serial)


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all workers of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What scratch checkouts of one worker share: the built image of the scripted engine, and its script."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def checkout(tmp_path: Path, shared_folder: Path, common_folder: Path) -> Iterator[Checkout]:
    """A scratch checkout with a small campaign; whatever still runs of it afterwards is ended."""
    made = Checkout.make(tmp_path / "checkout", shared_folder, wheels=common_folder)
    yield made
    for process in made.processes():
        process.kill()
    for name in ("control.json", "events.jsonl"):
        for path in (shared_folder / "images").glob(f"fake_llama_cpp-*/{name}"):
            path.unlink()


@pytest.fixture(scope="session")
def finished_checkout(common_folder: Path, shared_folder: Path) -> Checkout:
    """A checkout whose campaign has run to its end, once for all workers. Not to be changed: tests copy it."""
    root, done = common_folder / "finished", common_folder / "finished.done"
    with FileLock(common_folder / "finished.lock"):
        if not done.exists():
            shutil.rmtree(root, ignore_errors=True)  # of a worker that failed at it
            made = Checkout.make(root, shared_folder, wheels=common_folder)
            run = made.snakemake()
            assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
            done.touch()
    made = Checkout(root, shared_folder, shared_folder / "images")
    config = yaml.safe_load((root / "config/images/fake_llama_cpp.yaml").read_text())
    assert build_image(config, made.image_store, root)["state"] == "completed"
    return made


@pytest.fixture
def finished(finished_checkout: Checkout, tmp_path: Path, shared_folder: Path) -> Iterator[Checkout]:
    """A finished checkout of one's own, with Snakemake's memory of how it was made."""
    target = tmp_path / "checkout"
    shutil.copytree(finished_checkout.root, target, symlinks=True)
    made = Checkout(target, shared_folder, finished_checkout.image_store)
    made.forget_events() if made.processes() == [] else None
    yield made
    for process in made.processes():
        process.kill()
    for name in ("control.json", "events.jsonl"):
        for path in (shared_folder / "images").glob(f"fake_llama_cpp-*/{name}"):
            path.unlink()
