"""The row screens on the requests of a load: each a pure function of the record, each with its measured
value.

``limits`` are the thresholds of the publication policy (config/publication). A screen passes only on
evidence it has seen: missing evidence is ``not_checked``. The screens on gates and on the server stand in
``server_screens``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.verdict.facts import RequestFacts
from assay.verdict.findings import Finding
from assay.verdict.record import LoadRecord, asked_thinking
from assay.vocab import Screen, ScreenResult

Limits = Mapping[str, Mapping[str, Any]]
PASS, FAIL, NOT_CHECKED = ScreenResult.PASS, ScreenResult.FAIL, ScreenResult.NOT_CHECKED


def unknown(screen: Screen, why: str, *, measured: Any = None, threshold: Any = None) -> Finding:
    """A screen whose evidence is missing."""
    return Finding(screen, measured, threshold, NOT_CHECKED, detail=why)


def seen(record: LoadRecord) -> RequestFacts | None:
    """The facts, when there was at least one request to look at."""
    return record.facts if record.facts is not None and record.facts.issued > 0 else None


def screen_cache(record: LoadRecord, limits: Limits) -> Finding:
    """Prefill faster than ``prefill_tok_s_max`` is implausible without a cache; and the server's own hit
    counts.

    The hit counts come from the server's counters, else from the usage of every ok request. Without either
    only the speed is known, which short prompts escape: then the answer is ``not_checked`` unless the
    speed fails. Where the point wants the prefix cache, known hits pass, however many there are.
    """
    limit = limits[Screen.CACHE_SCREEN]
    facts = seen(record)
    if facts is None or facts.ok == 0:
        return unknown(Screen.CACHE_SCREEN, "no ok request", threshold=dict(limit))
    delta = (record.counters or {}).get("delta") or {}
    hits, prompts = delta.get("cached_prompt_tokens"), delta.get("prompt_tokens")
    source: str | None = "server counters"
    if hits is None:
        hits, prompts, source = None, None, None
        if facts.ok_cached_known == facts.ok:
            hits, prompts, source = (
                facts.ok_cached_tokens,
                facts.ok_prompt_tokens,
                "usage of every ok request",
            )
    # A server may count a cached token as read or leave it out; the larger base never overstates the share.
    base = max(prompts or 0, facts.ok_prompt_tokens, hits or 0)
    share = hits / base if hits is not None and base else (0.0 if hits == 0 else None)
    measured = {
        "prefill_tok_s_max": facts.ok_prefill_tok_s_max,
        "hit_tokens": hits,
        "hit_share": share,
        "hits_from": source,
    }
    speed = facts.ok_prefill_tok_s_max
    evidence = record.paths("requests", "counters")
    if record.point.get("prefix_cache_wanted"):
        why = "the prefix cache is part of what is measured" + (
            ", and its hits are unknown" if share is None else ""
        )
        verdict = NOT_CHECKED if share is None else PASS
        return Finding(Screen.CACHE_SCREEN, measured, dict(limit), verdict, evidence, why)
    too_fast = speed is not None and speed > limit["prefill_tok_s_max"]
    warm = share is not None and share > limit["hit_share_max"]
    if too_fast or warm:
        why = (
            "prompt read faster than an uncached prefill can be" if too_fast else "the prefix cache was warm"
        )
        return Finding(Screen.CACHE_SCREEN, measured, dict(limit), FAIL, evidence, why)
    if speed is None or share is None:
        why = "no prefill speed is known" if speed is None else "the server's cache hits are unknown"
        return Finding(Screen.CACHE_SCREEN, measured, dict(limit), NOT_CHECKED, evidence, why)
    return Finding(Screen.CACHE_SCREEN, measured, dict(limit), PASS, evidence)


def screen_failures(record: LoadRecord, limits: Limits) -> Finding:
    """Share of issued requests that did not end ok; issued = ok + failed + incomplete is checked here."""
    limit = limits[Screen.FAILURE_RATE]
    if record.facts is None:
        return unknown(Screen.FAILURE_RATE, "no table of requests", threshold=dict(limit))
    facts = record.facts
    told = ((record.client or {}).get("requests") or {}).get("issued")
    measured = {
        "issued": facts.issued,
        "ok": facts.ok,
        "failed": facts.failed,
        "incomplete": facts.incomplete,
        "not_ok_share": (facts.issued - facts.ok) / facts.issued if facts.issued else None,
        "error_classes": dict(sorted(facts.error_classes.items())),
    }
    evidence = record.paths("requests", "client")
    if facts.issued == 0:
        return Finding(Screen.FAILURE_RATE, measured, dict(limit), FAIL, evidence, "no request was issued")
    if facts.other_status:
        why = "issued is not ok + failed + incomplete"
        return Finding(Screen.FAILURE_RATE, measured, dict(limit), FAIL, evidence, why)
    if isinstance(told, int) and told != facts.issued:
        why = f"the client issued {told} requests, the table has {facts.issued}"
        return Finding(Screen.FAILURE_RATE, measured, dict(limit), FAIL, evidence, why)
    bad = measured["not_ok_share"] > limit["not_ok_share_max"]
    return Finding(Screen.FAILURE_RATE, measured, dict(limit), FAIL if bad else PASS, evidence)


def screen_output_length(record: LoadRecord, limits: Limits) -> Finding:
    """Requests that ignored the end of sequence have exactly the length asked; the others no more than it."""
    limit = limits[Screen.OUTPUT_LENGTH]
    facts = seen(record)
    if facts is None or facts.ok == 0:
        return unknown(Screen.OUTPUT_LENGTH, "no ok request", threshold=dict(limit))
    evidence = record.paths("requests")
    promised = bool(record.point.get("ignore_eos"))
    measured = {
        "ok": facts.ok,
        "length_known": facts.ok_output_known,
        "over_requested": facts.ok_output_over_requested,
        "forced": facts.forced,
        "forced_short": facts.forced_short,
    }
    if facts.ok_output_over_requested:
        why = "more tokens than were asked for"
        return Finding(Screen.OUTPUT_LENGTH, measured, dict(limit), FAIL, evidence, why)
    if promised and facts.forced < facts.ok:
        why = "the point ignores the end of sequence, but not every request was sent so"
        return Finding(Screen.OUTPUT_LENGTH, measured, dict(limit), FAIL, evidence, why)
    if facts.forced and facts.forced_short > limit["short_share_max"] * facts.forced:
        why = "the server stopped before the length that was forced"
        return Finding(Screen.OUTPUT_LENGTH, measured, dict(limit), FAIL, evidence, why)
    if facts.ok_output_known < facts.ok or facts.forced_unknown:
        why = "the output length of some requests is unknown"
        return Finding(Screen.OUTPUT_LENGTH, measured, dict(limit), NOT_CHECKED, evidence, why)
    return Finding(Screen.OUTPUT_LENGTH, measured, dict(limit), PASS, evidence)


def screen_input_length(record: LoadRecord, limits: Limits) -> Finding:
    """The server's prompt tokens against the plan, per ok request: within ``off_tokens_max`` or
    ``off_share_max``."""
    limit = limits[Screen.INPUT_LENGTH]
    facts = seen(record)
    if facts is None or facts.planned_known == 0:
        return unknown(Screen.INPUT_LENGTH, "no planned or no served prompt length", threshold=dict(limit))
    measured = {
        "compared": facts.planned_known,
        "ok": facts.ok,
        "off_tokens_max": facts.planned_off_max_tokens,
        "off_share_max": facts.planned_off_max_share,
    }
    return _near(
        Screen.INPUT_LENGTH,
        measured,
        limit,
        record.paths("requests"),
        complete=facts.planned_known == facts.ok,
        why="the server read another prompt length than planned",
    )


def screen_token_count(record: LoadRecord, limits: Limits) -> Finding:
    """Output tokens as the server counts them against the tokenizer's count of the text received."""
    limit = limits[Screen.TOKEN_COUNT_AGREEMENT]
    facts = seen(record)
    if facts is None or facts.counted_twice == 0:
        why = "the output was not counted twice"
        return unknown(Screen.TOKEN_COUNT_AGREEMENT, why, threshold=dict(limit))
    measured = {
        "compared": facts.counted_twice,
        "ok": facts.ok,
        "off": facts.count_off,
        "off_tokens_max": facts.count_off_max_tokens,
        "off_share_max": facts.count_off_max_share,
    }
    return _near(
        Screen.TOKEN_COUNT_AGREEMENT,
        measured,
        limit,
        record.paths("requests"),
        complete=facts.counted_twice == facts.ok,
        why="the server's count and the tokenizer's differ",
    )


