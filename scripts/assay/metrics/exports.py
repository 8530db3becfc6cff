"""The same records in the shapes other tools write, so that plots made for those keep working.

Percentiles here are the plain ones of those tools, at any n. What a peer calls by another name: ``vllm.itl``
is our ``icl``, ``aiperf.inter_token_latency`` our ``tpot``, ``guidellm.time_per_output_token`` our
``e2e / n_output`` (llm-d: ``normalized_time_per_output_token``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from assay.metrics.aggregate import summarise_phase, throughput
from assay.metrics.latency import Derived, Floats, column, derive
from assay.metrics.phase import reduce_table

_VLLM_ENDPOINTS = {"chat": "openai-chat", "completions": "openai"}
_LLMD_QUANTILES = {"p0p1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90}
_LLMD_QUANTILES |= {"p95": 95, "p99": 99, "p99p9": 99.9}


def to_vllm(table: pa.Table, phase: dict[str, Any], client: dict[str, Any]) -> dict[str, Any]:
    """The result JSON of ``vllm bench serve --save-result --save-detailed``. Lists are in the rows' order.

    Requests that are not ok have empty gaps, zero lengths and their error, as that tool writes them; it keeps
    no incomplete ones apart, so they are among ``failed``. What is not known of an ok request is null, and so
    is every total and statistic that would need it; so are a burstiness and an endpoint that the load did not
    have. ``assay_notes`` says how many and why.
    """
    derived = derive(table)
    ok = derived.ok
    rates = throughput(reduce_table(table))
    spec = client.get("spec", {})
    prompts, outputs = column(table, "n_prompt"), derived.n_output
    arrivals = f"{spec.get('arrivals')} arrivals" if spec.get("rate_per_s") else "a closed loop"
    burstiness = {"poisson arrivals": 1.0, "gamma arrivals": spec.get("burstiness")}.get(arrivals)
    notes = _unknowns(ok, n_prompt=prompts, n_output=outputs, ttft=derived.ttft_ms)
    if burstiness is None:
        notes.append(f"burstiness is null: {arrivals}")
    if spec.get("endpoint") is None:
        notes.append("endpoint_type is null: the records name none that all requests went to")
    elapsed_s = rates["elapsed_s"]
    total_in, total_out = _total(prompts[ok]), _total(outputs[ok])
    total = None if total_in is None or total_out is None else total_in + total_out
    result: dict[str, Any] = {
        "date": _utc(phase, phase.get("t_start_ns"), "%Y%m%d-%H%M%S"),
        "endpoint_type": _VLLM_ENDPOINTS.get(spec.get("endpoint")),
        "backend": _VLLM_ENDPOINTS.get(spec.get("endpoint")),
        "label": "assay",
        "model_id": spec.get("model"),
        "tokenizer_id": spec.get("tokenizer") or spec.get("model"),
        "num_prompts": table.num_rows,
        "request_rate": spec.get("rate_per_s") or "inf",
        "burstiness": burstiness,
        "max_concurrency": spec.get("concurrency") or None,
        "duration": elapsed_s,
        "completed": int(ok.sum()),
        "failed": int((~ok).sum()),
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": rates["requests_per_s"],
        "output_throughput": total_out / elapsed_s if elapsed_s and total_out is not None else None,
        "total_token_throughput": total / elapsed_s if elapsed_s and total is not None else None,
        "max_concurrent_requests": client.get("in_flight", {}).get("max"),
    }
    for name, values in (
        ("ttft", derived.ttft_ms[ok]),
        ("tpot", derived.tpot_ms[ok]),
        ("itl", derived.icl_of(ok)),
        ("e2el", derived.e2e_ms[ok]),
    ):
        known = values[~np.isnan(values)]
        for label, number in (("mean", np.mean), ("median", np.median), ("std", np.std)):
            result[f"{label}_{name}_ms"] = float(number(known)) if len(known) else None
        for quantile in (50, 90, 95, 99):
            result[f"p{quantile}_{name}_ms"] = float(np.percentile(known, quantile)) if len(known) else None
    sends = table.column("t_send_ns").to_pylist()
    return result | {
        "input_lens": _lengths(prompts, ok),
        "output_lens": _lengths(outputs, ok),
        "ttfts": _seconds(derived.ttft_ms, ok),
        "itls": [
            (derived.icl_ms[start:end] / 1e3).tolist() if good else [] for good, start, end in _gaps(derived)
        ],
        "start_times": [None if send is None else send / 1e9 for send in sends],
        "assay_notes": notes,
        "generated_texts": [""] * table.num_rows,
        "errors": ["" if good else _error(row) for good, row in zip(ok, _rows(table), strict=True)],
    }


def to_aiperf(table: pa.Table, phase: dict[str, Any]) -> Iterator[str]:
    """The lines of AIPerf's ``profile_export.jsonl``: one request each; times are epoch nanoseconds."""
    derived = derive(table)
    prompts = column(table, "n_prompt")
    for i, (row, (good, start, end)) in enumerate(zip(_rows(table), _gaps(derived), strict=True)):
        incomplete = row["status"] == "incomplete"
        metadata = {
            "session_num": i,
            "x_request_id": row["request_id"],
            "x_correlation_id": row["request_id"],
            "conversation_id": row["prompt_id"],
            "root_correlation_id": row["request_id"],
            "turn_index": 0,
            "agent_depth": 0,
            "credit_issued_ns": _epoch(phase, row["t_scheduled_ns"]),
            "request_start_ns": _epoch(phase, row["t_send_ns"] or row["t_scheduled_ns"]),
            "request_ack_ns": _epoch(phase, row["t_headers_ns"]),
            "request_end_ns": _epoch(phase, row["t_end_ns"]),
            "worker_id": f"worker_{row['worker']}",
            "record_processor_id": "assay",
            "benchmark_phase": "profiling",
            "phase_name": "profiling",
            "phase_kind": "profiling",
            "was_cancelled": incomplete,
            "cancellation_time_ns": _epoch(phase, row["t_end_ns"]) if incomplete else None,
        }
        metrics: dict[str, Any] = {}
        error = None
        if good:
            for name, value, unit in (
                ("input_sequence_length", prompts[i], "tokens"),
                ("output_sequence_length", derived.n_output[i], "tokens"),
                ("output_token_count", derived.n_output[i] - (row["n_reasoning"] or 0), "tokens"),
                ("reasoning_token_count", row["n_reasoning"], "tokens"),
                ("usage_prompt_tokens", prompts[i], "tokens"),
                ("usage_completion_tokens", derived.n_output[i], "tokens"),
                ("time_to_second_token", derived.icl_ms[start] if end > start else None, "ms"),
                ("time_to_first_token", derived.ttft_ms[i], "ms"),
                ("time_to_first_output_token", derived.ttfa_ms[i], "ms"),
                ("request_latency", derived.e2e_ms[i], "ms"),
                ("inter_token_latency", derived.tpot_ms[i], "ms"),
            ):
                if value is not None and not np.isnan(value):
                    metrics[name] = {"value": int(value) if unit == "tokens" else float(value), "unit": unit}
            metrics["inter_chunk_latency"] = {"value": derived.icl_ms[start:end].tolist(), "unit": "ms"}
            if "inter_token_latency" in metrics and derived.tpot_ms[i] > 0:
                per_user = 1e3 / float(derived.tpot_ms[i])
                metrics["output_token_throughput_per_user"] = {"value": per_user, "unit": "tokens/sec/user"}
        else:
            code = 499 if incomplete else row["http_status"]
            error = {"code": code, "type": row["error_class"] or row["status"], "message": _error(row)}
        yield json.dumps({"metadata": metadata, "metrics": metrics, "error": error}, allow_nan=False)


