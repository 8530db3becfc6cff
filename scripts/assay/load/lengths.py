"""Was each request as long as it was to be, and was it sent when it was due? Read from the finished table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.metrics.latency import Floats, column, difference_ms, statuses
from assay.records.requests import read_requests
from assay.vocab import LoadScreen, RequestStatus, Screen, ScreenResult

INPUT_OFF_TOKENS = 16
INPUT_OFF_SHARE = 0.05
COUNT_OFF_TOKENS = 2
COUNT_OFF_SHARE = 0.05
LATE_SHARE = 0.1
"""An open loop whose late requests are later than a tenth of the phase offered another load than asked."""
LATE_FLOOR_MS = 50.0
_COLUMNS = [
    *("status", "finish_reason", "n_output", "n_output_source", "n_output_tokenizer", "n_requested"),
    *("ignore_eos", "n_prompt", "n_planned_prompt", "t_scheduled_ns", "t_send_ns"),
]

Mask = NDArray[np.bool_]


def length_screens(requests: Path, rate_per_s: float | None, phase_s: float | None) -> list[dict[str, Any]]:
    """The screens ``output_length``, ``input_length``, ``token_count_agreement`` and ``schedule_kept``.

    ``rate_per_s`` is that of an open loop, ``phase_s`` how long requests were issued.
    """
    table = read_requests(requests, _COLUMNS)
    ok = statuses(table) == RequestStatus.OK.value
    output, requested = column(table, "n_output"), column(table, "n_requested")
    forced = np.asarray(table.column("ignore_eos").to_pylist(), dtype=bool) & ok & ~np.isnan(requested)
    at_length = np.asarray(table.column("finish_reason").to_pylist(), dtype=object) == "length"
    return [
        _output_length(ok, forced, at_length, output, requested),
        _near(Screen.INPUT_LENGTH, ok, column(table, "n_prompt"), column(table, "n_planned_prompt")),
        _near(
            Screen.TOKEN_COUNT_AGREEMENT,
            ok & (np.asarray(table.column("n_output_source").to_pylist(), dtype=object) == "usage"),
            output,
            column(table, "n_output_tokenizer"),
        ),
        _schedule_kept(
            difference_ms(table, "t_send_ns", "t_scheduled_ns"),
            statuses(table) == RequestStatus.INCOMPLETE.value,
            rate_per_s,
            phase_s,
        ),
    ]


def _screen(
    name: str, good: bool | None, measured: dict[str, Any], threshold: Any, reason: str | None
) -> dict[str, Any]:
    result = ScreenResult.NOT_CHECKED if good is None else ScreenResult.PASS if good else ScreenResult.FAIL
    screen = {"name": name, "result": result.value, "measured": measured, "threshold": threshold}
    return screen if reason is None else screen | {"reason": reason}


def _output_length(
    ok: Mask, forced: Mask, at_length: Mask, output: Floats, requested: Floats
) -> dict[str, Any]:
    known = ok & ~np.isnan(output)
    over = known & (output > requested)
    short = forced & (~at_length | (known & (output < requested)))
    measured = {
        "ok": int(ok.sum()),
        "length_known": int(known.sum()),
        "over_requested": int(over.sum()),
        "forced": int(forced.sum()),
        "forced_short": int(short.sum()),
    }
    threshold = {"over_requested": 0, "forced_short": 0}
    name = Screen.OUTPUT_LENGTH.value
    if over.any():
        return _screen(name, False, measured, threshold, "more output tokens were counted than asked for")
    if short.any():
        why = "output ended before the length that was forced"
        return _screen(name, False, measured, threshold, why)
    if not known.any() or (forced & ~known).any():
        return _screen(name, None, measured, threshold, "the output length of some requests is unknown")
    return _screen(name, True, measured, threshold, None)


def _near(screen: Screen, ok: Mask, told: Floats, wanted: Floats) -> dict[str, Any]:
    """Pass when the largest difference is small in tokens or small as a share of what was wanted."""
    tokens, share = (
        (INPUT_OFF_TOKENS, INPUT_OFF_SHARE)
        if screen is Screen.INPUT_LENGTH
        else (COUNT_OFF_TOKENS, COUNT_OFF_SHARE)
    )
    both = ok & ~np.isnan(told) & ~np.isnan(wanted)
    threshold = {"off_tokens_max": tokens, "off_share_max": share}
    if not both.any():
        measured: dict[str, Any] = {"compared": 0, "ok": int(ok.sum())}
        return _screen(screen.value, None, measured, threshold, "there are no two counts to compare")
    off = np.abs(told[both] - wanted[both])
    shares = off / np.maximum(wanted[both], 1)
    is_off = (off > tokens) & (shares > share)
    measured = {
        "compared": int(both.sum()),
        "ok": int(ok.sum()),
        "off": int(is_off.sum()),
        "off_tokens_max": int(off.max()),
        "off_share_max": float(shares.max()),
    }
    reason = None if not is_off.any() else "the server's count is another"
    return _screen(screen.value, not is_off.any(), measured, threshold, reason)


def _schedule_kept(
    delays_ms: Floats, incomplete: Mask, rate_per_s: float | None, phase_s: float | None
) -> dict[str, Any]:
    name = LoadScreen.SCHEDULE_KEPT.value
    if rate_per_s is None or not phase_s or not len(delays_ms):
        return _screen(name, None, {}, None, "there is no schedule: the loop is closed, or nothing was due")
    sent = ~np.isnan(delays_ms)
    unsent = incomplete & ~sent  # one without a connection was tried when it was due: the server failed it
    if not sent.any() and not unsent.any():
        return _screen(name, None, {}, None, "no request found a connection")
    p99 = float(np.percentile(delays_ms[sent], 99)) if sent.any() else None
    limit_ms = max(LATE_SHARE * phase_s * 1e3, 1e3 / rate_per_s, LATE_FLOOR_MS)
    measured = {"n": len(delays_ms), "delay_p99_ms": p99, "never_sent": int(unsent.sum())}
    threshold = {"delay_p99_ms": limit_ms, "never_sent": 0}
    late = p99 is None or p99 > limit_ms
    reason = None
    if unsent.any():
        reason = f"{int(unsent.sum())} requests were due and never sent"
    elif late:
        reason = "requests were sent long after they were due"
    return _screen(name, reason is None, measured, threshold, reason)