def _near(
    screen: Screen,
    measured: dict[str, Any],
    limit: Mapping[str, Any],
    evidence: tuple[str, ...],
    *,
    complete: bool,
    why: str,
) -> Finding:
    """Pass when the largest difference is small in tokens or small as a share, on every ok request."""
    off_share = measured["off_share_max"]
    near = measured["off_tokens_max"] <= limit["off_tokens_max"] or (
        off_share is not None and off_share <= limit["off_share_max"]
    )
    if not near:
        return Finding(screen, measured, dict(limit), FAIL, evidence, why)
    if not complete:
        return Finding(
            screen, measured, dict(limit), NOT_CHECKED, evidence, "not every ok request has both lengths"
        )
    return Finding(screen, measured, dict(limit), PASS, evidence)


def screen_thinking(record: LoadRecord, limits: Limits) -> Finding:
    """What the request asked of the model's thinking against what the streams carried."""
    limit = {"asked": asked_thinking(record)}
    facts = seen(record)
    if limit["asked"] is None:
        return unknown(Screen.THINKING_TOGGLE, "the requests asked nothing of thinking", threshold=limit)
    if facts is None or facts.thinking_known == 0:
        return unknown(Screen.THINKING_TOGGLE, "no stream was looked at for reasoning", threshold=limit)
    measured = {"issued": facts.issued, "with_reasoning": facts.thinking_requests}
    evidence = record.paths("requests")
    if limit["asked"] is False and facts.thinking_requests:
        why = "thinking was off, but reasoning came"
        return Finding(Screen.THINKING_TOGGLE, measured, limit, FAIL, evidence, why)
    if limit["asked"] is True and not facts.thinking_requests:
        why = "thinking was on, but no reasoning came"
        return Finding(Screen.THINKING_TOGGLE, measured, limit, FAIL, evidence, why)
    return Finding(Screen.THINKING_TOGGLE, measured, limit, PASS, evidence)


def screen_session(record: LoadRecord, limits: Limits) -> Finding:
    """Every request of the row belongs to the one session that the stage names."""
    facts = seen(record)
    if facts is None or record.session_id is None:
        return unknown(
            Screen.MIXED_SESSION, "no requests, or no session is named", threshold=record.session_id
        )
    measured = {name or "unnamed": count for name, count in sorted(facts.sessions.items())}
    evidence = record.paths("requests")
    if set(facts.sessions) == {""}:
        return Finding(
            Screen.MIXED_SESSION,
            measured,
            record.session_id,
            NOT_CHECKED,
            evidence,
            "requests name no session",
        )
    same = set(facts.sessions) == {record.session_id}
    why = None if same else "requests of another session are in the table"
    return Finding(Screen.MIXED_SESSION, measured, record.session_id, PASS if same else FAIL, evidence, why)
