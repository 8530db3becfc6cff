"""A campaign's folder as a reader sees it: the plan, the receipts, and evidence opened with its digest
checked.

Pure functions of files on disk. Paths inside records are relative to the results folder; a path that
leaves it is refused, since a record may come from another machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from assay.digest import sha256_of_file
from assay.errors import BadInput, Incomplete
from assay.records.files import read_json

FaultKind = Literal["missing", "changed", "unreadable", "unpinned"]
_JSON_LIMIT_BYTES = 64 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, order=True)
class Fault:
    """One file that cannot be relied on. ``path`` is relative to the results folder."""

    path: str
    kind: FaultKind
    detail: str


def resolve_inside(results: Path, relative: str) -> Path:
    """The file a record names. Raises Incomplete when the name is not a plain path below ``results``."""
    parts = PurePosixPath(relative)
    if not relative or parts.is_absolute() or ".." in parts.parts or "\0" in relative:
        raise Incomplete(f"{relative!r}: not a path below the results folder")
    return results / parts


def check_file(results: Path, relative: str, sha256: str | None) -> Fault | None:
    """Is the file there, and is it the one that was recorded? None means yes."""
    try:
        path = resolve_inside(results, relative)
    except Incomplete as error:
        return Fault(relative, "unreadable", str(error))
    if not path.is_file():
        return Fault(relative, "missing", "named by a record, not there")
    try:
        found = sha256_of_file(path)
    except OSError as error:
        return Fault(relative, "unreadable", str(error.strerror))
    if sha256 is None:
        return Fault(relative, "unpinned", "no digest was recorded for it")
    if found != sha256:
        return Fault(relative, "changed", f"recorded sha256 {sha256[:12]}, found {found[:12]}")
    return None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects of a .jsonl file, one a line. Raises Incomplete naming the line that is none."""
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    value = json.loads(line)
                    if not isinstance(value, dict):
                        raise Incomplete(f"{path}:{number}: not a JSON object")
                    yield value
    except FileNotFoundError as error:
        raise Incomplete(f"{path}: not there") from error
    except (OSError, ValueError, RecursionError) as error:
        raise Incomplete(f"{path}: cannot be read as JSON lines: {error}") from error


@dataclass(frozen=True)
class Receipt:
    """One receipt of a campaign: its place (relative to results), its digest and its content."""

    path: str
    sha256: str
    body: dict[str, Any]

    @property
    def stage(self) -> str:
        return str(self.body.get("stage"))

    @property
    def leg(self) -> str | None:
        return self.body.get("leg")

    @property
    def session_id(self) -> str | None:
        return self.body.get("session_id")

    def evidence(self, name: str, under: str = "") -> dict[str, Any] | None:
        """The evidence entry whose path ends with ``under/name``, or None."""
        tail = f"{under}/{name}" if under else name
        for entry in self.body.get("evidence") or ():
            if entry["path"] == tail or entry["path"].endswith("/" + tail):
                return dict(entry)
        return None


@dataclass(frozen=True)
class Campaign:
    """A campaign's folder, read once."""

    folder: Path
    plan: dict[str, Any]
    receipts: tuple[Receipt, ...]
    broken: tuple[Fault, ...] = field(default=())

    @property
    def results(self) -> Path:
        return self.folder.parent

    @property
    def name(self) -> str:
        return str(self.plan["name"])

    def of_leg(self, leg: str, stage: str) -> Receipt | None:
        """The leg's receipt of a stage that happens once a leg."""
        for receipt in self.receipts:
            if receipt.leg == leg and receipt.stage == stage:
                return receipt
        return None

    def of_stage(self, *stages: str) -> list[Receipt]:
        return [receipt for receipt in self.receipts if receipt.stage in stages]

    def sessions(self) -> list[str]:
        """Every session that a receipt names, brackets included, in order of time (ids begin with it)."""
        found = {receipt.session_id for receipt in self.receipts if receipt.session_id}
        for receipt in self.receipts:
            found.update((receipt.body.get("measured") or {}).get("brackets") or {})
        return sorted(found)


