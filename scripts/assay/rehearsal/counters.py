"""The server's `/metrics`, under vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping

from assay.rehearsal.node import Node

# What vLLM calls a counter `x` is `x_total` in the text. docs: https://docs.vllm.ai/en/latest/usage/metrics.html
_COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Number of prefill tokens processed."),
    ("generation_tokens", "generated_tokens", "Number of generation tokens processed."),
    ("prefix_cache_queries", "prefix_queries", "Prefix cache queries, in tokens."),
    ("prefix_cache_hits", "prefix_hits", "Prefix cache hits, in tokens."),
    ("num_preemptions", "preemptions", "Cumulative number of preemptions."),
)
_SPECULATION = (
    ("spec_decode_num_drafts", "drafts", "Number of drafts."),
    ("spec_decode_num_draft_tokens", "draft_tokens", "Number of draft tokens."),
    ("spec_decode_num_accepted_tokens", "accepted_tokens", "Number of accepted tokens."),
)


def metrics_text(node: Node, model: str, finished: Mapping[str, int], own: Mapping[str, float]) -> str:
    """Prometheus text: one series a replica (label ``engine``); ``own`` are the rehearsal's own gauges."""
    name = model.replace("\\", "\\\\").replace('"', '\\"')
    replicas = node.all_replicas
    lines: list[str] = []

    def family(metric: str, kind: str, doc: str, values: list[tuple[str, float]]) -> None:
        lines.append(f"# HELP {metric} {doc}")
        lines.append(f"# TYPE {metric} {kind}")
        suffix = "_total" if kind == "counter" else ""
        lines.extend(f"{metric}{suffix}{{{labels}}} {value!r}" for labels, value in values)

    labels = [f'engine="{place}",model_name="{name}"' for place in range(len(replicas))]
    waiting = [len(replica.waiting) for replica in replicas]
    waiting[-1] += (
        node.n_handed_over
    )  # a decode engine counts what its prefill engine still sends it as waiting
    gauges = (
        (
            "num_requests_running",
            "Number of requests in model execution batches.",
            [len(r.running) for r in replicas],
        ),
        (
            "num_requests_waiting",
            "Number of requests waiting to be processed.",
            waiting,
        ),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", [r.kv.usage for r in replicas]),
    )
    for metric, doc, values in gauges:
        family(f"vllm:{metric}", "gauge", doc, [(k, float(v)) for k, v in zip(labels, values, strict=True)])
    speculating = any(replica.draft_tokens for replica in replicas)
    for metric, attribute, doc in (*_COUNTERS, *(_SPECULATION if speculating else ())):
        counted = [float(getattr(replica.counts, attribute)) for replica in replicas]
        family(f"vllm:{metric}", "counter", doc, list(zip(labels, counted, strict=True)))
    if speculating:
        places = [
            (f'{label},position="{place}"', float(n))
            for label, replica in zip(labels, replicas, strict=True)
            for place, n in enumerate(replica.counts.accepted_at)
        ]
        family(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "counter",
            "Accepted tokens per draft position.",
            places,
        )
    ended = [(f'{labels[0]},finished_reason="{reason}"', float(n)) for reason, n in sorted(finished.items())]
    family("vllm:request_success", "counter", "Count of successfully processed requests.", ended)
    for metric, value in own.items():
        family(
            f"rehearsal:{metric}",
            "gauge",
            "Of the rehearsal itself.",
            [(f'model_name="{name}"', float(value))],
        )
    return "\n".join(lines) + "\n"