def to_llmd(
    table: pa.Table, phase: dict[str, Any], client: dict[str, Any], uid: str, version: str
) -> dict[str, Any]:
    """A llm-d Benchmark Report v0.2; ``uid`` names the report, ``version`` is this program's."""
    derived = derive(table)
    ok = derived.ok
    summary = summarise_phase(reduce_table(table))
    rates, counts = summary["throughput"], summary["requests"]
    spec = client.get("spec", {})
    prompts = column(table, "n_prompt")[ok]
    outputs = derived.n_output[ok]
    with np.errstate(divide="ignore", invalid="ignore"):
        per_token = np.where(outputs > 0, derived.e2e_ms[ok] / outputs, np.nan)
    known_prompts = prompts[~np.isnan(prompts)]
    total_rate = None
    if rates["prompt_tok_s"] is not None and rates["output_tok_s"] is not None:
        total_rate = rates["prompt_tok_s"] + rates["output_tok_s"]
    t_last = max((row["t_end_ns"] for row in _rows(table)), default=None)
    elapsed_s = rates["elapsed_s"]
    standardized: dict[str, Any] = {
        "tool": "assay",
        "tool_version": version,
        "source": "unknown",
    }
    if len(known_prompts):  # the form wants a length; one that no server told is left out, not invented
        standardized["input_seq_len"] = {"distribution": "other", "value": float(known_prompts.mean())}
    if spec.get("rate_per_s"):
        standardized["rate_qps"] = spec["rate_per_s"]
    elif spec.get("concurrency"):
        standardized["concurrency"] = spec["concurrency"]
    return {
        "version": "0.2",
        "run": {
            "uid": uid,
            "time": _without_none(
                {
                    "start": _utc(phase, phase.get("t_start_ns"), None),
                    "end": _utc(phase, t_last, None),
                    "duration": f"PT{elapsed_s:.6f}S" if elapsed_s else None,
                }
            ),
        },
        "scenario": {
            "load": {
                "metadata": {"schema_version": "0.0.1"},
                "standardized": standardized,
                "native": {"config": spec},
            }
        },
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": _without_none(
                        {
                            "total": counts["issued"],
                            "failures": counts["failed"],
                            "incomplete": counts["incomplete"],
                            "input_length": _statistics(prompts, "count"),
                            "output_length": _statistics(outputs, "count"),
                        }
                    ),
                    "latency": _without_none(
                        {
                            "time_to_first_token": _statistics(derived.ttft_ms[ok], "ms"),
                            "normalized_time_per_output_token": _statistics(per_token, "ms/token"),
                            "time_per_output_token": _statistics(derived.tpot_ms[ok], "ms/token"),
                            "inter_token_latency": _statistics(derived.icl_of(ok), "ms/token"),
                            "request_latency": _statistics(derived.e2e_ms[ok], "ms"),
                        }
                    ),
                    "throughput": _without_none(
                        {
                            "input_token_rate": _mean(rates["prompt_tok_s"], "tokens/s"),
                            "output_token_rate": _mean(rates["output_tok_s"], "tokens/s"),
                            "total_token_rate": _mean(total_rate, "tokens/s"),
                            "request_rate": _mean(rates["requests_per_s"], "queries/s"),
                        }
                    ),
                }
            }
        },
    }


