"""A phase of load on the simulated node: asked in wall time, recorded in simulated time.

The load client knows the wall clock only. Before a phase its durations are divided by the time scale, after it
every stamp of its records is multiplied: a simulated stamp is the monotonic clock times the scale, so stamps of
several phases keep their order. What concerns the client itself (its health, the gates, the session) stays in
wall time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from assay.load import LoadSpec
from assay.records.files import write_bytes, write_json
from assay.records.requests import PHASE_KEY, read_requests

LEAST_TIMEOUT_S = 20.0
"""Of wall time: a stalled machine must not make failures of simulated requests."""
GAUGES_PER_S = 10
LISTS = ("chunk_offsets_ns",)


def ask(spec: LoadSpec, scale: int) -> LoadSpec:
    """The load as the client is to run it beside a clock that is ``scale`` times as fast."""
    return replace(
        spec,
        duration_s=None if spec.duration_s is None else spec.duration_s / scale,
        drain_limit_s=spec.drain_limit_s / scale,
        timeout_s=max(spec.timeout_s / scale, LEAST_TIMEOUT_S),
        gauge_interval_s=max(spec.gauge_interval_s / scale, 1 / GAUGES_PER_S),
    )


def to_simulated(folder: Path, client: Mapping[str, Any], scale: int) -> dict[str, Any]:
    """Rewrite requests.parquet and client.json of a finished phase; gives the new client record."""
    facts = {"scale": scale, "stamps": "CLOCK_MONOTONIC times the scale"}
    rewrite_requests(folder / "requests.parquet", scale, facts)
    record = scale_client(client, scale) | {
        "simulated_time": facts
        | {"wall_time": ["health", "spec.timeout_s", "timestamps", "screens.client_bound", "phase.anchor"]}
    }
    write_json(folder / "client.json", record)
    return record


def rewrite_requests(path: Path, scale: int, facts: Mapping[str, Any]) -> None:
    """Every stamp and duration of a requests.parquet times ``scale``."""
    table = read_requests(path)
    for index, name in enumerate(table.column_names):
        if name in LISTS:
            chunks = [scale_lists(chunk, scale) for chunk in table.column(name).chunks]
            column = pa.chunked_array(chunks, type=table.schema.field(index).type)
            table = table.set_column(index, table.schema.field(index), column)
        elif name.startswith("t_") and name.endswith("_ns"):
            table = table.set_column(index, table.schema.field(index), pc.multiply(table.column(name), scale))
    metadata = dict(table.schema.metadata or {})
    phase = scale_stamps(json.loads(metadata.get(PHASE_KEY.encode(), b"{}")), scale) | {
        "simulated_time": facts
    }
    metadata[PHASE_KEY.encode()] = json.dumps(phase, sort_keys=True).encode()
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="zstd")
    write_bytes(path, sink.getvalue().to_pybytes())


def scale_lists(lists: pa.ListArray, scale: int) -> pa.ListArray:
    """The elements of each list times ``scale``; a null list stays null."""
    mask = pc.is_null(lists) if lists.null_count else None
    return pa.ListArray.from_arrays(
        lists.offsets, pc.multiply(lists.values, scale), type=lists.type, mask=mask
    )


def scale_stamps(value: Mapping[str, Any], scale: int) -> dict[str, Any]:
    """An object with its ``t_*_ns`` keys times ``scale``."""
    return {
        key: item * scale if key.startswith("t_") and key.endswith("ns") and isinstance(item, int) else item
        for key, item in value.items()
    }


def scale_client(client: Mapping[str, Any], scale: int) -> dict[str, Any]:
    """client.json in simulated time: the phase, the in-flight trace, the gauges, what was asked."""
    record = dict(client)
    record["phase"] = scale_stamps(client["phase"], scale)
    record["server_gauges"] = [scale_stamps(sample, scale) for sample in client.get("server_gauges") or []]
    in_flight = client["in_flight"]
    trace = [point | {"t_s": point["t_s"] * scale} for point in in_flight["trace"]]
    record["in_flight"] = in_flight | {"trace": trace}
    record["screens"] = {
        name: screen | {"measured": scale_stamps(screen["measured"], scale)}
        if isinstance(screen.get("measured"), Mapping)
        else screen
        for name, screen in client["screens"].items()
    }
    spec = dict(client["spec"])
    for key in ("duration_s", "drain_limit_s", "gauge_interval_s"):
        if isinstance(spec.get(key), (int, float)):
            spec[key] = spec[key] * scale
    record["spec"] = spec
    return record
