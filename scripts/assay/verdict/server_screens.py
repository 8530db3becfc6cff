"""The row screens on what stands around the load: gates, the client, the server's configuration, clocks,
places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

from assay.verdict.findings import Finding
from assay.verdict.record import WHENS, LoadRecord
from assay.verdict.screens import FAIL, NOT_CHECKED, PASS, Limits, unknown
from assay.vocab import GateKind, GateOutcome, Screen

GATE_SCREENS = {
    Screen.NEEDLE_GATE: GateKind.NEEDLE,
    Screen.JSON_GATE: GateKind.JSON,
    Screen.TOOL_GATE: GateKind.TOOL,
    Screen.CODE_GATE: GateKind.CODE,
}
THROTTLE_BITS = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
}
"""NVML's clock event reasons that mean a GPU was held back (nvml.h: nvmlClocksEventReason*)."""


def score(kind_summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """{"pass": n, "n": n, "outcomes": {outcome: n > 0}} of one kind's summary; None when there is none."""
    if kind_summary is None:
        return None
    counts = kind_summary.get("counts") or {}
    return {
        "pass": int(counts.get(GateOutcome.PASS, 0)),
        "n": int(kind_summary.get("n", 0)),
        "outcomes": {str(name): int(n) for name, n in sorted(counts.items()) if n},
    }


def screen_gate(record: LoadRecord, limits: Limits, screen: Screen) -> Finding:
    """One kind of gate before and after the load, both in the row's own session.

    ``limits[screen]["when"]`` lists the sides that owe this kind. A side whose kind has zero tasks fails; a
    side without a summary is unknown. A failing side fails the screen whatever the other one says.
    """
    kind = GATE_SCREENS[screen]
    due = list((limits.get(screen) or {}).get("when") or WHENS)
    sides = {when: (record.gates.get(when) or {}).get("kinds", {}).get(kind) for when in WHENS}
    measured = {when: score(side) for when, side in sides.items()}
    thresholds = {when: side.get("threshold") for when, side in sides.items() if side is not None}
    evidence = record.paths("gates_before", "gates_after", "gates_mixed")
    bad = [
        when
        for when, side in sides.items()
        if side is not None and (not side.get("n") or side.get("verdict") != PASS)
    ]
    if bad:
        outcomes = sorted(
            {o for when in bad for o in (measured[when] or {}).get("outcomes", {}) if o != GateOutcome.PASS}
        )
        empty = any(not (measured[when] or {}).get("n") for when in bad)
        why = f"{' and '.join(bad)} the load: " + ("no task was judged" if empty else ", ".join(outcomes))
        return Finding(screen, measured, thresholds, FAIL, evidence, why)
    # A side that was never judged at all may hide a failure; one that was judged without this kind did not owe it.
    absent = [
        when for when in WHENS if record.gates.get(when) is None or (when in due and sides[when] is None)
    ]
    if absent or not thresholds:
        why = f"no {kind} tasks {' and '.join(absent) or 'at all'}"
        return Finding(screen, measured, thresholds, NOT_CHECKED, evidence, why)
    return Finding(screen, measured, thresholds, PASS, evidence)


def screen_readback(record: LoadRecord, limits: Limits) -> Finding:
    """What the server says it runs against what was asked. No key compared is no check."""
    if record.readback is None:
        return unknown(Screen.CONFIG_READBACK, "the configuration was not read back", threshold=0)
    asked, read = record.readback.get("asked") or {}, record.readback.get("read") or {}
    mismatches = [
        {"key": entry.get("key"), "asked": entry.get("asked"), "read": entry.get("read")}
        for entry in record.readback.get("mismatches") or ()
    ]
    compared = sorted(key for key in asked if read.get(key) is not None)
    measured = {
        "asked": len(asked),
        "compared": len(compared),
        "mismatches": mismatches,
        "unread": sorted(record.readback.get("unread") or set(asked) - set(compared)),
    }
    evidence = record.paths("readback")
    if mismatches:
        keys = ", ".join(str(entry["key"]) for entry in mismatches)
        return Finding(
            Screen.CONFIG_READBACK,
            measured,
            0,
            FAIL,
            evidence,
            f"the server does not run what was asked: {keys}",
        )
    if not compared:
        return Finding(
            Screen.CONFIG_READBACK, measured, 0, NOT_CHECKED, evidence, "no asked key could be read back"
        )
    return Finding(Screen.CONFIG_READBACK, measured, 0, PASS, evidence)


def screen_placement(record: LoadRecord, limits: Limits) -> Finding:
    """Ranks inside the declared island, pinned as declared: the session's own comparison."""
    if record.placement is None or not record.placement.get("declared"):
        return unknown(Screen.PLACEMENT, "no placement was declared or observed", threshold=0)
    mismatches = record.placement.get("mismatches")
    measured = {"declared": record.placement["declared"], "observed": record.placement.get("observed")}
    evidence = record.paths("placement")
    if mismatches:
        return Finding(
            Screen.PLACEMENT,
            measured | {"mismatches": mismatches},
            0,
            FAIL,
            evidence,
            "not where it was declared",
        )
    if mismatches is None or not record.placement.get("observed"):
        return Finding(Screen.PLACEMENT, measured, 0, NOT_CHECKED, evidence, "the placement was not observed")
    return Finding(Screen.PLACEMENT, measured, 0, PASS, evidence)


def screen_clocks(record: LoadRecord, limits: Limits) -> Finding:
    """SM clocks during the phase: a GPU whose median is under its peers', or any sample with a throttle
    reason.

    ``drop_share_max`` is against the median of the other GPUs' medians; ``throttled_share_max`` is the
    share of samples of one GPU that may carry one of ``throttle_reasons``.
    """
    limit = limits[Screen.CLOCK_SCREEN]
    if not record.gpu_samples:
        return unknown(Screen.CLOCK_SCREEN, "no GPU was sampled during the phase", threshold=dict(limit))
    mask = sum(THROTTLE_BITS[name] for name in limit["throttle_reasons"])
    clocks: dict[str, list[float]] = defaultdict(list)
    reasons: dict[str, list[int]] = defaultdict(list)
    for sample in record.gpu_samples:
        uuid = str(sample.get("uuid"))
        if sample.get("sm_clock_mhz") is not None:
            clocks[uuid].append(float(sample["sm_clock_mhz"]))
        if sample.get("throttle_reasons") is not None:
            reasons[uuid].append(int(sample["throttle_reasons"]))
    medians = {uuid: median(values) for uuid, values in clocks.items()}
    gpus, slow = {}, []
    for uuid in sorted({*clocks, *reasons}):
        others = [value for other, value in medians.items() if other != uuid]
        drop = (
            1 - medians[uuid] / median(others) if others and uuid in medians and median(others) > 0 else None
        )
        held = [value & mask for value in reasons[uuid]]
        share = sum(1 for value in held if value) / len(held) if held else None
        seen_bits = 0
        for value in held:
            seen_bits |= value
        names = [name for name, bit in THROTTLE_BITS.items() if seen_bits & bit]
        gpus[uuid] = {
            "sm_clock_mhz": medians.get(uuid),
            "drop_share": drop,
            "throttled_share": share,
            "reasons": names,
        }
        if (drop is not None and drop > limit["drop_share_max"]) or (share or 0.0) > limit[
            "throttled_share_max"
        ]:
            slow.append(f"{uuid}: {', '.join(names) or f'{drop:.0%} under its peers'}")
    evidence = record.paths("telemetry")
    if slow:
        return Finding(Screen.CLOCK_SCREEN, gpus, dict(limit), FAIL, evidence, "; ".join(slow))
    if not clocks or not all(reasons.values()) or any(uuid not in reasons for uuid in clocks):
        return Finding(
            Screen.CLOCK_SCREEN,
            gpus,
            dict(limit),
            NOT_CHECKED,
            evidence,
            "clocks or reasons could not be read",
        )
    return Finding(Screen.CLOCK_SCREEN, gpus, dict(limit), PASS, evidence)
