"""cards.json: one evidence card per claim, with the conditions under which the figure holds.

A condition that the records do not tell is "not specified"; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.extract.rows import Row, build_rows
from assay.records.campaign import Campaign, open_campaign
from assay.records.files import write_json
from assay.verdict.spread import summarise_repeats

NOT_SPECIFIED = "not specified"
CLAIMS = {
    "output_tok_s": ("output throughput", "tokens/s", "last end - first send, drain included"),
    "ttft_ms_p50": ("time to first token, p50", "ms", "per request: first token - send"),
    "tpot_ms_p50": ("time per output token, p50", "ms", "per request: (last - first token) / later tokens"),
    "served_rate_tok_s_p50": (
        "served rate, p50",
        "tokens/s",
        "whole request wall clock including the first token",
    ),
}
_FLAG_NAMES = {
    "parallelism": (
        "tensor_parallel_size",
        "tp_size",
        "tp",
        "data_parallel_size",
        "pipeline_parallel_size",
        "ep_size",
    ),
    "kv_dtype": ("kv_cache_dtype", "cache_type_k", "kv_dtype"),
    "prefix_cache": ("enable_prefix_caching", "cache_prompt", "disable_radix_cache"),
    "draft": ("speculative_config", "speculative_algorithm", "spec_type"),
    "max_sequences": ("max_num_seqs", "max_running_requests", "parallel"),
}


def _setting(names: Sequence[str], flags: Mapping[str, Any], read: Mapping[str, Any]) -> Any:
    """The settings of a group by their own names, read back where the server tells, else as asked."""
    found = {}
    for name in names:
        value = read.get(name) if read.get(name) is not None else flags.get(name)
        if value is not None:
            found[name] = value
    return found or NOT_SPECIFIED


def describe_system(campaign: Campaign) -> tuple[Any, Any]:
    """(one line on the machine, number of nodes) from the probe's receipt."""
    for receipt in campaign.of_stage("probe_topology"):
        topology = receipt.body.get("topology") or {}
        cpu, gpus = topology.get("cpu") or {}, topology.get("gpus") or []
        parts = []
        if gpus:
            names = sorted({str(gpu.get("name")) for gpu in gpus})
            parts.append(f"{len(gpus)} x {', '.join(names)}")
        if cpu.get("model"):
            parts.append(f"{cpu['model']}, {cpu.get('threads') or 'unknown'} logical CPUs")
        if topology.get("memory_mib"):
            parts.append(f"{topology['memory_mib'] / 1024:.0f} GiB memory")
        return ("; ".join(parts) or NOT_SPECIFIED), 1
    return NOT_SPECIFIED, NOT_SPECIFIED


def _known(value: Any) -> Any:
    return NOT_SPECIFIED if value is None else value


def make_card(campaign: Campaign, rows: Sequence[Row], metric: str) -> dict[str, Any] | None:
    """The card of one claim: one arm, one point, one metric; None when no row has a value that can be
    trusted."""
    used = [row for row in rows if row[metric] is not None and not row["invalid"]]
    if not used:
        return None
    first = used[0]
    plan, arm = campaign.plan, campaign.plan["arms"][first["arm"]]
    record = first.load.record if first.load else None
    readback = (record.readback if record else None) or {}
    read, capacity = readback.get("read") or {}, readback.get("capacity") or {}
    flags = arm.get("flags") or {}
    name, unit, denominator = CLAIMS[metric]
    spread = summarise_repeats([row[metric] for row in used])
    system, nodes = describe_system(campaign)
    parts = "windows" if first["kind"] == "window" else "repeats"
    statistic = f"median of {spread['n']} {parts}" if spread["n"] > 1 else "single run"
    warm_up = campaign.of_leg(first["leg"], "warm_up")
    shapes = ((warm_up.body.get("spec") or {}).get("warm_up") or {}).get("shapes") if warm_up else None
    return {
        "claim": {
            "configuration": first["arm"],
            "point_id": first["point_id"],
            "metric": metric,
            "name": name,
            "value": spread["median"],
            "unit": unit,
            "statistic": statistic,
            "n": spread["n"],
            "min": spread["min"],
            "max": spread["max"],
            "spread_ratio": spread["spread_ratio"],
            "publishable": all(row["publishable"] for row in rows),
            "reasons": sorted({word for row in rows for word in row["reasons"]}),
            "excluded_rows": [row["row_id"] for row in rows if row not in used],
        },
        "conditions": {
            "system": system,
            "node_count": nodes,
            "gpus": arm.get("gpus"),
            "parallelism": _setting(_FLAG_NAMES["parallelism"], flags, read),
            "kv_dtype": _setting(_FLAG_NAMES["kv_dtype"], flags, read),
            "kv_pool_tokens": _known(capacity.get("kv_tokens")),
            "context_limit_tokens": _known(plan.get("context_tokens")),
            "experiment_date": str(first["t_start_utc"])[:10] if first["t_start_utc"] else NOT_SPECIFIED,
            "output_tokens": _known(first["max_tokens"]),
            "ignore_eos": bool(first["ignore_eos"]),
            "prefix_cache": _setting(_FLAG_NAMES["prefix_cache"], flags, read),
            "max_sequences": _setting(_FLAG_NAMES["max_sequences"], flags, read),
            "warmup": f"{len(shapes)} shapes, full generation" if shapes else NOT_SPECIFIED,
            "repetitions": spread["n"],
            "concurrency": first["concurrency"],
            "measurement_denominator": denominator,
            "workload": first["workload"],
            "requests": sum(row["n_issued"] or 0 for row in used),
            "stand_in_prompts": bool(first["stand_in_prompts"]),
            "model": _known(first["model"]),
            "engine": _known(first["engine"]),
            "engine_version": _known(readback.get("engine_version")),
            "image": _known(first["image"]),
            "draft": _setting(_FLAG_NAMES["draft"], flags, read),
        },
        "evidence": {
            "row_ids": [row["row_id"] for row in rows],
            "run_ids": sorted({row["run_id"] for row in rows if row["run_id"]}),
        },
    }


def make_cards(campaign: Campaign, rows: Sequence[Row]) -> dict[str, Any]:
    """A card per arm, point and claim."""
    cards = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        for point_id in campaign.plan["points"]:
            behind = [
                row
                for row in rows
                if (row["arm"], row["point_id"]) == (arm, point_id) and row["kind"] != "pooled"
            ]
            for metric in CLAIMS:
                card = make_card(campaign, behind, metric) if behind else None
                if card is not None:
                    cards.append(card)
    return {
        "schema": "assay/cards/1",
        "campaign": campaign.name,
        "title": campaign.plan.get("title"),
        "cards": cards,
    }


def write(campaign_dir: Path, cards_json: Path) -> None:
    """Write cards.json."""
    campaign = open_campaign(campaign_dir)
    write_json(cards_json, make_cards(campaign, build_rows(campaign)))
