"""``kind: container``: base by digest, lock, patches, package list, then the checks as the last build step.

Only the build is used, never ``run``: it works where control groups are missing, and the checks are part of
it, so an image that fails one never gets a name.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from assay.image.definition import address
from assay.image.steps import COULD_NOT_RUN, StepFailed, run_step, tail
from assay.vocab import Verdict

INSIDE = "/opt/assay"
LABEL = "assay.digest"
TOOLS = ("podman", "docker")
_MARK = re.compile(r"assay-step ([a-z_]+):(\S+) (start|end)")
_EXIT = re.compile(r"assay-exit (\S+) (\d+)$")
_PACKAGE = re.compile(r"assay-package (\S.*)$")


def find_tool(config: dict[str, Any]) -> str:
    """The program that builds: the declared one, else podman, else docker.

    Raises StepFailed when there is none.
    """
    wanted = config.get("tool", "auto")
    for name in TOOLS if wanted == "auto" else (wanted,):
        if shutil.which(name):
            return name
    raise StepFailed("find_tool", f"{' and '.join(TOOLS) if wanted == 'auto' else wanted} not installed")


def _marked(kind: str, name: str, command: str) -> str:
    """One RUN line between two marks: the last start without an end is the step that failed."""
    start, end = f"assay-step {kind}:{name} start", f"assay-step {kind}:{name} end"
    return f"RUN echo '{start}' && {{ {command}; }} && echo '{end}'"


def _check_command(check: dict[str, Any], python: str) -> str:
    if "code" in check:
        command = f"{python} {INSIDE}/checks/{check['name']}.py"
    elif "script" in check:
        arguments = " ".join(shlex.quote(word) for word in check.get("arguments", []))
        command = f"{python} {INSIDE}/checks/{check['name']}.py {arguments}".strip()
    else:
        command = " ".join(shlex.quote(word) for word in check["command"])
    return command


def write_containerfile(config: dict[str, Any]) -> str:
    """The Containerfile of a declaration; pure, one RUN a step."""
    python = config.get("python_command", "python3")
    lines = [f"FROM {config['base']}"]
    if any("script" in check or "code" in check for check in config["checks"]):
        lines.append(f"COPY checks {INSIDE}/checks")
    if config.get("lock"):
        install = f"{python} -m pip install --require-hashes --no-deps --no-cache-dir -r {INSIDE}/lock.txt"
        lines += [f"COPY lock.txt {INSIDE}/lock.txt", _marked("install_packages", "lock", install)]
    for patch in config.get("patches", []):
        inside, target = f"{INSIDE}/patches/{patch['name']}", patch["target"]
        lines.append(f"COPY patches/{patch['name']} {inside}")
        if patch["kind"] == "diff":
            command = f"cd {shlex.quote(target)} && patch -p{patch.get('strip', 1)} -i {inside}/change.diff"
        elif patch["kind"] == "overlay":
            command = f"mkdir -p {shlex.quote(target)} && cp -R {inside}/. {shlex.quote(target)}/"
        else:
            command = f"{python} -m pip install --no-deps --no-index {inside}/*.whl"
        lines.append(_marked("patch", patch["name"], command))
    listing = config.get("package_list") or [python, "-m", "pip", "list", "--format=freeze"]
    listed = " ".join(shlex.quote(word) for word in listing)
    # The list goes to a file first: a pipe would hide that the command failed.
    file = f"{INSIDE}/packages.txt"
    show = f'{listed} > {file} && while read -r line; do echo "assay-package $line"; done < {file}'
    lines.append(_marked("list_packages", "all", f"mkdir -p {INSIDE} && {show}"))
    for check in config["checks"]:
        command = _check_command(check, python)
        excused = config.get("as_shipped") and "patch" in check
        after = "" if excused else " exit $code;"
        command = f'{{ {command}; }} || {{ code=$?; echo "assay-exit {check["name"]} $code";{after} }}'
        lines.append(_marked("check", check["name"], command))
    return "\n".join(lines) + "\n"


def _fill_context(config: dict[str, Any], root: Path, folder: Path) -> None:
    (folder / "Containerfile").write_text(write_containerfile(config))
    (folder / "checks").mkdir()
    for check in config["checks"]:
        if "code" in check:
            (folder / "checks" / f"{check['name']}.py").write_text(check["code"])
        elif "script" in check:
            shutil.copyfile(root / check["script"], folder / "checks" / f"{check['name']}.py")
    if config.get("lock"):
        shutil.copyfile(root / config["lock"], folder / "lock.txt")
    for patch in config.get("patches", []):
        place = folder / "patches" / patch["name"]
        source = root / patch["path"]
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            place.mkdir(parents=True)
            shutil.copyfile(source, place / ("change.diff" if patch["kind"] == "diff" else source.name))


def read_build_output(config: dict[str, Any], output: str, ended_well: bool) -> dict[str, Any]:
    """What a build's output says: packages, checks, and which step failed (null when none did). Pure."""
    open_step: str | None = None
    starts: dict[str, int] = {}
    ended: set[str] = set()
    exits: dict[str, int] = {}
    packages: set[str] = set()
    offset = 0
    for line in output.splitlines(keepends=True):
        here, offset = offset, offset + len(line)
        line = line.rstrip()
        if re.search(r"RUN echo|STEP \d+", line):
            continue  # the tool repeats the command itself before it runs it
        if match := _EXIT.search(line):
            exits[f"check:{match[1]}"] = int(match[2])
        elif match := _MARK.search(line):
            name = f"{match[1]}:{match[2]}"
            if match[3] == "start":
                open_step = name
                starts[name] = here
            else:
                ended.add(name)
                open_step = None
        elif match := _PACKAGE.search(line):
            packages.add(match[1].strip())
    checks = []
    for check in config["checks"]:
        name = f"check:{check['name']}"
        verdict, detail = Verdict.PASS, None
        if name not in starts:
            verdict, detail = Verdict.NOT_RUN, "not reached"
        elif exits.get(name) == COULD_NOT_RUN:
            verdict, detail = Verdict.NOT_RUN, "it says that it could not run"
        elif name in exits or name not in ended:
            verdict, detail = Verdict.FAIL, f"ended {exits.get(name, 'without a word')}"
        checks.append(
            {
                "name": check["name"],
                "verdict": str(verdict),
                "must_pass": not (config.get("as_shipped") and "patch" in check),
                "detail": detail,
                "output_tail": tail(output[starts[name] :]) if detail and name in starts else "",
            }
        )
    failed = None if ended_well else open_step or "build"
    return {"packages": sorted(packages), "checks": checks, "failed_step": failed}


