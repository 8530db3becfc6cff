"""The verdict of a whole run: one session from its start to its last gate, load summary and final gate
side by side.

A load without a failed request followed by a failed after-gate is a failed run, with its throughput kept
beside it. Separate facts stay separate findings: a client that could not put the load on, and a server
that crashed in the same attempt, are both told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.verdict.findings import Finding, combine, conclude
from assay.verdict.record import WHENS
from assay.verdict.server_screens import score
from assay.vocab import GateOutcome, Reason, Screen, ScreenResult, Stage, StageState, Verdict

ORDERLY_ENDS = frozenset({"released", "evicted", "interrupted", "owner gone"})
"""Ends of a server that came from outside it (session.json: why_stopped)."""
AVAILABILITY = frozenset({Reason.SERVER_CRASHED, Reason.SERVER_START_FAILED, Reason.IMAGE_FAILED})
_SERVER_REASONS = frozenset({Reason.SERVER_CRASHED, Reason.SERVER_START_FAILED})


def judge_stage(name: str, body: Mapping[str, Any] | None, evidence: tuple[str, ...] = ()) -> Finding:
    """How a stage ended, as a finding. A stage that could not run because the server failed is a failure
    of it."""
    if body is None:
        return Finding(name, None, StageState.COMPLETED, Verdict.NOT_RUN, detail="no record of this stage")
    state, reasons = str(body.get("state")), tuple(str(word) for word in body.get("reasons") or ())
    verdict = {
        StageState.COMPLETED: Verdict.PASS if not reasons else Verdict.FAIL,
        StageState.FAILED: Verdict.FAIL,
        StageState.INVALID: Verdict.INVALID,
    }.get(StageState(state) if state in list(StageState) else StageState.NOT_RUN, Verdict.NOT_RUN)
    if verdict == Verdict.NOT_RUN and AVAILABILITY & set(reasons):
        verdict = Verdict.FAIL
    return Finding(name, state, StageState.COMPLETED, verdict, evidence, body.get("detail"), reasons)


def judge_gates(
    summaries: Mapping[str, Mapping[str, Any] | None],
    due: Mapping[str, Sequence[str]],
    evidence: Mapping[str, str],
) -> list[Finding]:
    """One finding per side and kind of gate; ``due`` are the kinds that each side owes."""
    found = []
    for when in WHENS:
        kinds = (summaries.get(when) or {}).get("kinds") or {}
        places = (evidence[when],) if when in evidence else ()
        for kind in sorted({*kinds, *due.get(when, ())}):
            name, entry = f"gate_{when}:{kind}", kinds.get(kind)
            if entry is None:
                found.append(Finding(name, None, None, Verdict.NOT_RUN, places, "no summary of these tasks"))
                continue
            measured = score(entry) or {}
            passed = entry.get("verdict") == Verdict.PASS and measured["n"] > 0
            others = sorted(word for word in measured["outcomes"] if word != GateOutcome.PASS)
            detail = f"{measured['pass']}/{measured['n']}" + (f", {', '.join(others)}" if others else "")
            verdict = Verdict.PASS if passed else Verdict.FAIL
            found.append(Finding(name, measured, entry.get("threshold"), verdict, places, detail))
        thinking = (summaries.get(when) or {}).get("thinking") or {}
        if thinking.get("verdict") == ScreenResult.FAIL:
            # The model is not graded wrong for what the template did; the gate itself cannot be trusted.
            name, why = f"gate_{when}:thinking", "the thinking toggle was ignored"
            found.append(Finding(name, dict(thinking), None, Verdict.INVALID, places, why))
    return found


def judge_load(row: Mapping[str, Any], findings: Sequence[Finding]) -> Finding:
    """One repeat or window as a finding: pass when it completed, can be trusted, and no screen of the load
    failed.

    Gate screens are left out: the run's own gate findings speak for them.
    """
    gates = {Screen.NEEDLE_GATE, Screen.JSON_GATE, Screen.TOOL_GATE, Screen.CODE_GATE, Screen.CONFIG_READBACK}
    failed = [str(f.name) for f in findings if f.verdict == ScreenResult.FAIL and f.name not in gates]
    state = row["stage_state"]
    elsewhere = tuple(gates)
    reasons = tuple(w for w in row["reasons"] if not w.startswith(elsewhere) and w != Reason.BRACKET_OPEN)
    if row["invalid"]:
        verdict = Verdict.INVALID
    elif state == StageState.NOT_RUN:
        verdict = Verdict.FAIL if AVAILABILITY & set(reasons) else Verdict.NOT_RUN
    elif state == StageState.STARTED:
        verdict = Verdict.NOT_RUN
    else:
        verdict = Verdict.PASS if state == StageState.COMPLETED and not failed else Verdict.FAIL
    measured = {name: row[name] for name in ("n_issued", "n_ok", "n_failed", "n_incomplete", "output_tok_s")}
    evidence = (row["requests_path"],) if row["requests_path"] else ()
    name, threshold = f"load:{row['row_id']}", "completed, no failing screen"
    return Finding(name, measured, threshold, verdict, evidence, None, reasons)


def judge_server(
    session: Mapping[str, Any] | None, reasons: Sequence[str], evidence: tuple[str, ...]
) -> Finding:
    """Did the server live until it was told to stop? A crash stays a fact beside whatever the client did."""
    if session is None:
        why = "no record of the session"
        return Finding("server", None, "stopped when told to", Verdict.NOT_RUN, evidence, why)
    measured = {
        "state": session.get("state"),
        "why_stopped": session.get("why_stopped"),
        "returncode": session.get("returncode"),
    }
    why = str(session.get("why_stopped"))
    ended_itself = session.get("why_stopped") is not None and why not in ORDERLY_ENDS
    crashed = ended_itself or bool(_SERVER_REASONS & set(reasons))
    verdict = Verdict.FAIL if crashed else Verdict.PASS
    return Finding("server", measured, "stopped when told to", verdict, evidence, why if crashed else None)


def judge_client(rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Did the client put on every load it was asked for?"""
    bad = {
        Screen.CONCURRENCY_REACHED,
        Screen.CLIENT_BOUND,
        Reason.CLIENT_REFUSED,
        Reason.CLIENT_BOUND,
        Reason.CONCURRENCY_NOT_REACHED,
    }
    guilty = {
        row["row_id"]: hits
        for row in rows
        if (hits := [w for w in row["reasons"] if w in bad or w.removesuffix(":fail") in bad])
    }
    unchecked = [
        row["row_id"]
        for row in rows
        if any(
            row[str(s)] == ScreenResult.NOT_CHECKED for s in (Screen.CONCURRENCY_REACHED, Screen.CLIENT_BOUND)
        )
    ]
    otherwise = Verdict.NOT_RUN if unchecked or not rows else Verdict.PASS
    verdict = Verdict.INVALID if guilty else otherwise
    measured = {"guilty": guilty, "unchecked": unchecked}
    return Finding("client", measured, "no load refused, bound or short of its concurrency", verdict)


