"""What an image is declared to be, and its content address."""

from __future__ import annotations

import copy
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from assay.config.files import read_config
from assay.digest import PACKAGE_ROOT, sha256_of_file, sha256_of_tree, sha256_of_value
from assay.errors import BadInput

RECIPE_VERSION = {"venv": 2, "container": 3}
"""Raised when the same declaration would be built into something else; the addresses of that kind change."""
PROJECT_ROOT = PACKAGE_ROOT.parents[1]
# Words about an image are not in it: they may be corrected without a new build.
_WORDS = ("description", "name")
_OF_OTHER_KIND = {
    "venv": ("base", "tool", "build_options", "python_command", "package_list"),
    "container": ("python", "models", "prepare"),
}


def load_image(path: Path | str, root: Path | None = None) -> dict[str, Any]:
    """Read and validate ``config/images/<name>.yaml``.

    Raises BadInput, naming file, key and what would be right: schema, the name against the file's, patches
    and scripts that are missing or have another sha256, a check that guards a patch which is not there.
    """
    path = Path(path)
    root = root or PROJECT_ROOT
    config = read_config(PROJECT_ROOT, "image", path)
    if config["name"] != path.stem:
        raise BadInput(
            f"is {config['name']!r}", where=path, key="name", hint=f"the file's name, {path.stem!r}"
        )
    check_files(config, root, where=path)
    return config


def project_file(root: Path, text: str, *, where: object, key: str) -> Path:
    """A file or folder inside the project. Raises BadInput when it leads outside or is not there."""
    path = (root / text).resolve()
    if root.resolve() not in path.parents:
        raise BadInput(
            f"{text!r} leads out of the project", where=where, key=key, hint="a path relative to it"
        )
    if not path.exists():
        raise BadInput(f"{text!r} is not there", where=where, key=key, hint=f"relative to {root}")
    return path


def check_files(config: dict[str, Any], root: Path, *, where: object) -> None:
    """Everything the declaration names is there and has the digest it claims; else BadInput."""
    for name in _OF_OTHER_KIND[config["kind"]]:
        if name in config:
            raise BadInput(
                f"has no meaning for kind {config['kind']}", where=where, key=name, hint="leave it out"
            )
    if "lock" in config:
        lock = project_file(root, config["lock"], where=where, key="lock")
        if "--hash=" not in lock.read_text():
            raise BadInput("has no hashes", where=lock, hint="made with `uv pip compile --generate-hashes`")
    if config["kind"] == "container":
        _check_words(config, where)
    names: set[str] = set()
    for place, patch in enumerate(config.get("patches", [])):
        key = f"patches[{place}]"
        found = sha256_of_tree(project_file(root, patch["path"], where=where, key=f"{key}.path"))
        if found != patch["sha256"]:
            raise BadInput(
                f"{patch['path']} has sha256 {found}", where=where, key=f"{key}.sha256", hint="another file"
            )
        if config["kind"] == "container" and not patch.get("target", "").startswith("/"):
            raise BadInput(
                "is no absolute folder", where=where, key=f"{key}.target", hint="a folder in the image"
            )
        if config["kind"] == "venv" and (
            patch.get("target", ".").startswith("/") or ".." in patch.get("target", "")
        ):
            raise BadInput(
                "leads out of site-packages", where=where, key=f"{key}.target", hint="a path inside it"
            )
        if patch["name"] in names:
            raise BadInput(f"{patch['name']!r} is there twice", where=where, key=f"{key}.name")
        names.add(patch["name"])
    for place, step in enumerate(config.get("prepare", [])):
        project_file(root, step["script"], where=where, key=f"prepare[{place}].script")
    seen: set[str] = set()
    for place, check in enumerate(config["checks"]):
        key = f"checks[{place}]"
        if "script" in check:
            project_file(root, check["script"], where=where, key=f"{key}.script")
        if check["name"] in seen:
            raise BadInput(f"{check['name']!r} is there twice", where=where, key=f"{key}.name")
        seen.add(check["name"])
        if "patch" in check and check["patch"] not in names and not config.get("as_shipped"):
            raise BadInput(
                f"there is no patch {check['patch']!r}",
                where=where,
                key=f"{key}.patch",
                hint=f"one of {', '.join(sorted(names)) or 'none'}",
            )


