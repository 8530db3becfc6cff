"""Find a GPU that runs slower than its peers under the same load, before a campaign trusts it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from assay.vocab import Verdict

LEAST_SAMPLES = 5
LEAST_UTILIZATION_PCT = 50.0
"""An idle GPU lowers its clock on purpose: only samples under load are compared."""
MOST_BELOW_PEERS = 0.05
HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "sync_boost", "display_clock_setting"})
"""Throttle reasons that do not say a GPU is held back against its peers."""


def _judge_one(
    uuid: str, loaded: list[Mapping[str, Any]], peers: list[float], unloaded: int
) -> dict[str, Any]:
    clocks = [float(sample["clock_sm_mhz"]) for sample in loaded if sample.get("clock_sm_mhz") is not None]
    reasons = sorted({name for sample in loaded for name in sample.get("throttle") or []} - HARMLESS)
    own = median(clocks) if clocks else None
    others = median(peers) if peers else None
    below = None if own is None or not others else round(1 - own / others, 6)
    detail: str | None = None
    verdict = Verdict.PASS
    if len(clocks) < LEAST_SAMPLES:
        verdict = Verdict.NOT_RUN
        detail = f"{len(clocks)} samples under load, {LEAST_SAMPLES} are needed"
    elif below is None:
        verdict, detail = Verdict.NOT_RUN, "no peer to compare with"
    elif below > MOST_BELOW_PEERS:
        verdict, detail = Verdict.FAIL, f"SM clock {below:.0%} below its peers"
    if reasons:
        verdict = Verdict.FAIL
        detail = "; ".join([*([detail] if detail else []), f"throttled: {', '.join(reasons)}"])
    return {
        "uuid": uuid,
        "n_loaded": len(clocks),
        "n_unloaded": unloaded,
        "clock_sm_median_mhz": own,
        "peers_median_mhz": others,
        "below_peers": below,
        "throttle": reasons,
        "verdict": str(verdict),
        "detail": detail,
    }


def find_slow_gpus(samples: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the SM clocks of GPUs under the same load.

    ``samples``: ``{uuid, clock_sm_mhz, utilization_pct, throttle}`` (the fields of ``nvml.read_now``), in any
    order. A GPU fails when the median of its loaded samples (utilisation of at least 50 %) lies more than 5 %
    below the median of its peers' medians, or when a throttle reason was set in one of them. Too few loaded
    samples, or no peer, is ``not_run``. Returns ``{gpus: [...], verdict}``; without any sample ``not_run``.
    """
    loaded: dict[str, list[Mapping[str, Any]]] = {}
    unloaded: dict[str, int] = {}
    for sample in samples:
        uuid = str(sample["uuid"])
        loaded.setdefault(uuid, [])
        use = sample.get("utilization_pct")
        if use is not None and use >= LEAST_UTILIZATION_PCT:
            loaded[uuid].append(sample)
        else:
            unloaded[uuid] = unloaded.get(uuid, 0) + 1
    medians = {}
    for uuid, own in loaded.items():
        clocks = [float(sample["clock_sm_mhz"]) for sample in own if sample.get("clock_sm_mhz") is not None]
        if len(clocks) >= LEAST_SAMPLES:
            medians[uuid] = median(clocks)
    gpus = [
        _judge_one(
            uuid, loaded[uuid], [m for other, m in medians.items() if other != uuid], unloaded.get(uuid, 0)
        )
        for uuid in sorted(loaded)
    ]
    verdicts = {gpu["verdict"] for gpu in gpus}
    worst = (
        Verdict.FAIL
        if Verdict.FAIL in verdicts
        else Verdict.NOT_RUN
        if Verdict.NOT_RUN in verdicts
        else Verdict.PASS
    )
    return {"gpus": gpus, "verdict": str(worst if gpus else Verdict.NOT_RUN)}
