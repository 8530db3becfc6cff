"""``kind: venv``: a hash-locked Python environment in its content-addressed folder.

Built in place, since scripts of an environment hold its path; the marker that makes it an image comes last.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from assay.digest import files_of_tree, sha256_of_file, sha256_of_tree, size_of_tree
from assay.image.definition import find_python
from assay.image.steps import COULD_NOT_RUN, STEP_TIMEOUT_S, StepFailed, StepResult, require, run_step, tail
from assay.vocab import Verdict

CHECK_TIMEOUT_S = 300.0


def site_packages(folder: Path) -> Path:
    """The environment's site-packages. Raises StepFailed when there is not exactly one."""
    found = sorted((folder / "lib").glob("python3.*/site-packages"))
    if len(found) != 1:
        raise StepFailed("make_venv", f"{len(found)} site-packages folders under {folder.name}/lib")
    return found[0]


def list_packages(folder: Path) -> list[str]:
    """``name==version`` of everything installed, sorted, names normalised."""
    found = {
        f"{distribution.metadata['Name'].lower().replace('_', '-')}=={distribution.version}"
        for distribution in importlib.metadata.distributions(path=[str(site_packages(folder))])
        if distribution.metadata["Name"]
    }
    return sorted(found)


def _apply_diff(patch: dict[str, Any], file: Path, site: Path, log: Path) -> list[str]:
    """Apply a unified diff under site-packages; the names of the files it changed."""
    step = f"patch:{patch['name']}"
    target = site / patch.get("target", ".")
    if not target.is_dir():
        raise StepFailed(step, f"{patch.get('target')} is not in site-packages")
    # The store may lie inside a checkout: without the ceiling git would look for the files in that
    # repository, find none of them tracked, and skip the patch in silence.
    git = ["git", "apply", f"-p{patch.get('strip', 1)}", "--whitespace=nowarn"]
    extra = {"GIT_CEILING_DIRECTORIES": str(target.resolve().parent), "GIT_DIR": os.devnull}
    counted = require(step, run_step([*git, "--numstat", file], log, cwd=target, extra=extra))
    names = [line.split("\t", 2)[2] for line in counted.output.splitlines() if line.count("\t") == 2]
    if not names:
        raise StepFailed(step, "the diff changes no file", tail(counted.output))
    before = {name: _digest(target / name) for name in names}
    require(step, run_step([*git, file], log, cwd=target, extra=extra))
    same = [name for name in names if _digest(target / name) == before[name]]
    if same:
        raise StepFailed(step, f"{same[0]} is unchanged after the diff")
    return names


def pip_argv(folder: Path) -> list[str | Path]:
    """The harness's pip, installing into the image's environment, which holds no pip of its own.

    Raises StepFailed where the harness has none.
    """
    if importlib.util.find_spec("pip") is None:
        raise StepFailed("install_packages", "the harness's environment has no pip (python -m ensurepip)")
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin/python"]


def _digest(path: Path) -> str | None:
    return sha256_of_file(path) if path.is_file() else None


def _lay_over(patch: dict[str, Any], folder: Path, site: Path) -> list[str]:
    """Copy the files of a folder into site-packages; a file that is there already is never replaced."""
    target = site / patch.get("target", ".")
    names = []
    for file in files_of_tree(folder):
        name = file.relative_to(folder)
        if (target / name).exists():
            raise StepFailed(
                f"patch:{patch['name']}", f"{name} is there already", "an overlay only adds files"
            )
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name)
        names.append(str(name))
    if not names:
        raise StepFailed(f"patch:{patch['name']}", "the overlay has no file")
    return names


def apply_patches(config: dict[str, Any], root: Path, folder: Path, log: Path) -> list[dict[str, Any]]:
    """Apply each patch in order; ``{name, kind, sha256, waiver, files}`` of each. Raises StepFailed."""
    applied = []
    for patch in config.get("patches", []):
        source, site = root / patch["path"], site_packages(folder)
        if patch["kind"] == "diff":
            files = _apply_diff(patch, source, site, log)
        elif patch["kind"] == "overlay":
            files = _lay_over(patch, source, site)
        else:
            install = [*pip_argv(folder), "install", "--no-deps", "--no-index", source]
            require(f"patch:{patch['name']}", run_step(install, log))
            files = [source.name]
        kept = {key: patch[key] for key in ("name", "kind", "sha256", "waiver")}
        applied.append({**kept, "files": files})
    return applied