def _inspect(tool: str, name: str) -> dict[str, Any] | None:
    done = subprocess.run(
        [tool, "image", "inspect", name], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        return None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return None
    return dict(found[0]) if isinstance(found, list) and found else None


def find_container(record: dict[str, Any]) -> bool:
    """Is the image of a record still in the tool's storage, with the same id?"""
    container = record.get("container") or {}
    if not container or shutil.which(container["tool"]) is None:
        return False
    found = _inspect(container["tool"], container["reference"])
    return found is not None and str(found.get("Id", "")).removeprefix("sha256:") == container["id"]


def build_container(
    config: dict[str, Any], root: Path, folder: Path, log: Path, digest: str
) -> dict[str, Any]:
    """Build and name the image. Returns the facts of the record; raises StepFailed with the step that failed.

    The build goes to no name at first: only an image that passed its checks is tagged.
    """
    tool = find_tool(config)
    reference = f"localhost/assay/{address(config, digest)}:{digest[:12]}"
    folder.mkdir(parents=True)
    _fill_context(config, root, folder)
    argv = [tool, "build", "--no-cache", "--label", f"{LABEL}={digest}", "-t", reference]
    argv += ["-f", str(folder / "Containerfile"), *config.get("build_options", [])]
    # Without layers podman keeps no unnamed image of a build that failed half-way.
    argv += ["--progress=plain"] if tool == "docker" else ["--layers=false", "--force-rm"]
    result = run_step([*argv, folder], log, timeout_s=7200)
    seen = read_build_output(config, result.output, result.detail is None)
    if seen["failed_step"] is not None:
        raise StepFailed(seen["failed_step"], str(result.detail), tail(result.output), seen["checks"])
    passed = [check for check in seen["checks"] if check["verdict"] == Verdict.PASS or not check["must_pass"]]
    found = _inspect(tool, reference)
    if found is None or len(passed) != len(seen["checks"]):
        subprocess.run([tool, "image", "rm", reference], capture_output=True, timeout=120, check=False)
        raise StepFailed("checks", "the build ended well without all its checks", tail(result.output))
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60, check=False)
    applied = [
        {**{key: patch[key] for key in ("name", "kind", "sha256", "waiver")}, "files": []}
        for patch in config.get("patches", [])
    ]
    return {
        "packages": seen["packages"],
        "patches": applied,
        "checks": seen["checks"],
        "models": {},
        "container": {
            "tool": tool,
            "tool_version": version.stdout.strip(),
            "base": config["base"],
            "reference": reference,
            "id": str(found.get("Id", "")).removeprefix("sha256:"),
            "image_digest": found.get("Digest") or None,
        },
    }
