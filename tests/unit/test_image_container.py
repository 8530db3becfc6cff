"""Container images built for real with podman, from a small base made of this machine's busybox."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.image import as_shipped, build_image

# One after the other: they count all images podman has.
pytestmark = [pytest.mark.podman, pytest.mark.serial]
OPTIONS = ["--isolation", "chroot", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
APPLETS = ("sh", "ls", "cat", "echo", "mkdir", "cp", "patch", "grep", "test", "true", "false")
DIFF = "--- a/loader.conf\n+++ b/loader.conf\n@@ -1 +1 @@\n-scale=120\n+scale=0.0078125\n"
WAIVER = {
    "what": "the scale is decoded",
    "why": "it was read as a number",
    "upstream": "not reported: an example",
    "removal": "with the example",
}


def podman(*arguments: str) -> str:
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A base image with a shell and a file that is wrong as shipped; gives name@sha256:digest."""
    busybox = shutil.which("busybox")
    if shutil.which("podman") is None or busybox is None:
        pytest.skip("podman or busybox is not installed")
    probe = subprocess.run(["podman", "info"], capture_output=True, text=True, timeout=60, check=False)
    if probe.returncode != 0:
        pytest.skip(f"podman does not work here: {probe.stderr.strip()[-200:]}")
    folder = tmp_path_factory.mktemp("base")
    (folder / "bin").mkdir()
    shutil.copy(busybox, folder / "bin" / "busybox")
    for applet in APPLETS:
        (folder / "bin" / applet).symlink_to("busybox")
    for name in ("app", "tmp", "opt"):
        (folder / name).mkdir()
    (folder / "app" / "loader.conf").write_text("scale=120\n")
    archive = folder.parent / "base.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname=".")
    name = f"localhost/assay-test-{uuid.uuid4().hex[:8]}"
    podman("import", "--quiet", str(archive), f"{name}:1")
    yield f"{name}@{podman('image', 'inspect', f'{name}:1', '--format', '{{.Digest}}')}"
    podman("image", "rm", "--force", f"{name}:1")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "fix.diff").write_text(DIFF)
    return tmp_path


@pytest.fixture
def cleaned() -> Iterator[list[dict[str, Any]]]:
    """Records whose images are removed after the test."""
    records: list[dict[str, Any]] = []
    yield records
    for record in records:
        if record["container"]:
            podman("image", "rm", "--force", record["container"]["reference"])


def declared(base: str, project: Path, wanted: str = "scale=0.0078125") -> dict[str, Any]:
    return {
        "name": "tiny",
        "kind": "container",
        "base": base,
        "tool": "podman",
        "build_options": OPTIONS,
        "package_list": ["echo", "busybox==1"],
        "patches": [
            {
                "name": "scale",
                "kind": "diff",
                "path": "fix.diff",
                "sha256": hashlib.sha256((project / "fix.diff").read_bytes()).hexdigest(),
                "target": "/app",
                "waiver": WAIVER,
            }
        ],
        "checks": [
            {"name": "shell_runs", "command": ["true"]},
            {"name": "scale_value", "command": ["grep", "-qx", wanted, "/app/loader.conf"], "patch": "scale"},
        ],
    }


def names() -> set[str]:
    return set(podman("images", "--format", "{{.ID}} {{.Repository}}").splitlines())


def test_a_patched_container_passes_its_checks_and_is_built_once(
    base: str, project: Path, cleaned: list[dict[str, Any]]
) -> None:
    """The image has its digest, packages and checks in the record; the second time nothing is built."""
    record = build_image(declared(base, project), project / "store", project)
    cleaned.append(record)
    assert record["state"] == "completed", record["log_tail"]
    assert [check["verdict"] for check in record["checks"]] == ["pass", "pass"]
    assert record["packages"] == ["busybox==1"]
    assert record["container"]["base"] == base
    assert record["container"]["image_digest"].startswith("sha256:")
    again = build_image(declared(base, project), project / "store", project)
    assert again == {**record, "built": False}


def test_a_failing_check_builds_no_image_and_the_record_names_it(base: str, project: Path) -> None:
    """No new image, named or unnamed, is left behind; the record says which check failed."""
    before = names()
    record = build_image(declared(base, project, "scale=120"), project / "store", project)
    assert (record["state"], record["failed_step"]) == ("failed", "check:scale_value")
    assert [check["verdict"] for check in record["checks"]] == ["pass", "fail"]
    assert record["container"] is None
    assert names() == before
    assert not list((project / "store").glob("tiny-*"))


def test_a_patch_that_does_not_apply_builds_no_image(base: str, project: Path) -> None:
    """A diff against other text fails the build at the patch, and no check counts as run."""
    (project / "fix.diff").write_text(DIFF.replace("scale=120", "other=1"))
    record = build_image(declared(base, project), project / "store", project)
    assert (record["state"], record["failed_step"]) == ("failed", "patch:scale"), record["log_tail"]
    assert {check["verdict"] for check in record["checks"]} == {"not_run"}


def test_the_control_is_built_with_the_failure_of_its_check_recorded(
    base: str, project: Path, cleaned: list[dict[str, Any]]
) -> None:
    """The as-shipped image exists although the patch's check fails on it, and says so."""
    record = build_image(as_shipped(declared(base, project)), project / "store", project)
    cleaned.append(record)
    assert record["state"] == "completed", record["log_tail"]
    assert [check["verdict"] for check in record["checks"]] == ["pass", "fail"]
    assert not record["patched"]


def test_a_base_that_is_not_there_fails_as_a_build(base: str, project: Path) -> None:
    """An unknown base digest is a failed build with the tool's words, not an exception."""
    config = declared(base, project)
    config |= {"base": "localhost/assay-no-such-base@sha256:" + "0" * 64}
    config["build_options"] = [*OPTIONS, "--pull=never"]
    record = build_image(config, project / "store", project)
    assert (record["state"], record["failed_step"]) == ("failed", "build")
    assert record["log_tail"]