def prepare(config: dict[str, Any], root: Path, folder: Path, log: Path) -> None:
    """Run the image's own scripts with its Python in its site-packages. Raises StepFailed."""
    for step in config.get("prepare", []):
        argv = [folder / "bin/python", root.resolve() / step["script"], *step.get("arguments", [])]
        done = run_step(argv, log, timeout_s=step.get("timeout_s", STEP_TIMEOUT_S), cwd=site_packages(folder))
        require(f"prepare:{step['name']}", done)


def check_argv(check: dict[str, Any], python: Path, root: Path) -> list[str | Path]:
    """The command of a check: code or a script for the image's Python, or a command, the image's first."""
    if "code" in check:
        return [python, "-c", check["code"]]
    if "script" in check:
        return [python, root / check["script"], *check.get("arguments", [])]
    program, *rest = check["command"]
    own = python.parent / program
    return [own if own.is_file() else program, *rest]


def run_checks(config: dict[str, Any], root: Path, folder: Path, log: Path) -> list[dict[str, Any]]:
    """Run every check; ``{name, verdict, must_pass, detail, output_tail}`` of each.

    A check that guards a patch need not pass in an as-shipped image. One that could not be started is not
    run, which is no pass either.
    """
    results = []
    python = folder / "bin/python"
    for check in config["checks"]:
        result: StepResult = run_step(
            check_argv(check, python, root),
            log,
            timeout_s=check.get("timeout_s", CHECK_TIMEOUT_S),
            cwd=folder,
            extra={"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
        )
        could_not_run = result.exit_code in (None, COULD_NOT_RUN)
        verdict = Verdict.NOT_RUN if could_not_run else Verdict.FAIL if result.exit_code else Verdict.PASS
        results.append(
            {
                "name": check["name"],
                "verdict": str(verdict),
                "must_pass": not (config.get("as_shipped") and "patch" in check),
                "detail": result.detail,
                "output_tail": tail(result.output) if result.detail else "",
            }
        )
    return results


def find_models(config: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """The declared models: path relative to the image's folder, sha256, bytes. Raises StepFailed."""
    found = {}
    for name, model in config.get("models", {}).items():
        path = site_packages(folder) / model["path"]
        if not path.exists():
            raise StepFailed(f"model:{name}", f"{model['path']} is not in the image")
        digest = sha256_of_tree(path)
        if digest != model["sha256"]:
            raise StepFailed(f"model:{name}", f"has sha256 {digest}, declared is {model['sha256']}")
        inside = path.relative_to(folder).as_posix()
        found[name] = {
            "path": inside,
            "sha256": digest,
            "bytes": size_of_tree(path),
            "license": model.get("license"),
        }
    return found


def build_venv(config: dict[str, Any], root: Path, folder: Path, log: Path) -> dict[str, Any]:
    """Make the environment in ``folder``: interpreter, packages, patches, prepared models, checks.

    Returns the facts of the record. Raises StepFailed with the step and the end of its output; the caller
    removes the folder then.
    """
    require("make_venv", run_step([find_python(config), "-m", "venv", "--without-pip", folder], log))
    install = [*pip_argv(folder), "install", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    more = ["--no-cache-dir", "--progress-bar=off", "-r", root / config["lock"]]
    require("install_packages", run_step([*install, *more], log))
    patches = apply_patches(config, root, folder, log)
    prepare(config, root, folder, log)
    models = find_models(config, folder)
    checks = run_checks(config, root, folder, log)
    for check in checks:
        if check["must_pass"] and check["verdict"] != Verdict.PASS:
            raise StepFailed(f"check:{check['name']}", str(check["detail"]), check["output_tail"], checks)
    return {"packages": list_packages(folder), "patches": patches, "models": models, "checks": checks}


def describe_python(folder: Path) -> str:
    """The interpreter inside the image, relative to its folder."""
    if not (folder / "bin/python").exists():
        raise StepFailed("make_venv", f"no bin/python on {sys.platform}")
    return "bin/python"
