"""Which digest was recorded for a file: by a receipt, by a bracket, by a stage record, by its session's
manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.errors import Incomplete
from assay.records.campaign import Campaign, Fault, check_file, check_shape, resolve_inside
from assay.records.files import read_json

MANIFEST = "MANIFEST.sha256"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def parse_sums(text: str, where: str) -> dict[str, str]:
    """{path: sha256} of text in sha256sum's own form. Raises Incomplete naming the line that is none."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line and number == text.count("\n") + 1:
            break
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found:
            raise Incomplete(f"{where}:{number}: not one `sha256  path` line for one path")
        found[match[2]] = match[1]
    return found


def format_sums(sums: dict[str, str]) -> str:
    """The inverse of parse_sums, sorted by path."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(sums.items()))


def read_manifest(results: Path, session_id: str) -> dict[str, str] | None:
    """{path relative to results: sha256} of a closed session, None when it has no manifest.

    Raises Incomplete when the manifest cannot be read.
    """
    folder = f"evidence/{session_id}"
    path = resolve_inside(results, f"{folder}/{MANIFEST}")
    if not path.is_file():
        return None
    try:
        sums = parse_sums(path.read_text(encoding="utf-8"), f"{folder}/{MANIFEST}")
    except (OSError, UnicodeDecodeError) as error:
        raise Incomplete(f"{folder}/{MANIFEST}: cannot be read") from error
    return {
        name if name.startswith("evidence/") else f"{folder}/{name.removeprefix('./')}": digest
        for name, digest in sums.items()
    }


def named_by(body: dict[str, Any]) -> Iterator[tuple[str, str | None]]:
    """(path, sha256) of every file that a stage record or a receipt names."""
    entries = [*(body.get("evidence") or ())]
    if isinstance(body.get("stage_record"), dict):
        entries.append(body["stage_record"])
    for bracket in ((body.get("measured") or {}).get("brackets") or {}).values():
        entries += [bracket[when] for when in ("before", "after") if bracket.get(when)]
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("path"), str):
            yield entry["path"], entry.get("sha256")


class Pins:
    """The recorded digests of a campaign's evidence; several records may name one file."""

    def __init__(self, campaign: Campaign) -> None:
        self.results = campaign.results
        self.sources: dict[str, dict[str, str]] = {}
        """path -> {who recorded it: sha256}"""
        self.faults: list[Fault] = []
        self._checked: dict[str, Fault | None] = {}
        for receipt in campaign.receipts:
            for path, sha256 in named_by(receipt.body):
                self.add(path, sha256, receipt.path)
        for session_id in campaign.sessions():
            self.add_session(session_id)

    def add(self, path: str, sha256: str | None, source: str) -> None:
        if sha256 is not None:
            self.sources.setdefault(path, {})[source] = sha256

    def add_session(self, session_id: str) -> None:
        """Take up the session's manifest and what its stage records name."""
        try:
            manifest = read_manifest(self.results, session_id)
        except Incomplete as error:
            self.faults.append(Fault(f"evidence/{session_id}/{MANIFEST}", "unreadable", str(error)))
            manifest = None
        for path, sha256 in (manifest or {}).items():
            self.add(path, sha256, f"evidence/{session_id}/{MANIFEST}")
        for record in sorted((self.results / "evidence" / session_id).rglob("stage.json")):
            relative = record.relative_to(self.results).as_posix()
            try:
                body = read_json(record)
                if isinstance(body, dict):
                    check_shape(body, relative)
            except Incomplete as error:
                self.faults.append(Fault(relative, "unreadable", str(error)))
                continue
            if isinstance(body, dict):
                for path, named in named_by(body):
                    self.add(path, named, relative)

    def check(self, path: str) -> Fault | None:
        """Is the file there and the one that every record of it names? Each file is read once."""
        if path not in self._checked:
            self._checked[path] = self._check(path)
        return self._checked[path]

    def _check(self, path: str) -> Fault | None:
        sources = self.sources.get(path, {})
        first = next(iter(sources.values()), None)
        fault = check_file(self.results, path, first)
        if fault is None and len(set(sources.values())) > 1:
            return Fault(path, "changed", f"records disagree on its sha256: {', '.join(sorted(sources))}")
        return fault

    def digest(self, path: str) -> str | None:
        """The recorded sha256, None when no record names the file."""
        return next(iter(self.sources.get(path, {}).values()), None)
