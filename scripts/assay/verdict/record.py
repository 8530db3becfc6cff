"""What one row is judged by: the facts of its requests and the records around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.verdict.facts import RequestFacts

WHENS = ("before", "after")


@dataclass(frozen=True)
class LoadRecord:
    """The evidence of one repeat or window. What is missing is None; a screen then answers
    ``not_checked``."""

    facts: RequestFacts | None
    point: Mapping[str, Any]
    """The point as the plan resolved it."""
    arm: Mapping[str, Any]
    session_id: str | None = None
    spec_point: Mapping[str, Any] = field(default_factory=dict)
    """The point as the stage was asked to run it (extra_body stands here)."""
    client: Mapping[str, Any] | None = None
    counters: Mapping[str, Any] | None = None
    readback: Mapping[str, Any] | None = None
    gates: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """The gate summaries of the row's own session: before, after."""
    gate_policy: Mapping[str, Any] = field(default_factory=dict)
    gpu_samples: list[Mapping[str, Any]] | None = None
    """NVML samples taken during the phase: [{t_ns, uuid, sm_clock_mhz, throttle_reasons}], None without a
    GPU."""
    placement: Mapping[str, Any] | None = None
    evidence: Mapping[str, str] = field(default_factory=dict)
    """role (requests, client, counters, readback, gates_before, gates_after, telemetry, session) -> path."""

    def paths(self, *roles: str) -> tuple[str, ...]:
        return tuple(self.evidence[role] for role in roles if role in self.evidence)


def asked_thinking(record: LoadRecord) -> bool | None:
    """What the requests asked of the model's thinking: True, False, or None when they said nothing."""
    body = record.spec_point.get("extra_body") or record.point.get("extra_body") or {}
    settings = body.get("chat_template_kwargs") if isinstance(body, Mapping) else None
    for place in (settings, body):
        if isinstance(place, Mapping):
            for key in ("enable_thinking", "thinking"):
                if isinstance(place.get(key), bool):
                    return bool(place[key])
    return None