def judge_run(
    *,
    start: Mapping[str, Any] | None,
    readback: Finding | None,
    summaries: Mapping[str, Mapping[str, Any] | None],
    due: Mapping[str, Sequence[str]],
    gate_evidence: Mapping[str, str],
    session: Mapping[str, Any] | None,
    session_evidence: tuple[str, ...],
    rows: Sequence[Mapping[str, Any]],
    row_findings: Mapping[str, Sequence[Finding]],
) -> tuple[Verdict, list[Finding]]:
    """Verdict and findings of one session.

    Expected is always: the server's life, the configuration read back, every due gate on both sides, at
    least one load, and the client's part. ``rows`` are the session's repeats and windows (not the pooled
    ones).
    """
    findings = []
    if start is not None:
        findings.append(judge_stage(Stage.START_SERVER, start))
    if readback is not None:
        verdicts = {ScreenResult.PASS: Verdict.PASS, ScreenResult.FAIL: Verdict.FAIL}
        verdict = verdicts.get(ScreenResult(readback.verdict), Verdict.NOT_RUN)
        findings.append(
            Finding("config_readback", readback.measured, 0, verdict, readback.evidence, readback.detail)
        )
    findings += judge_gates(summaries, due, gate_evidence)
    findings += [judge_load(row, row_findings.get(row["row_id"], ())) for row in rows]
    reasons = [word for row in rows for word in row["reasons"]] + list((start or {}).get("reasons") or ())
    findings += [judge_server(session, reasons, session_evidence), judge_client(rows)]
    expected = {"server", "client", "config_readback"}
    expected |= {f"gate_{when}:{kind}" for when in due for kind in due[when]}
    if not any(due.values()):
        why = "the policy selects no task"
        findings.append(Finding("gates", 0, "at least one gate", Verdict.FAIL, detail=why))
    if not rows:
        expected.add("load")
    return conclude(findings, expected)


def judge_leg(
    planned: Sequence[str], rows: Mapping[str, Mapping[str, Any]], runs: Mapping[str, Verdict]
) -> Verdict:
    """A leg passes when every planned repeat and window has a row whose own run passed and which itself is
    sound.

    ``rows`` by row id, ``runs`` by session id.
    """
    found = []
    for row_id in planned:
        row = rows.get(row_id)
        if row is None:
            found.append(Verdict.NOT_RUN)
            continue
        found.append(runs.get(row["session_id"], Verdict.NOT_RUN))
        if row["invalid"]:
            found.append(Verdict.INVALID)
    return combine(found)
