"""May a row be published? Flags, reasons and the verdict of one row, from its findings and the policy.

``publishable`` and ``invalid`` are separate flags, counted separately: a row can be neither. Nothing is
dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from assay.errors import BadInput
from assay.verdict.client_screens import screen_client_bound, screen_concurrency
from assay.verdict.findings import Finding
from assay.verdict.record import LoadRecord, asked_thinking
from assay.verdict.screens import (
    Limits,
    screen_cache,
    screen_failures,
    screen_input_length,
    screen_output_length,
    screen_session,
    screen_thinking,
    screen_token_count,
)
from assay.verdict.server_screens import (
    GATE_SCREENS,
    screen_clocks,
    screen_gate,
    screen_placement,
    screen_readback,
)
from assay.vocab import Reason, Screen, ScreenResult, StageState, Verdict

INVALIDATING = frozenset(
    {
        Screen.CONCURRENCY_REACHED,
        Screen.CLIENT_BOUND,
        Screen.OUTPUT_LENGTH,
        Screen.INPUT_LENGTH,
        Screen.THINKING_TOGGLE,
        Screen.MIXED_SESSION,
        Screen.PLACEMENT,
    }
)
"""A row that fails one of these did not measure what it says it measured. No policy can change that."""

SCREENS = {
    Screen.CACHE_SCREEN: screen_cache,
    Screen.FAILURE_RATE: screen_failures,
    Screen.CONCURRENCY_REACHED: screen_concurrency,
    Screen.CLIENT_BOUND: screen_client_bound,
    Screen.OUTPUT_LENGTH: screen_output_length,
    Screen.INPUT_LENGTH: screen_input_length,
    Screen.TOKEN_COUNT_AGREEMENT: screen_token_count,
    Screen.CLOCK_SCREEN: screen_clocks,
    Screen.THINKING_TOGGLE: screen_thinking,
    Screen.CONFIG_READBACK: screen_readback,
    Screen.PLACEMENT: screen_placement,
    Screen.MIXED_SESSION: screen_session,
}


@dataclass(frozen=True)
class RowVerdict:
    """The flags of one row. ``reasons`` are words of vocab.Reason, or ``<screen>:<result>``."""

    publishable: bool
    invalid: bool
    verdict: Verdict
    reasons: tuple[str, ...]


def load_policy(path: Path, schema_path: Path) -> dict[str, Any]:
    """Read and check a publication policy. Raises BadInput naming the bad key."""
    try:
        policy = yaml.safe_load(path.read_text())
        schema = json.loads(schema_path.read_text())
    except FileNotFoundError as error:
        raise BadInput("not there", where=error.filename) from error
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise BadInput(f"cannot be read: {error}", where=path) from error
    errors = sorted(
        jsonschema.Draft202012Validator(schema).iter_errors(policy), key=lambda e: list(map(str, e.path))
    )
    if errors:
        key = ".".join(str(part) for part in errors[0].absolute_path)
        raise BadInput(errors[0].message, where=path, key=key or None)
    if policy["name"] != path.stem:
        raise BadInput("is not the file's name", where=path, key="name", hint=path.stem)
    return dict(policy)


def run_screens(record: LoadRecord, limits: Limits) -> list[Finding]:
    """Every screen once, in the order of vocab.Screen."""
    found = []
    for screen in Screen:
        if screen in GATE_SCREENS:
            found.append(screen_gate(record, limits, screen))
        else:
            found.append(SCREENS[screen](record, limits))
    return found


def applies(when: str, record: LoadRecord) -> bool:
    """Is a requirement of the policy due for this row?"""
    kind = record.point.get("workload_kind")
    answers = {
        "always": True,
        "chat": kind == "chat",
        "synthetic": kind == "synthetic",
        "gpu": (record.arm.get("gpus") or 0) > 0,
        "placed": bool(record.arm.get("placement") or (record.placement or {}).get("declared")),
        "thinking_asked": asked_thinking(record) is not None,
        "ignore_eos": bool(record.point.get("ignore_eos")),
        "cache_unwanted": not record.point.get("prefix_cache_wanted"),
    }
    return answers[when]


def judge_row(
    record: LoadRecord,
    findings: Sequence[Finding],
    policy: Mapping[str, Any],
    *,
    state: StageState | str,
    stage_reasons: Sequence[str] = (),
    faults: Sequence[str] = (),
    why_open: str | None = None,
    rehearsal: bool = False,
) -> RowVerdict:
    """Flags and reasons of a row.

    ``faults`` are vocab.Reason words for evidence that is missing or changed: the row is then invalid,
    whatever the screens say. ``why_open`` tells that the session lacks a half of its bracket. A rehearsal
    is never publishable.
    """
    by_name = {str(finding.name): finding for finding in findings}
    reasons: list[str] = [*stage_reasons, *faults]
    failed = [name for name, finding in by_name.items() if finding.verdict == ScreenResult.FAIL]
    reasons += [f"{name}:{ScreenResult.FAIL}" for name in failed]
    for entry in policy.get("required") or ():
        finding = by_name.get(entry["screen"])
        if applies(entry["when"], record) and (
            finding is None or finding.verdict == ScreenResult.NOT_CHECKED
        ):
            reasons.append(f"{entry['screen']}:{ScreenResult.NOT_CHECKED}")
    if why_open is not None:
        reasons.append(Reason.BRACKET_OPEN)
    if rehearsal:
        reasons.append(Reason.REHEARSAL)
    passed = any(finding.verdict == ScreenResult.PASS for finding in findings)
    if not passed:
        reasons.append(Reason.NOTHING_CHECKED)
    invalid = bool(faults) or state == StageState.INVALID or bool(INVALIDATING & set(failed))
    completed = state == StageState.COMPLETED
    if not completed:
        reasons.append(f"stage:{state}")
    if not policy.get("required"):
        reasons.append(Reason.NOTHING_CHECKED)
    publishable = completed and not invalid and not reasons
    if publishable:
        verdict = Verdict.PASS
    elif invalid:
        verdict = Verdict.INVALID
    elif state == StageState.NOT_RUN:
        verdict = Verdict.NOT_RUN
    else:
        verdict = Verdict.FAIL
    return RowVerdict(publishable, invalid, verdict, tuple(dict.fromkeys(str(reason) for reason in reasons)))
