"""Findings, and how several become one verdict.

A finding is one check with its measured value and its threshold. Verdicts are computed from findings,
never from what was logged. The order of verdicts is their distance from a pass: ``pass``, ``fail`` (known
to be bad), ``invalid`` (measured, but not to be trusted), ``not_run`` (nothing known). The worst one
counts, so neither a further failing finding nor evidence that was taken away can improve a verdict; an
expected check without a finding counts as ``not_run``, and no check at all is a failure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from assay.vocab import ScreenResult, Verdict

ORDER = (Verdict.PASS, Verdict.FAIL, Verdict.INVALID, Verdict.NOT_RUN)


@dataclass(frozen=True)
class Finding:
    """One check: what was measured, what it was held against, what came of it, and which files say so."""

    name: str
    measured: Any
    threshold: Any
    verdict: Verdict | ScreenResult
    evidence: tuple[str, ...] = ()
    detail: str | None = None
    reasons: tuple[str, ...] = field(default=())

    def as_record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "measured": self.measured,
            "threshold": self.threshold,
            "verdict": str(self.verdict),
            "evidence": list(self.evidence),
            "detail": self.detail,
            "reasons": list(self.reasons),
        }


def rank(verdict: Verdict) -> int:
    """Distance from a pass: 0 is a pass."""
    return ORDER.index(verdict)


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of ``verdicts``; none at all is a failure."""
    return max(verdicts, key=rank, default=Verdict.FAIL)


def conclude(findings: Collection[Finding], expected: Collection[str]) -> tuple[Verdict, list[Finding]]:
    """One verdict of ``findings``, and the findings with one ``not_run`` added for each expected check
    that has none.

    Only findings with a Verdict take part; a row screen's result has its own rules (publication).
    """
    present = {finding.name for finding in findings}
    missing = [
        Finding(name, None, "a finding", Verdict.NOT_RUN, detail="this check was planned and has no finding")
        for name in sorted(set(expected) - present)
    ]
    complete = [*findings, *missing]
    return combine(finding.verdict for finding in complete if isinstance(finding.verdict, Verdict)), complete
