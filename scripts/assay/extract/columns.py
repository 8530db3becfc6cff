"""The columns of rows.csv and rows.parquet: name, type, unit and meaning. docs/extracts.md is made from
this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from assay.vocab import GateKind, Screen

TEXT, INT, REAL, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
TEXTS = pa.list_(pa.string())


class Column(NamedTuple):
    """One column; ``unit`` is empty where there is none. Every column may be null except where it says so."""

    name: str
    kind: pa.DataType
    unit: str
    meaning: str


_IDENTITY = [
    Column("row_id", TEXT, "", "`<leg>/<point>/r<repeat>`, `.../w<window>` or `.../pooled`; never null"),
    Column("campaign", TEXT, "", "name of the campaign; never null"),
    Column("kind", TEXT, "", "`repeat`, `window`, or `pooled` (all windows of a set together); never null"),
    Column(
        "run_id", TEXT, "", "`<model>__<arm>__<context>__<engine>__<suite>__<MMDD-HHMMSS>`, one a session"
    ),
    Column("session_id", TEXT, "", "the one life of one server that this row was measured in"),
    Column("attempt_id", TEXT, "", "`<session_id>/<folder of the stage>`"),
    Column("leg", TEXT, "", "planned session of an arm; never null"),
    Column("leg_rank", INT, "", "place of the leg in the planned order, from 0"),
    Column("arm", TEXT, "", "configuration that was measured; never null"),
    Column("point_id", TEXT, "", "planned point; never null"),
    Column("repeat", INT, "", "number of the repeat (finite points)"),
    Column("window", INT, "", "number of the window (sustained sets)"),
    Column("t_start_utc", TEXT, "ISO 8601", "when the stage began"),
    Column("t_end_utc", TEXT, "ISO 8601", "when the stage ended"),
]
_CONDITIONS = [
    Column("engine", TEXT, "", "inference server"),
    Column("image", TEXT, "", "environment the server ran in, by name"),
    Column("model", TEXT, "", "model as the campaign names it"),
    Column("suite", TEXT, "", "suite of the campaign"),
    Column("context_tokens", INT, "tokens", "context limit the campaign names"),
    Column("gpus", INT, "", "GPUs of the arm; rates per GPU use this number"),
    Column("workload", TEXT, "", "prompts of the point, by name"),
    Column("workload_kind", TEXT, "", "`chat` or `synthetic`"),
    Column("concurrency", INT, "", "requests in flight that were asked for"),
    Column("requests_planned", INT, "", "requests of a finite point"),
    Column("issue_s", REAL, "s", "length of a window's issuing phase, as planned"),
    Column("drain_limit_s", REAL, "s", "how long a window may drain"),
    Column("max_tokens", INT, "tokens", "output tokens asked for at most"),
    Column("ignore_eos", FLAG, "", "output length forced"),
    Column("planned_prompt_tokens", INT, "tokens", "prompt length as planned (synthetic points)"),
    Column("prompts_sha256", TEXT, "", "sha256 of the file of prompts"),
    Column("prompts_distinct", INT, "", "distinct prompts among the issued requests"),
    Column(
        "prompts_cycled",
        FLAG,
        "",
        "more requests than prompts: the prompts were used again, in recorded order",
    ),
    Column("stand_in_prompts", FLAG, "", "the shipped prompts stood in for the pool the campaign names"),
    Column("rehearsal", FLAG, "", "measured on a simulated server; never publishable"),
]
_COUNTS = [
    Column("population", TEXT, "", "which requests the rates and latencies cover"),
    Column("n_issued", INT, "requests", "= n_ok + n_failed + n_incomplete"),
    Column("n_ok", INT, "requests", "HTTP 200, output, a terminal marker, no error in the stream"),
    Column("n_failed", INT, "requests", "ended otherwise"),
    Column("n_incomplete", INT, "requests", "still running when the drain limit ended them"),
    Column("error_classes", TEXT, "JSON", "failed requests per error class"),
]
_RATES = [
    Column("elapsed_s", REAL, "s", "last end - first send, drain included"),
    Column(
        "output_tokens", INT, "tokens", "sum of n_output of the ok requests; null when one of them is unknown"
    ),
    Column(
        "output_tok_s", REAL, "tokens/s", "output_tokens / elapsed_s; pooled: total tokens / total elapsed"
    ),
    Column("output_tok_s_per_gpu", REAL, "tokens/s", "output_tok_s / gpus; null without GPUs"),
    Column("requests_s", REAL, "1/s", "n_ok / elapsed_s"),
    Column("window_s", REAL, "s", "length of the issuing window"),
    Column("window_tokens", REAL, "tokens", "output tokens whose time falls inside the issuing window"),
    Column("window_tok_s", REAL, "tokens/s", "window_tokens / window_s"),
    Column("tokens_per_chunk", REAL, "tokens", "output tokens per output event, over the ok requests"),
    Column("draft_tokens", INT, "tokens", "drafted, by the server's counters"),
    Column("accepted_tokens", INT, "tokens", "of these accepted, by the server's counters"),
    Column("acceptance_rate", REAL, "", "accepted_tokens / draft_tokens"),
    Column("cached_prompt_tokens", INT, "tokens", "prefix-cache hits, by the server's counters"),
]
LATENCIES = {
    "ttft_ms": "first token - send",
    "ttfa_ms": "first token that is not reasoning - send",
    "e2e_ms": "last token - send",
    "tpot_ms": "time per output token after the first chunk",
    "icl_ms": "gap between output events",
    "schedule_delay_ms": "send - when the schedule wanted it",
}
PERCENTILES = ("p50", "p90", "p99")
ADJUSTED = ("ttft_ms", "e2e_ms")


def _latencies() -> Iterator[Column]:
    for name, meaning in LATENCIES.items():
        yield Column(f"{name}_n", INT, "", f"values of {name} in the percentiles beside it")
        for statistic in PERCENTILES:
            floor = {"p90": "; null under 64 values", "p99": "; null under 662 values"}.get(statistic, "")
            yield Column(
                f"{name}_{statistic}", REAL, "ms", f"{meaning}: {statistic} of the ok requests{floor}"
            )
        yield Column(f"{name}_max", REAL, "ms", f"{meaning}: largest of the ok requests")
        if name in ADJUSTED:
            for statistic in PERCENTILES:
                yield Column(
                    f"adj_{name}_{statistic}",
                    REAL,
                    "ms",
                    f"the same with each failed request counted as +inf: {statistic}",
                )
    yield Column(
        "served_rate_tok_s_p50",
        REAL,
        "tokens/s",
        "n_output / e2e of each ok request, first-token delay included: p50",
    )


def _gates() -> Iterator[Column]:
    for kind in GateKind:
        for when in ("before", "after"):
            yield Column(
                f"{kind}_{when}_pass", INT, "tasks", f"{kind} tasks passed {when} the load, same session"
            )
            yield Column(
                f"{kind}_{when}_n", INT, "tasks", f"{kind} tasks asked {when} the load, same session"
            )
            yield Column(f"{kind}_{when}_outcomes", TEXT, "JSON", f"{kind} tasks per outcome {when} the load")


def _screens() -> Iterator[Column]:
    for screen in Screen:
        yield Column(str(screen), TEXT, "", "`pass`, `fail` or `not_checked`")
        yield Column(f"{screen}_measured", TEXT, "JSON", "what the screen measured")
        yield Column(f"{screen}_threshold", TEXT, "JSON", "what it was held against")


_FLAGS = [
    Column("stage_state", TEXT, "", "how the stage ended"),
    Column(
        "publishable", FLAG, "", "no screen failed and none that the policy requires is missing; never null"
    ),
    Column("invalid", FLAG, "", "the measurement itself cannot be trusted; never null"),
    Column("verdict", TEXT, "", "`pass`, `fail`, `invalid` or `not_run`"),
    Column(
        "reasons",
        TEXTS,
        "",
        "why the row is not publishable: words of the vocabulary, or `<screen>:<result>`",
    ),
    Column("detail", TEXT, "", "one sentence of the stage, for a person"),
]
_ORIGIN = [
    Column("receipt_path", TEXT, "", "the receipt this row was made from; never null"),
    Column("receipt_sha256", TEXT, "", "its digest"),
    Column(
        "requests_path",
        TEXT,
        "",
        "the table of requests; pooled rows name each window's, separated by spaces",
    ),
    Column("requests_sha256", TEXT, "", "its recorded digest; pooled rows name one a window"),
    Column("readback_path", TEXT, "", "the configuration that the server said it runs"),
    Column("publication_policy", TEXT, "", "name of the policy that judged the row"),
    Column("publication_sha256", TEXT, "", "its digest"),
    Column("gates_policy", TEXT, "", "name of the gates' policy"),
    Column("gates_sha256", TEXT, "", "its digest"),
    Column("package_sha256", TEXT, "", "digest of the sources that measured"),
    Column("commit", TEXT, "", "git commit that measured"),
]

COLUMNS: tuple[Column, ...] = (
    *_IDENTITY,
    *_CONDITIONS,
    *_COUNTS,
    *_RATES,
    *_latencies(),
    *_gates(),
    *_FLAGS,
    *_screens(),
    *_ORIGIN,
)
NAMES = tuple(column.name for column in COLUMNS)
ARROW_SCHEMA = pa.schema(
    [pa.field(column.name, column.kind) for column in COLUMNS], metadata={b"assay.schema": b"assay/rows/1"}
)


def json_schema() -> dict[str, Any]:
    """The schema of one row as an object (draft 2020-12), made from the columns."""
    types: dict[pa.DataType, Any] = {
        TEXT: {"type": ["string", "null"]},
        INT: {"type": ["integer", "null"]},
        REAL: {"anyOf": [{"type": ["number", "null"]}, {"const": "inf"}]},
        FLAG: {"type": ["boolean", "null"]},
    }
    properties = {
        column.name: (
            {"type": "array", "items": {"type": "string"}}
            if column.kind == TEXTS
            else dict(types[column.kind])
        )
        | {"description": column.meaning + (f" [{column.unit}]" if column.unit else "")}
        for column in COLUMNS
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "assay/record/rows",
        "title": "One row of rows.csv and rows.parquet",
        "type": "object",
        "additionalProperties": False,
        "required": list(NAMES),
        "properties": properties,
    }