def _check_words(config: dict[str, Any], where: object) -> None:
    """Every word of a container's commands fits on its one line of the Containerfile; else BadInput."""
    lists = {"package_list": config.get("package_list", [])}
    for place, check in enumerate(config["checks"]):
        lists |= {f"checks[{place}].{name}": check.get(name, []) for name in ("command", "arguments")}
    for key, words in lists.items():
        if any("\n" in str(word) for word in words):
            raise BadInput(
                "holds a line break", where=where, key=key, hint="`script` or `code` may hold lines"
            )


def as_shipped(config: dict[str, Any]) -> dict[str, Any]:
    """The control of a patched image: the same without its patches.

    Checks that guard a patch still run, and their failure is recorded, as it should be on an unpatched
    engine; it does not stop the build. Raises BadInput when there is no patch to leave out.
    """
    if not config.get("patches"):
        raise BadInput("has no patches: it is as shipped", where=config["name"], key="patches")
    plain = copy.deepcopy(config)
    plain["name"] = f"{config['name']}_as_shipped"
    plain["patches"] = []
    plain["as_shipped"] = True
    return plain


def find_python(config: dict[str, Any]) -> Path:
    """The interpreter an image is built with: the harness's own, or the one its ``python`` names."""
    wanted = config.get("python")
    if wanted is None or wanted == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.executable)
    found = shutil.which(f"python{wanted}")
    if found is None:
        own = f"{sys.version_info[0]}.{sys.version_info[1]}"
        hint = f"install it, or leave the key out to build with {own}"
        raise BadInput(f"python{wanted} is not installed", where=config["name"], key="python", hint=hint)
    return Path(found)


@cache
def python_tag(python: Path) -> str:
    """``cpython-3.11.7``: what an environment made with this interpreter depends on."""
    if python == Path(sys.executable):
        return f"{sys.implementation.name}-{platform.python_version()}"
    code = "import sys, platform; print(f'{sys.implementation.name}-{platform.python_version()}')"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise BadInput(f"does not run: {done.stderr.strip()[-200:]}", where=python)
    return done.stdout.strip()


def describe_content(config: dict[str, Any], root: Path) -> dict[str, Any]:
    """Everything that decides what the built image is: the value whose digest is its address."""
    content = {key: value for key, value in config.items() if key not in _WORDS}
    content["patches"] = [
        {key: value for key, value in patch.items() if key not in ("waiver", "path")}
        for patch in config.get("patches", [])
    ]
    content["checks"] = [
        {**check, "script": sha256_of_file(root / check["script"])} if "script" in check else check
        for check in config["checks"]
    ]
    if "prepare" in config:
        content["prepare"] = [
            {**step, "script": sha256_of_file(root / step["script"])} for step in config["prepare"]
        ]
    content["models"] = {
        name: {key: value for key, value in model.items() if key != "license"}
        for name, model in config.get("models", {}).items()
    }
    content["lock"] = sha256_of_file(root / config["lock"]) if "lock" in config else None
    content["recipe"] = RECIPE_VERSION[config["kind"]]
    content["platform"] = f"{sys.platform}-{platform.machine()}"
    if config["kind"] == "venv":
        content["python"] = python_tag(find_python(config))
    return content


def image_digest(config: dict[str, Any], root: Path) -> str:
    """The content address (hex sha256): lock, Python, platform, patches, prepared models, checks, recipe version.

    Known before anything is built; the name and the words about the image are not in it.
    """
    return sha256_of_value(describe_content(config, root))


def lock_sha256(config: dict[str, Any], root: Path) -> str | None:
    """Digest of the lock file, null for an image without one."""
    return sha256_of_file(root / config["lock"]) if "lock" in config else None


def address(config: dict[str, Any], digest: str) -> str:
    """Name of an image's folder in the store."""
    return f"{config['name']}-{digest[:12]}"
