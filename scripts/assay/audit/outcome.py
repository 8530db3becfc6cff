"""What an audit found: checks, points, files at fault, one result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.errors import EXIT_CHECK_FAILED, EXIT_INCOMPLETE, EXIT_OK
from assay.records.campaign import Fault
from assay.vocab import AuditResult

EXIT_CODES = {
    AuditResult.VERIFIED: EXIT_OK,
    AuditResult.MISMATCH: EXIT_CHECK_FAILED,
    AuditResult.INCOMPLETE: EXIT_INCOMPLETE,
}
_ABSENT = ("missing", "unpinned")
_LINES = 60


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``path`` is the file it speaks of, relative to the results folder."""

    name: str
    result: AuditResult
    detail: str
    path: str | None = None


@dataclass
class AuditReport:
    """The whole audit of one target."""

    target: str
    campaign: str | None = None
    checks: list[Check] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)
    origin: list[dict[str, Any]] = field(default_factory=list)
    """The sessions behind the target: server, image, model, prompts, configuration, commit."""
    files_hashed: int = 0

    def say(self, name: str, result: AuditResult, detail: str, path: str | None = None) -> None:
        self.checks.append(Check(name, result, detail, path))

    def blame(self, faults: Sequence[Fault]) -> None:
        """Add files that cannot be relied on, each once."""
        self.faults = sorted({*self.faults, *faults})

    @property
    def result(self) -> AuditResult:
        """Nothing checked is incomplete; a changed file or a wrong figure outweighs a missing file."""
        results = {check.result for check in self.checks}
        if AuditResult.MISMATCH in results or any(fault.kind not in _ABSENT for fault in self.faults):
            return AuditResult.MISMATCH
        if AuditResult.INCOMPLETE in results or self.faults or not self.checks:
            return AuditResult.INCOMPLETE
        return AuditResult.VERIFIED

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.result]

    @property
    def files_at_fault(self) -> list[str]:
        """Every file that a fault or a failing check names."""
        named = {fault.path for fault in self.faults}
        named |= {check.path for check in self.checks if check.path and check.result != AuditResult.VERIFIED}
        return sorted(named)

    def as_record(self) -> dict[str, Any]:
        """The report as JSON (schema assay/audit/1)."""
        return {
            "schema": "assay/audit/1",
            "target": self.target,
            "campaign": self.campaign,
            "result": str(self.result),
            "files_at_fault": self.files_at_fault,
            "files_hashed": self.files_hashed,
            "faults": [{"path": f.path, "kind": f.kind, "detail": f.detail} for f in self.faults],
            "checks": [
                {"name": c.name, "result": str(c.result), "detail": c.detail, "path": c.path}
                for c in self.checks
            ],
            "points": self.points,
            "origin": self.origin,
        }

    def as_text(self) -> str:
        """The report for a person; ends with the result in a line of its own."""
        lines = [f"audit of {plain(self.target)}"]
        lines += [line for point in self.points for line in _say_point(point)]
        lines += [_say_origin(one) for one in self.origin]
        for check in self.checks:
            lines.append(f"  {check.result:<10} {check.name}: {plain(check.detail)}")
        shown = self.faults[:_LINES]
        lines += [f"  {fault.kind:<10} {plain(fault.path)}: {plain(fault.detail)}" for fault in shown]
        if len(self.faults) > len(shown):
            lines.append(f"  ... and {len(self.faults) - len(shown)} more files (--format json has all)")
        at_fault = self.files_at_fault
        if at_fault:
            more = f" and {len(at_fault) - 10} more" if len(at_fault) > 10 else ""
            lines.append(f"files at fault: {', '.join(plain(path) for path in at_fault[:10])}{more}")
        return "\n".join([*lines, str(self.result)])


def plain(text: Any, limit: int = 400) -> str:
    """Printable and bounded: records may quote what a server or a model wrote."""
    line = "".join(char if char.isprintable() else "?" for char in str(text))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _figure(value: Any) -> str:
    return "none" if value is None else (f"{value:.6g}" if isinstance(value, float) else str(value))


def _say_point(point: dict[str, Any]) -> list[str]:
    sign = {True: "=", False: "!=", None: "?"}[point["agrees"]]
    head = (
        f"  {point['arm']} {point['point_id']} {point['metric']}: shown {_figure(point['shown'])} {sign} "
        f"recomputed {_figure(point['recomputed'])} "
        f"({point['statistic']}, n={point['n']}, {point['population']})"
    )
    lines = [plain(head)]
    lines += [
        f"      without {plain(row)}: {plain(', '.join(why))}" for row, why in point["excluded"].items()
    ]
    lines += [f"      flagged {plain(row)}: {plain(', '.join(why))}" for row, why in point["flagged"].items()]
    return lines


def _say_origin(one: dict[str, Any]) -> str:
    parts = [f"{key} {one[key]}" for key in ("engine", "image", "model", "commit") if one.get(key)]
    return plain(f"  session {one['session_id']} ({one['run_id']}): {'; '.join(parts)}")
