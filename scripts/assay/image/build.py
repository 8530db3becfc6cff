"""Build an image once: content-addressed, under a lock, complete or not there at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.digest import sha256_of_tree, size_of_tree
from assay.errors import BadInput, Incomplete
from assay.image.container import build_container, find_container
from assay.image.definition import (
    address,
    check_files,
    find_python,
    image_digest,
    lock_sha256,
    python_tag,
)
from assay.image.steps import StepFailed
from assay.image.venv import build_venv, describe_python, list_packages
from assay.records.files import read_json, write_json
from assay.vocab import StageState

SCHEMA = "assay/image/1"
MARKER = ".complete"


@contextmanager
def locked(path: Path, say: Callable[[str], None] | None) -> Iterator[None]:
    """Hold the lock of one address; a second builder waits, and says so, until the first is done or gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is not None:
                say(f"another process builds {path.stem.lstrip('.')}: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _complete(config: dict[str, Any], folder: Path, digest: str) -> dict[str, Any] | None:
    """The record of an image that is there and whole, or None.

    Raises StepFailed when it was changed since.
    """
    marker = folder / MARKER
    if not marker.is_file():
        return None
    record: dict[str, Any] = read_json(marker)
    if record.get("digest") != digest:
        raise StepFailed("reuse", f"{folder.name} holds an image with digest {record.get('digest')}")
    if config["kind"] == "container":
        return record if find_container(record) else None
    packages = list_packages(folder)
    if packages != record["packages"]:
        changed = sorted(set(packages) ^ set(record["packages"]))
        raise StepFailed(
            "reuse", f"changed since it was built: {', '.join(changed[:5])}; remove {folder.name}"
        )
    for name, model in record["models"].items():
        path = folder.parent / model["path"]
        if not path.exists() or size_of_tree(path) != model["bytes"]:
            raise StepFailed("reuse", f"model {name} was changed since it was built; remove {folder.name}")
    return record


def _build(
    config: dict[str, Any], root: Path, folder: Path, log: Path, digest: str, blank: dict[str, Any]
) -> dict[str, Any]:
    if folder.exists():
        shutil.rmtree(folder)  # a build that was killed
    log.unlink(missing_ok=True)
    started = time.monotonic()
    whole = False
    try:
        if config["kind"] == "venv":
            facts = build_venv(config, root, folder, log)
            facts["python"] = f"{folder.name}/{describe_python(folder)}"
            for model in facts["models"].values():
                model["path"] = f"{folder.name}/{model['path']}"
        else:
            facts = build_container(config, root, folder, log, digest)
        record = {
            **blank,
            **facts,
            "state": str(StageState.COMPLETED),
            "t_build_s": round(time.monotonic() - started, 3),
        }
        write_json(folder / MARKER, record)
        whole = True
        return record
    finally:
        if not whole:
            shutil.rmtree(folder, ignore_errors=True)


def build_image(
    config: dict[str, Any], store: Path, root: Path, *, say: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Build ``config`` into ``store`` unless it is there already; returns its record.

    ``{schema, name, kind, digest, state, built, path, python, packages, patches, patched, as_shipped,
    checks, models, lock_sha256, python_version, t_build_s, failed_step, detail, log, log_tail}``; paths are
    relative to the store. ``state`` is ``failed`` with the step, its words and the end of the log when the
    build or a check failed: then no image is left behind. ``t_build_s`` (s) is the time of the build that
    made the image, also when this call found it there. Raises BadInput when the declaration itself is
    wrong.
    """
    check_files(config, root, where=config["name"])
    store = store.resolve()
    digest = image_digest(config, root)
    folder = store / address(config, digest)
    log = store / "logs" / f"{folder.name}.log"
    blank: dict[str, Any] = {
        "schema": SCHEMA,
        "name": config["name"],
        "kind": config["kind"],
        "digest": digest,
        "path": folder.name,
        "python": None,
        "python_version": python_tag(find_python(config)) if config["kind"] == "venv" else None,
        "packages": [],
        "patches": [],
        "patched": bool(config.get("patches")),
        "as_shipped": bool(config.get("as_shipped")),
        "checks": [],
        "models": {},
        "lock_sha256": lock_sha256(config, root),
        "container": None,
        "t_build_s": None,
        "failed_step": None,
        "detail": None,
        "log": f"logs/{log.name}",
        "log_tail": "",
    }
    with locked(store / f".{folder.name}.lock", say):
        try:
            record = _complete(config, folder, digest)
            if record is not None:
                return {**record, "built": False}
            if say is not None:
                say(f"building {folder.name}")
            return {**_build(config, root, folder, log, digest, blank), "built": True}
        except StepFailed as failure:
            failed: dict[str, Any] = {
                "failed_step": failure.step,
                "detail": failure.detail,
                "log_tail": failure.log_tail,
            }
            failed["checks"] = failure.checks
            return {**blank, **failed, "path": None, "state": str(StageState.FAILED), "built": False}


def image_python(record: dict[str, Any], store: Path) -> Path:
    """The interpreter of a built ``venv`` image. Raises Incomplete when the image failed or is gone."""
    if record["state"] != StageState.COMPLETED or record["python"] is None:
        raise Incomplete(f"image {record['name']}: {record['failed_step'] or 'has no Python of its own'}")
    python = store / str(record["python"])
    if not python.exists():
        raise Incomplete(f"image {record['name']}: {python} is gone; build it again")
    return python


def find_model(record: dict[str, Any], name: str, store: Path) -> Path:
    """A model file or folder the image carries, its sha256 checked.

    Raises BadInput when it is not declared, gone or changed.
    """
    model = record["models"].get(name)
    if model is None:
        there = ", ".join(sorted(record["models"])) or "none"
        raise BadInput(
            "carries no such model", where=f"image {record['name']}", key=name, hint=f"there are: {there}"
        )
    path = store / str(model["path"])
    if not path.exists():
        raise BadInput("is not there", where=path, hint="build the image again")
    digest = sha256_of_tree(path)
    if digest != model["sha256"]:
        raise BadInput(f"has sha256 {digest}", where=path, hint=f"declared is {model['sha256']}")
    return path
