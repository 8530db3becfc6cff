"""docs/benchmarks.md, and the measured sections beside it (docs/benchmarks.json) that it is rendered from."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path


def machine_words(placement: str = "") -> str:
    """CPU, cores, kernel and Python of this machine, how the work was placed on it, and its load average now."""
    models = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line)
    model = next((line.split(":")[1].strip() for line in models), "unknown CPU")
    words = f"{model}, {os.cpu_count()} cores, Linux {os.uname().release}, Python {platform.python_version()}"
    return f"{words}{placement}; load average at the end {os.getloadavg()[0]:.1f}."


def machine(*, favoured: bool, realtime: bool) -> str:
    """The machine and the scheduling of a server and a client on a core each."""
    scheduling = "put before other work by the scheduler's weights" if favoured else "with normal weights"
    scheduling = "under SCHED_FIFO, since other work ran beside" if realtime else scheduling
    return machine_words(f"; server on one core, client on another, both {scheduling}")


def update(out: Path, found: dict[str, list[str]]) -> None:
    """Put sections (lines of Markdown by key) in place of the older ones and write the page ``out`` again.

    Sections that are not in ``found`` stay as they were: each script brings its own.
    """
    state = out.with_suffix(".json")
    known = json.loads(state.read_text()) if state.is_file() else {}
    known |= found
    state.write_text(json.dumps(known, indent=1) + "\n")
    out.write_text(page(known))


def page(found: dict[str, list[str]]) -> str:
    """The page out of what was measured."""

    def part(name: str) -> str:
        return "\n".join(found.get(name, ["not run"]))

    def where(name: str) -> str:
        return f"Machine: {part(name)}\n\n" if name in found else ""

    return f"""# Benchmarks

Written by `benchmarks/load_client.py` and `benchmarks/dag.py`; do not edit.
Cells are medians over the runs given; ratios hold inside one table, since the machine is shared.

## The load client
{where("machine")}### Full speed
2,000 requests (4,000 with bursts) of 128 tokens, concurrency 128, against `benchmarks/sse_server.c`. *events/s* of
assay runs from its first send until `requests.parquet` and `client.json` are on disk; of the others it is what they
report, their own evaluation left out. *By the log*: all events over the time from the first request that the server
received to the last event that it sent. *assay over it*: assay until its records are on disk, over the peer by the log. *CPU* is that of all processes of the client in the measured phase (assay: until
its records are written); start-up and imports stand apart. First-token times are as reported / as the server's log has
them. A server this fast saturates every client: assay marks such a phase `client_bound`. AIPerf and vLLM are run
once, with one event a write, and with normal weights.

| events a write | client | events/s (min-max) | by the log | assay over it | CPU s per million events | CPU s before | peak RSS MiB | most in flight | TTFT p50 ms | TTFT p99 ms | runs |
|---|---|---|---|---|---|---|---|---|---|---|---|
{part("full")}

### Paced: 200 ms to the first token, 20 ms between tokens
Errors are absolute differences to the server's log, p99 over all gaps and requests. The send stamp is taken in user
space before the first byte is handed to the kernel; the first-token error therefore has the server's wake-up in it.
On loopback the server's core takes both stamps of an event, the log's before the write and the kernel's on receipt: a
gap error is that core stopped between the two, for 0.1 to 0.2 ms at a time where the host is busy.
All requests are equally long, so all streams end together: each round of them is a burst of ends and sends.
*delivered* is what was in flight at the server over what was asked, from the first to the last request.

| concurrency | requests | client | gap error p99 ms | first-token error p99 ms | TTFT p50 ms, reported / true | TTFT p99 ms, reported / true | delivered | CPU s per million events | peak RSS MiB | runs |
|---|---|---|---|---|---|---|---|---|---|---|
{part("paced")}

### Records and memory
{part("summary")}
{part("soak")}

## The DAG itself
{where("dag_machine")}{part("dag")}
"""  # noqa: E501 - the tables' headings
