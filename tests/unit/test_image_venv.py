"""Real environments built from a wheel that the test makes: once, under a lock, complete or not at all."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.digest import sha256_of_file, sha256_of_tree
from assay.errors import BadInput, Incomplete
from assay.image import as_shipped, build_image, find_model, image_digest, image_python

SCALE = b"SCALE = 120.0\n"
MODEL = b"weights of a model\n"
WAIVER = {
    "what": "one value is changed",
    "why": "the value is wrong as shipped",
    "upstream": "not reported: an example",
    "removal": "with the example",
}
DIFF = "--- a/engine.py\n+++ b/engine.py\n@@ -1 +1 @@\n-SCALE = 120.0\n+SCALE = 0.0078125\n"


def make_wheel(folder: Path) -> str:
    """A pure wheel `engine` 1.0 with a module and a model file; gives its sha256."""
    files = {
        "engine.py": SCALE,
        "engine_model/weights.bin": MODEL,
        "engine-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n",
        "engine-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files["engine-1.0.dist-info/RECORD"] = (record + "engine-1.0.dist-info/RECORD,,\n").encode()
    path = folder / "engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "wheels").mkdir()
    digest = make_wheel(root / "wheels")
    (root / "engine.lock.txt").write_text(f"engine==1.0 --hash=sha256:{digest}\n")
    (root / "fix.diff").write_text(DIFF)
    (root / "plug/engine_plugin").mkdir(parents=True)
    (root / "plug/engine_plugin/__init__.py").write_text("PLUGGED = True\n")
    return root


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    """Packages come from the test's own folder; no index is asked."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(project / "wheels"))
    monkeypatch.setenv("PYTHONPATH", "/somewhere/that/would/leak")


def declared(project: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "engine",
        "kind": "venv",
        "lock": "engine.lock.txt",
        "checks": [
            {"name": "imports", "code": "import engine, sys; assert not [p for p in sys.path if 'leak' in p]"}
        ],
        "models": {"m": {"path": "engine_model/weights.bin", "sha256": hashlib.sha256(MODEL).hexdigest()}},
        **more,
    }


def patched(project: Path) -> dict[str, Any]:
    def patch(name: str, kind: str, path: str, sha256: str) -> dict[str, Any]:
        return {"name": name, "kind": kind, "path": path, "sha256": sha256, "waiver": WAIVER}

    return declared(
        project,
        patches=[
            patch("scale", "diff", "fix.diff", sha256_of_tree(project / "fix.diff")),
            patch("plug", "overlay", "plug", sha256_of_tree(project / "plug")),
        ],
        checks=[
            {
                "name": "scale_is_decoded",
                "code": "import engine; assert engine.SCALE == 2**-7",
                "patch": "scale",
            },
            {"name": "plugged", "code": "import engine_plugin", "patch": "plug"},
        ],
    )


@pytest.fixture(scope="module")
def built(project: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """One plain image, built by this module; tests that change a store copy it."""
    store = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(project / "wheels"))
        return build_image(declared(project), store, project), store


def test_an_image_has_its_packages_models_and_checks_in_its_record(
    built: tuple[dict[str, Any], Path], project: Path
) -> None:
    """The record names what is inside, by version and digest, with paths relative to the store."""
    record, store = built
    assert (record["state"], record["built"]) == ("completed", True)
    assert "engine==1.0" in record["packages"]
    assert record["digest"] == image_digest(declared(project), project)
    assert record["path"] == f"engine-{record['digest'][:12]}"
    assert [check["verdict"] for check in record["checks"]] == ["pass"]
    python = image_python(record, store)
    code = "import engine; print(engine.SCALE)"
    assert (
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "120.0\n"
    )
    assert find_model(record, "m", store).read_bytes() == MODEL
    with pytest.raises(BadInput, match="there are: m"):
        find_model(record, "other", store)


PREPARE = """
import pathlib, sys, engine
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True)
(folder / "config.json").write_text(str(engine.SCALE))
(folder / "weights.bin").write_bytes(b"converted")
"""


def test_a_model_made_while_the_image_is_built(project: Path, tmp_path: Path) -> None:
    """A script of the image's own Python makes a folder; the folder is pinned by its files, and checked at use."""
    (project / "convert.py").write_text(PREPARE)
    want = tmp_path / "want"
    want.mkdir()
    (want / "config.json").write_text("120.0")
    (want / "weights.bin").write_bytes(b"converted")
    folder = {"path": "made/model", "sha256": sha256_of_tree(want)}
    config = declared(
        project,
        prepare=[{"name": "convert", "script": "convert.py", "arguments": ["made/model"]}],
        models={"folder": folder},
    )
    store = tmp_path / "store"
    record = build_image(config, store, project)
    assert record["state"] == "completed", record["log_tail"]
    assert record["models"]["folder"]["bytes"] == len("120.0") + len("converted")
    found = find_model(record, "folder", store)
    assert sha256_of_file(found / "weights.bin") == hashlib.sha256(b"converted").hexdigest()
    (found / "weights.bin").write_bytes(b"convertee")
    with pytest.raises(BadInput, match="declared is"):
        find_model(record, "folder", store)
    (project / "convert.py").write_text(PREPARE.replace("converted", "otherwise"))
    other = build_image(config, store, project)
    assert (other["state"], other["failed_step"]) == ("failed", "model:folder"), (
        "another script, another image"
    )
    (project / "convert.py").write_text("raise SystemExit('no such weights')")
    broken = build_image(config, store, project)
    assert (broken["failed_step"], "no such weights" in broken["log_tail"]) == ("prepare:convert", True)


