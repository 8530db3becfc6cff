"""The stages before any server: probe_topology, build_image, write_plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.config.files import read_config
from assay.digest import sha256_of_value
from assay.image import build_image as build
from assay.probe import probe_topology as probe
from assay.records.files import write_json
from assay.stage.bracket import image_store
from assay.vocab import Reason, StageState

# Of an image's record this changes from build to build, and nothing after the build depends on it.
VOLATILE = ("built", "t_build_s", "log", "log_tail")


def probe_topology(spec: dict[str, Any], receipt: Path) -> dict[str, Any]:
    """Only what is stable: the receipt of an unchanged machine is the same file."""
    record = {
        "schema": "assay/topology/1",
        "stage": spec["stage"],
        "campaign": spec["campaign"],
        "topology": probe(),
    }
    write_json(receipt, record)
    return record


def build_image(root: Path, spec: dict[str, Any], receipt: Path) -> dict[str, Any]:
    """Build the image unless it is there.

    A failing build or check is a record too: arms of that image are not run, and say why; others go on.
    """
    if "rehearsal" in spec:
        return rehearse_image(spec, receipt)
    config = read_config(root, "image", root / "config" / "images" / f"{spec['image']}.yaml")
    image = build(config, image_store(root), root, say=lambda text: print(text, flush=True))
    failed = image["state"] != StageState.COMPLETED
    print(f"image {image['name']} {image['digest'][:12]}: {'built' if image['built'] else 'not built now'}")
    if failed:
        print(image.get("log_tail") or "")
    record = {
        "schema": "assay/image/1",
        "stage": spec["stage"],
        "spec_sha256": sha256_of_value(spec),
        "state": image["state"],
        "reasons": [str(Reason.IMAGE_FAILED)] if failed else [],
        "detail": f"step {image['failed_step']!r}: {image['detail']}" if failed else None,
        "image": {key: value for key, value in image.items() if key not in VOLATILE},
    }
    write_json(receipt, record)
    return record


def rehearse_image(spec: dict[str, Any], receipt: Path) -> dict[str, Any]:
    """A rehearsal builds nothing: the receipt names the image that a real run would build."""
    record = {
        "schema": "assay/image/1",
        "stage": spec["stage"],
        "spec_sha256": sha256_of_value(spec),
        "state": str(StageState.COMPLETED),
        "reasons": [str(Reason.REHEARSAL)],
        "detail": "nothing is built for a rehearsal",
        "image": {
            "name": spec["image"],
            "digest": spec["digest"],
            "patches": [],
            "packages": [],
            "checks": [],
        },
    }
    write_json(receipt, record)
    return record