def _statistics(values: Floats, units: str) -> dict[str, Any] | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    quantiles = np.percentile(known, list(_LLMD_QUANTILES.values()))
    result = {"units": units, "mean": float(known.mean()), "stddev": float(known.std())}
    result |= {"min": float(known.min()), "max": float(known.max())}
    return result | {name: float(value) for name, value in zip(_LLMD_QUANTILES, quantiles, strict=True)}


def _mean(value: float | None, units: str) -> dict[str, Any] | None:
    return None if value is None else {"units": units, "mean": value}


def _without_none(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value is not None}


def _seconds(values_ms: Floats, ok: NDArray[np.bool_]) -> list[float | None]:
    return [
        0.0 if not good else None if np.isnan(value) else float(value) / 1e3
        for value, good in zip(values_ms, ok, strict=True)
    ]


def _lengths(values: Floats, ok: NDArray[np.bool_]) -> list[int | None]:
    return [
        (None if good else 0) if np.isnan(value) else int(value) if good else 0
        for value, good in zip(values, ok, strict=True)
    ]


def _total(values: Floats) -> int | None:
    return None if np.isnan(values).any() else int(values.sum())


def _unknowns(ok: NDArray[np.bool_], **columns: Floats) -> list[str]:
    counts = {name: int(np.isnan(values[ok]).sum()) for name, values in columns.items()}
    return [f"{name} of {n} completed requests is unknown: null" for name, n in counts.items() if n]


def _gaps(derived: Derived) -> Iterator[tuple[bool, int, int]]:
    bounds = derived.icl_bounds.tolist()
    return zip(derived.ok.tolist(), bounds[:-1], bounds[1:], strict=True)


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    names = [name for name in table.column_names if name not in ("chunk_offsets_ns", "body")]
    for batch in table.select(names).to_batches(max_chunksize=1_000):
        yield from batch.to_pylist()


def _error(row: dict[str, Any]) -> str:
    return f"{row['error_class'] or row['status']}: {row['error_text']}"


def _epoch(phase: dict[str, Any], t_ns: int | None) -> int | None:
    """Monotonic ns as epoch ns, by the file's wall-clock anchor; None without one."""
    anchor = phase.get("anchor")
    if t_ns is None or not anchor:
        return None
    return int(anchor["realtime_ns"]) + t_ns - int(anchor["monotonic_ns"])


def _utc(phase: dict[str, Any], t_ns: int | None, form: str | None) -> str | None:
    epoch_ns = _epoch(phase, t_ns)
    if epoch_ns is None:
        return None
    moment = datetime.fromtimestamp(epoch_ns / 1e9, UTC)
    return moment.strftime(form) if form else moment.isoformat()