def test_the_second_build_builds_nothing_and_says_the_same(
    built: tuple[dict[str, Any], Path], project: Path
) -> None:
    """The same declaration is found by its address: same record, nothing built, no file touched."""
    record, store = built
    marker = store / record["path"] / ".complete"
    before = marker.stat().st_mtime_ns
    again = build_image(declared(project), store, project)
    assert again == {**record, "built": False}
    assert marker.stat().st_mtime_ns == before


def test_two_builders_at_once_build_one_image(project: Path, tmp_path: Path) -> None:
    """The lock lets one build; the other waits, says so, and finds it done."""
    said: list[str] = []
    records: list[dict[str, Any]] = []

    def build() -> None:
        records.append(build_image(declared(project), tmp_path, project, say=said.append))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record["built"] for record in records) == [False, True]
    assert len({record["digest"] for record in records}) == 1
    assert any("waiting for it" in line for line in said)


def test_a_patched_image_runs_the_patch_and_its_control_does_not(project: Path, tmp_path: Path) -> None:
    """The patched engine passes its check; the as-shipped control is built, with the failure recorded."""
    # A store inside a checkout must not make git look for the patched files there.
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    record = build_image(patched(project), tmp_path, project)
    assert record["state"] == "completed", record["log_tail"]
    assert [(patch["name"], patch["files"]) for patch in record["patches"]] == [
        ("scale", ["engine.py"]),
        ("plug", ["engine_plugin/__init__.py"]),
    ]
    assert record["patches"][0]["waiver"] == WAIVER
    assert record["patched"]
    control = build_image(as_shipped(patched(project)), tmp_path, project)
    assert control["state"] == "completed"
    assert not control["patched"]
    assert [check["verdict"] for check in control["checks"]] == ["fail", "fail"]
    assert "AssertionError" in control["checks"][0]["output_tail"]


FAILURES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "check": (lambda c: c.update(checks=[{"name": "no", "code": "raise SystemExit(3)"}]), "check:no"),
    "model": (lambda c: c["models"]["m"].update(sha256="0" * 64), "model:m"),
    "lock": (lambda c: c.update(lock="wrong.lock.txt"), "install_packages"),
    "timeout": (
        lambda c: c.update(
            checks=[{"name": "slow", "code": "import time; time.sleep(99)", "timeout_s": 0.3}]
        ),
        "check:slow",
    ),
}


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_a_build_that_fails_leaves_no_image_and_names_the_step(
    project: Path, tmp_path: Path, name: str
) -> None:
    """A failing check, another model file, a wrong hash: the record has the step, the store has no image."""
    change, step = FAILURES[name]
    (project / "wrong.lock.txt").write_text("engine==1.0 --hash=sha256:" + "0" * 64 + "\n")
    config = declared(project)
    change(config)
    record = build_image(config, tmp_path, project)
    assert (record["state"], record["failed_step"], record["built"]) == ("failed", step, False)
    assert record["path"] is None
    assert record["detail"]
    assert not list(tmp_path.glob("engine-*"))
    assert (tmp_path / record["log"]).is_file()
    with pytest.raises(Incomplete, match=step):
        image_python(record, tmp_path)


def test_a_build_that_was_killed_is_begun_anew(project: Path, tmp_path: Path) -> None:
    """A folder without its completion marker is no image, whatever is in it."""
    half = tmp_path / f"engine-{image_digest(declared(project), project)[:12]}"
    (half / "lib").mkdir(parents=True)
    (half / "leftover").write_text("x")
    record = build_image(declared(project), tmp_path, project)
    assert record["built"]
    assert not (half / "leftover").exists()


def test_an_image_that_was_changed_is_not_used(
    built: tuple[dict[str, Any], Path], project: Path, tmp_path: Path
) -> None:
    """A package more, or another model file, and the image is refused with what differs."""
    record, store = built
    copied = tmp_path / "store"
    shutil.copytree(store, copied, symlinks=True)
    model = find_model(record, "m", copied)
    model.write_bytes(MODEL[:-1] + b"!")
    with pytest.raises(BadInput, match="has sha256"):
        find_model(record, "m", copied)
    model.write_bytes(MODEL + b"more")
    assert build_image(declared(project), copied, project)["failed_step"] == "reuse"
    model.write_bytes(MODEL)
    extra = model.parents[1] / "intruder-2.0.dist-info"
    extra.mkdir()
    (extra / "METADATA").write_text("Metadata-Version: 2.1\nName: intruder\nVersion: 2.0\n")
    refused = build_image(declared(project), copied, project)
    assert (refused["state"], refused["failed_step"]) == ("failed", "reuse")
    assert "intruder==2.0" in refused["detail"]


def test_the_python_that_builds_is_part_of_the_address(project: Path) -> None:
    """Naming the harness's own version builds the same image; one that is not installed is refused."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    content = image_digest(declared(project, python=own), project)
    assert content == image_digest(declared(project), project)
    with pytest.raises(BadInput, match=r"python3\.77 is not installed"):
        image_digest(declared(project, python="3.77"), project)
