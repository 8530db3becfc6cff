"""`python -m assay.session.engines.capture vllm==0.33.0 ...`: fetch wheels from PyPI, write their parsers as data.

A path of a wheel does as well. Only the wheel itself is fetched, none of what it depends on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from assay.digest import sha256_of_file
from assay.records.files import write_text
from assay.session.engines.capture import router, sglang, vllm
from assay.session.engines.capture.sources import Sources

READERS = {"vllm": vllm.capture, "sglang": sglang.capture, "vllm_router": router.capture}
FOLDER = Path(__file__).resolve().parent.parent / "parsers"
SCHEMA = "assay/parser/1"


def fetch(requirement: str, folder: Path) -> Path:
    """The wheel of ``name==version``, from PyPI through pip, into ``folder``."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--no-deps",
        "--no-cache-dir",
    ]
    subprocess.run([*pip, "--only-binary=:all:", "--quiet", "--dest", folder, requirement], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def parser_of(wheel: Path) -> dict[str, Any]:
    """The object of parsers/<engine>-<version>.json."""
    name, version = wheel.name.split("-")[:2]
    found = READERS[name](Sources(wheel))
    flags = dict(sorted(found["flags"].items()))
    for flag in flags.values():
        if "any" in flag["types"]:
            flag.setdefault("why", "type: one that the engine makes itself")
    return {
        "schema": SCHEMA,
        "engine": name,
        "version": version,
        "wheel": {"file": wheel.name, "sha256": sha256_of_file(wheel)},
        "flags": flags,
        "configs": dict(sorted(found["configs"].items())),
        "not_captured": {key: flag["why"] for key, flag in flags.items() if "why" in flag},
    }


def as_text(parser: dict[str, Any]) -> str:
    """One line a flag and one a config class: short, and a new version's changes can be read in a diff."""
    lines = ["{"]
    for key in ("schema", "engine", "version", "wheel"):
        lines.append(f"{json.dumps(key)}: {json.dumps(parser[key])},")
    for part in ("flags", "configs", "not_captured"):
        rows = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in parser[part].items()]
        lines.append(f'"{part}": {{\n' + ",\n".join(rows) + ("\n}," if part != "not_captured" else "\n}"))
    return "\n".join([*lines, "}", ""])


def main(words: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("wheels", nargs="+", help="name==version, or the path of a wheel")
    options.add_argument(
        "--to", type=Path, default=FOLDER, help="folder for the data (default: the package's)"
    )
    chosen = options.parse_args(words)
    for word in chosen.wheels:
        with tempfile.TemporaryDirectory() as scratch:
            wheel = Path(word) if word.endswith(".whl") else fetch(word, Path(scratch))
            parser = parser_of(wheel)
        path = chosen.to / f"{parser['engine']}-{parser['version']}.json"
        write_text(path, as_text(parser))
        missed = len(parser["not_captured"])
        print(
            f"{path.name}: {len(parser['flags'])} flags, {len(parser['configs'])} configs, {missed} not in full"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
