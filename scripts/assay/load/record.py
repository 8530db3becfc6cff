"""The object of ``client.json``; docs/metrics.md has its fields."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.load import proof
from assay.load.issue import START_GAP_NS
from assay.load.processes import Crew
from assay.load.spec import LoadSpec, public_spec
from assay.vocab import LoadScreen, Reason, RequestStatus, Screen, ScreenResult, StageState

START_GRACE_NS = 50_000_000
"""A stream of a closed loop that starts later than planned by more than this was not in flight when asked."""


def client_record(
    *,
    spec: LoadSpec,
    facts: dict[str, Any],
    crew: Crew,
    counts: dict[str, int],
    n_opening: int,
    n_resent: int,
    sends: NDArray[np.int64],
    ends: NDArray[np.int64],
    t_last_end_ns: int | None,
    sources: dict[str, int],
    n_prompts: int,
    n_prompts_used: int,
    torn_bytes: int,
    why_not_counted: str | None,
    gauge_samples: list[dict[str, Any]],
    more_screens: list[dict[str, Any]],
    n_loose: int,
) -> dict[str, Any]:
    """Put the facts together and judge them: state, reasons, the screens of the load itself."""
    done = [{"process": member.number, **member.done} for member in crew.members if member.done is not None]
    refused = crew.refused
    n_issued = sum(counts.values())
    requests = {"issued": n_issued} | {status.value: counts.get(status.value, 0) for status in RequestStatus}
    times, levels = proof.in_flight_steps(sends, ends)
    start_ns, issue_end_ns = facts["t_start_ns"], facts["t_issue_end_ns"]
    screens = [_reached(spec, times, levels, start_ns, issue_end_ns, gauge_samples)]
    screens.append(proof.client_bound(done, crew.samples))
    screens += more_screens
    state, reasons, detail = _judge(requests, screens, refused, facts.get("detail"), spec.judge_all)
    end_ns = t_last_end_ns or facts.get("t_done_ns") or 0
    before, after = facts.pop("pressure_before", None), facts.pop("pressure_after", None)
    wall_s = (facts["t_done_ns"] - start_ns) / 1e9 if start_ns is not None and "t_done_ns" in facts else 0.0
    return {
        "schema": "assay/client/1",
        "state": state.value,
        "reasons": [reason.value for reason in reasons],
        "detail": detail,
        "spec": public_spec(spec),
        "schedule": {
            "loop": "open" if spec.is_open_loop else "closed",
            "arrivals": spec.arrivals if spec.is_open_loop else None,
            "rate_per_s": spec.rate_per_s,
            "burstiness": spec.burstiness if spec.is_open_loop and spec.arrivals == "gamma" else None,
            "seed": spec.seed,
            "ramp_s": spec.ramp_s,
            "opening_per_stream": spec.opening_per_stream,
        },
        "prompts": {
            "n": n_prompts,
            "n_used": n_prompts_used,
            "order": "the file's order, cycled",
            "cycled": n_issued > n_prompts,
        },
        "requests": requests,
        "n_resent": n_resent,
        "n_loose_json_events": n_loose,
        "opening": {"issued": n_opening} if spec.has_opening else None,
        "phase": {name: facts.get(name) for name in ("anchor", "barrier", "t_start_ns", "t_issue_end_ns")}
        | {"t_end_ns": t_last_end_ns},
        "in_flight": {
            "max": int(levels.max()) if len(levels) else 0,
            "trace": proof.trace(times, levels, start_ns or 0, end_ns),
        },
        "server_gauges": gauge_samples,
        "screens": {screen["name"]: screen for screen in screens},
        "health": {
            "processes": done,
            "samples": crew.samples,
            "pressure_share": proof.pressure_share(before, after, wall_s) if before and after else None,
        },
        "timestamps": {
            "sources": sources,
            "clock_uncertainty_ns": max((process["clock_uncertainty_ns"] for process in done), default=None),
            "clock_steps": sum(process["clock_steps"] for process in done),
            "send_stamp": "user space, before the first byte of the request is handed to the kernel",
        },
        "tokenizer": {"asked": spec.tokenizer, "why_not_counted": why_not_counted},
        "journal": {"torn_bytes": torn_bytes},
    }


def _reached(
    spec: LoadSpec,
    times: NDArray[np.int64],
    levels: NDArray[np.int64],
    start_ns: int | None,
    issue_end_ns: int | None,
    gauge_samples: list[dict[str, Any]],
) -> dict[str, Any]:
    if spec.is_open_loop or start_ns is None or issue_end_ns is None:
        return {
            "name": Screen.CONCURRENCY_REACHED.value,
            "result": ScreenResult.NOT_CHECKED.value,
            "measured": {"max": int(levels.max()) if len(levels) else 0},
            "threshold": None,
            "reason": "an open loop has no concurrency to reach" if spec.is_open_loop else "nothing was sent",
        }
    late = times >= start_ns  # an opening before it may have been higher or lower
    first = int(np.argmax(late)) if late.any() else len(times)
    if first > 0:
        times = np.concatenate(([start_ns], times[first:]))
        levels = np.concatenate(([levels[first - 1]], levels[first:]))
    due_ns = start_ns + spec.concurrency * START_GAP_NS + START_GRACE_NS
    return proof.concurrency_reached(spec.concurrency, times, levels, due_ns, issue_end_ns, gauge_samples)


def _judge(
    requests: dict[str, int],
    screens: list[dict[str, Any]],
    refused: str | None,
    detail: str | None,
    judge_all: bool,
) -> tuple[StageState, list[Reason], str | None]:
    reasons = []
    if refused is not None or requests["issued"] == 0:
        reasons.append(Reason.CLIENT_REFUSED)
    failing = {screen["name"] for screen in screens if screen["result"] == ScreenResult.FAIL.value}
    if Screen.CLIENT_BOUND.value in failing:
        reasons.append(Reason.CLIENT_BOUND)
    if Screen.CONCURRENCY_REACHED.value in failing:
        reasons.append(Reason.CONCURRENCY_NOT_REACHED)
    if judge_all and requests["ok"]:
        # Two counts may differ by the marks of reasoning and tools, which no text has: told, no verdict.
        if failing & {Screen.OUTPUT_LENGTH.value, Screen.INPUT_LENGTH.value}:
            reasons.append(Reason.LENGTH_OFF)
        if LoadScreen.SCHEDULE_KEPT.value in failing:
            reasons.append(Reason.SCHEDULE_NOT_KEPT)
    if reasons:
        return StageState.INVALID, reasons, detail or refused
    if requests["ok"] == 0:
        return StageState.FAILED, [Reason.REQUESTS_FAILED], detail or "no request succeeded"
    return StageState.COMPLETED, [], detail
