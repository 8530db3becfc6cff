"""What a session says of itself, against the plan and against the form of its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.audit.outcome import AuditReport
from assay.errors import Incomplete
from assay.records.campaign import Fault
from assay.records.files import read_json
from assay.vocab import AuditResult

TELEMETRY = "telemetry.parquet"


def odd_files(folder: Path, results: Path) -> Iterator[Fault]:
    """Everything below ``folder`` that is no folder and no regular file inside ``results``.

    Nothing is opened: a pipe would wait for ever, and a link may lead anywhere.
    """
    here = results.resolve()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            relative = path.relative_to(results).as_posix()
            try:
                if path.is_symlink() and not path.resolve().is_relative_to(here):
                    yield Fault(relative, "unreadable", "a link out of the results folder")
                    continue
                mode = path.stat().st_mode
            except (OSError, RuntimeError) as error:
                yield Fault(relative, "unreadable", f"a link that leads nowhere: {type(error).__name__}")
                continue
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                yield Fault(relative, "unreadable", "not a regular file")


def broken_tables(files: list[Path], results: Path) -> Iterator[Fault]:
    """Parquet files of a session that are none. Telemetry is read whole, of the others the footer: what is
    measured from them is read elsewhere."""
    for path in files:
        if path.suffix != ".parquet":
            continue
        try:
            if path.name == TELEMETRY:
                pq.read_table(path)
            else:
                pq.read_metadata(path)
        except (OSError, ValueError, pa.ArrowException) as error:
            why = f"cannot be read as parquet: {type(error).__name__}"
            yield Fault(path.relative_to(results).as_posix(), "unreadable", why)


def compare_session(
    report: AuditReport, results: Path, session_id: str, arm_name: str, plan: Mapping[str, Any]
) -> None:
    """session.json was written by the supervisor for the arm that the plan has: the same engine, image, model."""
    relative = f"evidence/{session_id}/session.json"
    try:
        session = read_json(results / relative)
    except Incomplete as error:
        gone = not (results / relative).exists()
        result = AuditResult.INCOMPLETE if gone else AuditResult.MISMATCH
        report.say("session", result, str(error), relative)
        return
    arm = plan["arms"][arm_name]
    wanted = {"session_id": session_id, "campaign": plan.get("name"), "arm": arm_name} | {
        "context_tokens": plan.get("context_tokens"),
        "engine": arm.get("engine"),
        "served_name": arm.get("served_name"),
        "image.digest": arm.get("image_digest"),
        "model.sha256": arm.get("model_sha256"),
    }
    wrong = []
    for key, value in wanted.items():
        told: Any = session
        for part in key.split("."):
            told = told.get(part) if isinstance(told, Mapping) else None
        if told is not None and value is not None and told != value:
            wrong.append(f"{key} is {told!r}, the plan has {value!r}")
    if wrong:
        report.say("session", AuditResult.MISMATCH, "; ".join(wrong), relative)
