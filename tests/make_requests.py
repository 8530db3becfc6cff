"""Tables of requests with hand-known times, and the client's record beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.records.requests import REQUEST_SCHEMA

T0_NS = 1_000_000_000_000


@dataclass(frozen=True)
class Shape:
    """One phase of load."""

    requests: int = 8
    concurrency: int = 2
    ttft_ms: int = 100
    gap_ms: int = 10
    n_output: int = 11
    n_prompt: int = 40
    n_requested: int = 32
    failed: tuple[int, ...] = ()
    incomplete: tuple[int, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    """column -> value for every request."""

    @property
    def request_ms(self) -> int:
        return self.ttft_ms + (self.n_output - 1) * self.gap_ms

    @property
    def elapsed_s(self) -> float:
        return self.requests / self.concurrency * self.request_ms / 1e3

    @property
    def output_tok_s(self) -> float:
        bad = len(self.failed) + len(self.incomplete)
        return (self.requests - bad) * self.n_output / self.elapsed_s


def request_rows(shape: Shape, session_id: str, point_id: str, t0_ns: int = T0_NS) -> list[dict[str, Any]]:
    rows = []
    for i in range(shape.requests):
        send = t0_ns + (i // shape.concurrency) * shape.request_ms * 1_000_000
        offsets = [(shape.ttft_ms + k * shape.gap_ms) * 1_000_000 for k in range(shape.n_output)]
        row: dict[str, Any] = {
            "request_id": f"q{i}",
            "prompt_id": f"p{i}",
            "point_id": point_id,
            "session_id": session_id,
            "worker": i % shape.concurrency,
            "status": "ok",
            "error_class": None,
            "error_text": None,
            "body": None,
            "http_status": 200,
            "finish_reason": "stop",
            "terminal_seen": True,
            "timestamp_source": "user",
            "n_coalesced": 0,
            "n_resent": 0,
            "t_scheduled_ns": send,
            "t_send_ns": send,
            "t_headers_ns": send + 1_000_000,
            "t_first_event_ns": send + 1_000_000,
            "t_first_token_ns": send + offsets[0],
            "t_first_answer_ns": send + offsets[0],
            "t_last_token_ns": send + offsets[-1],
            "t_end_ns": send + offsets[-1],
            "chunk_offsets_ns": offsets,
            "n_prompt": shape.n_prompt,
            "n_cached": 0,
            "n_output": shape.n_output,
            "n_output_source": "usage",
            "n_output_tokenizer": shape.n_output,
            "n_reasoning": 0,
            "n_first_chunk": 1,
            "n_requested": shape.n_requested,
            "n_planned_prompt": None,
            "ignore_eos": False,
            "reasoning_seen": False,
            "think_tag_seen": False,
        }
        row |= shape.changes
        if i in shape.failed:
            row |= {
                "status": "failed",
                "error_class": "http_status",
                "http_status": 503,
                "terminal_seen": False,
            }
        if i in shape.incomplete:
            row |= {"status": "incomplete", "terminal_seen": False, "finish_reason": None}
        rows.append(row)
    return rows


def write_table(path: Path, rows: list[dict[str, Any]], row_group_size: int = 1000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)
    pq.write_table(table, path, row_group_size=row_group_size)


def client_record(shape: Shape, **changes: Any) -> dict[str, Any]:
    ok = shape.requests - len(shape.failed) - len(shape.incomplete)
    counts = {
        "issued": shape.requests,
        "ok": ok,
        "failed": len(shape.failed),
        "incomplete": len(shape.incomplete),
    }
    return {
        "schema": "assay/client/1",
        "state": "completed",
        "reasons": [],
        "requests": counts,
        "phase": {"t_start_ns": T0_NS},
        "screens": {
            "concurrency_reached": {
                "name": "concurrency_reached",
                "result": "pass",
                "threshold": {"n": shape.concurrency},
                "measured": {
                    "max": shape.concurrency,
                    "mean": shape.concurrency,
                    "share_at_n": 1.0,
                    "server_max": None,
                    "server_agrees": None,
                },
            },
            "client_bound": {
                "name": "client_bound",
                "result": "pass",
                "threshold": {"busy": 0.95, "lag_p99_ms": 50.0},
                "measured": {"lag_p99_ms": 1.0, "cpu_share_max": 0.1, "busy_max": 0.1},
            },
        },
        "health": {"pressure_share": {"cpu": 0.0}},
    } | changes