def _want_objects(value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise Incomplete(f"{place} is not an object")
    for key, inner in value.items():
        if not isinstance(inner, dict):
            raise Incomplete(f"{place}.{key} is not an object")


def check_shape(body: dict[str, Any], place: str) -> None:
    """The parts of a receipt or a stage record that every reader relies on. Raises Incomplete naming the key."""
    entries = body.get("evidence") or []
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("path"), str) for entry in entries
    ):
        raise Incomplete(f"{place}: evidence is not a list of files")
    for key in ("measured", "spec"):
        if not isinstance(body.get(key) or {}, dict):
            raise Incomplete(f"{place}: {key} is not an object")
    brackets = (body.get("measured") or {}).get("brackets") or {}
    _want_objects(brackets, f"{place}: measured.brackets")
    for session_id, bracket in brackets.items():
        for when in ("before", "after"):
            half = bracket.get(when)
            if half is not None and not (isinstance(half, dict) and isinstance(half.get("path"), str)):
                raise Incomplete(f"{place}: measured.brackets.{session_id}.{when} names no file")
    for name in (body.get("session_id"), *brackets):
        if name is not None and not (isinstance(name, str) and _PLAIN_NAME.fullmatch(name)):
            raise Incomplete(f"{place}: {str(name)[:80]!r} is no session")


def open_campaign(folder: Path) -> Campaign:
    """Read plan.json and every receipt below ``folder``.

    A receipt that cannot be read is kept in ``broken`` and does not stop the rest. Raises BadInput when
    the folder is no campaign's, Incomplete when its plan is broken.
    """
    folder = folder.resolve()
    plan_path = folder / "plan.json"
    if not plan_path.is_file():
        raise BadInput("no plan.json here", where=folder, hint="name a campaign's folder: results/<campaign>")
    plan = read_json(plan_path)
    if not isinstance(plan, dict) or plan.get("schema") != "assay/plan/1":
        raise Incomplete(f"{plan_path}: not an assay/plan/1")
    for key in ("arms", "legs", "points"):
        _want_objects(plan.get(key, {}), f"{plan_path}: {key}")
    for point_id, point in plan.get("points", {}).items():
        if not isinstance(point.get("kind"), str):
            raise Incomplete(f"{plan_path}: points.{point_id} has no kind")
    receipts: list[Receipt] = []
    broken: list[Fault] = []
    for path in sorted((folder / "receipts").rglob("*.json")):
        relative = path.relative_to(folder.parent).as_posix()
        try:
            if path.stat().st_size > _JSON_LIMIT_BYTES:
                raise Incomplete(f"{relative}: larger than {_JSON_LIMIT_BYTES} bytes")
            body = read_json(path)
            if not isinstance(body, dict):
                raise Incomplete(f"{relative}: not a JSON object")
            check_shape(body, relative)
        except Incomplete as error:
            broken.append(Fault(relative, "unreadable", str(error)))
            continue
        receipts.append(Receipt(relative, sha256_of_file(path), body))
    return Campaign(folder, plan, tuple(receipts), tuple(broken))


def list_attempts(campaign: Campaign) -> list[tuple[str, dict[str, Any] | None]]:
    """Every stage.json in the evidence that this campaign wrote: (path relative to results, content).

    A stage.json that cannot be read is listed with None, since it may be this campaign's.
    """
    found: list[tuple[str, dict[str, Any] | None]] = []
    for path in sorted((campaign.results / "evidence").glob("*/**/stage.json")):
        relative = path.relative_to(campaign.results).as_posix()
        try:
            body = read_json(path)
        except Incomplete:
            found.append((relative, None))
            continue
        if isinstance(body, dict) and body.get("campaign") == campaign.name:
            found.append((relative, body))
    return found
