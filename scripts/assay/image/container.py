"""``kind: container``: base by digest, lock, patches, package list, then the checks as the last build step.

Only the build is used, never ``run``: it works where control groups are missing, and the checks are part of
it, so an image that fails one never gets a name. What the steps found is read back from the image, and which
step failed from the tool's own words: podman may lose what a step printed (chroot isolation, podman 4.3).
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
RESULTS = f"{INSIDE}/results.txt"
PACKAGES = f"{INSIDE}/packages.txt"
TOOLS = ("podman", "docker")
# podman, docker's classic builder, BuildKit with plain progress; then what follows the last step.
_STEP = re.compile(
    r"^(?:.*STEP \d+/\d+:|Step \d+/\d+ :|#\d+ \[[^\]]*\d+/\d+\]) (?:RUN : assay-step (?P<step>\S+) )?"
    r"|^COMMIT |^#\d+ exporting ",
    re.MULTILINE,
)
_RESULT = re.compile(r"^(\S+) (\d+)$", re.MULTILINE)
_TOOL_EXIT = re.compile(
    r"^(?:Error: |ERROR: |The command ).*(?:exit status|exit code:|non-zero code:) (\d+)", re.MULTILINE
)


def find_tool(config: dict[str, Any]) -> str:
    """The program that builds: the declared one, else podman, else docker.

    Raises StepFailed when there is none.
    """
    wanted = config.get("tool", "auto")
    for name in TOOLS if wanted == "auto" else (wanted,):
        if shutil.which(name):
            return name
    raise StepFailed("find_tool", f"{' and '.join(TOOLS) if wanted == 'auto' else wanted} not installed")


def _named(step: str, command: str) -> str:
    """One RUN line that begins with the step's name: the tool repeats it before it runs it."""
    return f"RUN : assay-step {step} && {{ {command}; }}"


def _must_pass(config: dict[str, Any], check: dict[str, Any]) -> bool:
    return not (config.get("as_shipped") and "patch" in check)


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
        lines += [f"COPY lock.txt {INSIDE}/lock.txt", _named("install_packages:lock", install)]
    for patch in config.get("patches", []):
        inside, target = f"{INSIDE}/patches/{patch['name']}", patch["target"]
        lines.append(f"COPY patches/{patch['name']} {inside}")
        if patch["kind"] == "diff":
            command = f"cd {shlex.quote(target)} && patch -p{patch.get('strip', 1)} -i {inside}/change.diff"
        elif patch["kind"] == "overlay":
            command = f"mkdir -p {shlex.quote(target)} && cp -R {inside}/. {shlex.quote(target)}/"
        else:
            command = f"{python} -m pip install --no-deps --no-index {inside}/*.whl"
        lines.append(_named(f"patch:{patch['name']}", command))
    listing = config.get("package_list") or [python, "-m", "pip", "list", "--format=freeze"]
    listed = " ".join(shlex.quote(word) for word in listing)
    lines.append(_named("list_packages:all", f"mkdir -p {INSIDE} && : > {RESULTS} && {listed} > {PACKAGES}"))
    for check in config["checks"]:
        command = f"{_check_command(check, python)}; code=$?; echo {check['name']} $code >> {RESULTS}"
        if _must_pass(config, check):
            command += " && exit $code"
        lines.append(_named(f"check:{check['name']}", command))
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


def _judge(code: int | None, unknown: str) -> tuple[Verdict, str | None]:
    if code is None:
        return Verdict.NOT_RUN, unknown
    if code == COULD_NOT_RUN:
        return Verdict.NOT_RUN, "it says that it could not run"
    return (Verdict.PASS, None) if code == 0 else (Verdict.FAIL, f"ended {code}")


def read_build_output(config: dict[str, Any], output: str, results: str | None) -> dict[str, Any]:
    """Which step of a build failed (null when none did) and what its checks say. Pure.

    ``results`` is the image's own list of the checks' exit codes, null when the build failed. Without it a
    check that had to pass did so when a later step was begun; of one that had not to, nothing is known.
    """
    starts: dict[str, int] = {}
    last = "build"
    for match in _STEP.finditer(output):
        last = match["step"] or "build"
        starts.setdefault(last, match.start())
    must_pass = {f"check:{check['name']}": _must_pass(config, check) for check in config["checks"]}
    if results is not None:
        codes = {f"check:{name}": int(code) for name, code in _RESULT.findall(results)}
    else:
        codes = {name: 0 for name in starts if must_pass.get(name) and name != last}
        if said := _TOOL_EXIT.findall(output):
            codes[last] = int(said[-1])
    checks = []
    for name in must_pass:
        unknown = "it left no result in the image" if results is not None else "not reached"
        if results is None and name in starts:
            unknown = "the build ended without its result"
        verdict, detail = _judge(codes.get(name), unknown)
        checks.append(
            {
                "name": name.removeprefix("check:"),
                "verdict": str(verdict),
                "must_pass": must_pass[name],
                "detail": detail,
                "output_tail": tail(output[starts[name] :]) if detail and name in starts else "",
            }
        )
    return {"checks": checks, "failed_step": last if results is None else None}


def _read_back(tool: str, reference: str, folder: Path) -> tuple[str, list[str]]:
    """The checks' exit codes and the packages as the built image holds them; nothing in it is started.

    Raises StepFailed when they cannot be read.
    """

    def call(*arguments: str | Path) -> str:
        argv = [tool, *map(str, arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise StepFailed("read_back", f"{tool} {arguments[0]} ended {done.returncode}", tail(done.stderr))
        return done.stdout.strip()

    # An image without a command of its own needs one to be made into a container.
    container = call("create", reference, "true").splitlines()[-1]
    try:
        texts = []
        for inside in (RESULTS, PACKAGES):
            call("cp", f"{container}:{inside}", folder / Path(inside).name)
            texts.append((folder / Path(inside).name).read_text(errors="replace"))
    finally:
        call("rm", container)
    return texts[0], sorted({line.strip() for line in texts[1].splitlines() if line.strip()})


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
    if result.detail is not None:
        seen = read_build_output(config, result.output, None)
        raise StepFailed(seen["failed_step"], result.detail, tail(result.output), seen["checks"])
    try:
        results, packages = _read_back(tool, reference, folder)
        checks = read_build_output(config, result.output, results)["checks"]
        failing = [c["name"] for c in checks if c["must_pass"] and c["verdict"] != Verdict.PASS]
        found = _inspect(tool, reference)
        if found is None or failing:
            what = f"but not with {', '.join(failing)}" if failing else "and the image is gone"
            raise StepFailed("checks", f"the build ended well, {what}", tail(result.output), checks)
    except BaseException:
        subprocess.run([tool, "image", "rm", reference], capture_output=True, timeout=120, check=False)
        raise
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60, check=False)
    applied = [
        {**{key: patch[key] for key in ("name", "kind", "sha256", "waiver")}, "files": []}
        for patch in config.get("patches", [])
    ]
    return {
        "packages": packages,
        "patches": applied,
        "checks": checks,
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
