"""``assay load``: load on any OpenAI-compatible endpoint, no campaign needed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.compute as pc
import typer

from assay.errors import EXIT_CHECK_FAILED, BadInput, Incomplete
from assay.load import LoadSpec, read_prompts, run_load, summarise
from assay.load.phase import JOURNAL_PLAN, REQUESTS
from assay.load.progress import Progress
from assay.load.spec import target_of, with_endpoint
from assay.records.files import write_json
from assay.records.requests import read_batches
from assay.vocab import ErrorClass, RequestStatus, Screen, ScreenResult

_FROM_CLIENT = ("state", "reasons", "detail", "screens", "n_resent")
TEXT_LIMIT = 200
KEPT_CONNECTION = "kept from an earlier request"
"""In the error text of a request whose connection had carried another (assay.load.connection)."""


def load(
    url: Annotated[str, typer.Option(help="Base URL of the server, with or without /v1.")],
    model: Annotated[str, typer.Option(help="Model name sent with each request.")],
    prompts: Annotated[Path, typer.Option(help='JSONL: {"id", "messages" | "prompt" | "token_ids", ...}.')],
    out: Annotated[Path, typer.Option(help="Folder for requests.parquet, client.json, summary.json.")],
    concurrency: Annotated[
        int | None,
        typer.Option(help="Streams of a closed loop; with --rate, the most in flight (none: no cap)."),
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Requests of the measured phase.")] = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds of issuing; then what runs is drained.")
    ] = None,
    drain_limit: Annotated[float, typer.Option(help="Seconds the drain may take.")] = 60.0,
    rate: Annotated[float | None, typer.Option(help="Requests per second: an open loop.")] = None,
    arrivals: Annotated[str, typer.Option(help="poisson, constant or gamma (with --rate).")] = "poisson",
    burstiness: Annotated[
        float, typer.Option(help="Shape of gamma arrivals: 1 is Poisson, less is burstier.")
    ] = 1.0,
    ramp: Annotated[float, typer.Option(help="Seconds to grow to full load; not measured.")] = 0.0,
    opening_per_stream: Annotated[
        int,
        typer.Option(
            help="Requests of each stream before the measured phase, which follows without a drain."
        ),
    ] = 0,
    opening_prompts: Annotated[
        Path | None, typer.Option(help="Prompts of ramp and opening, not those that are measured.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the arrival times.")] = 0,
    max_tokens: Annotated[int | None, typer.Option(help="Output limit of prompts without their own.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask for the full output length.")] = False,
    endpoint: Annotated[
        str | None, typer.Option(help="chat or completions; default by the prompt's form.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(help="'Name: value', may be repeated.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the bearer key.")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the bearer key.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="PEM file of the CA to trust, for https.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 600.0,
    fresh_connections: Annotated[
        bool,
        typer.Option(
            "--fresh-connections",
            help="A connection for each request: for servers that close kept ones unannounced (llama.cpp).",
        ),
    ] = False,
    extra_body: Annotated[
        str | None, typer.Option(help="JSON object merged into every request body.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="tokenizer.json, or 'server': count the output tokens of every answer too."),
    ] = None,
    processes: Annotated[int | None, typer.Option(help="Client processes; default by the load.")] = None,
    planned_prompt_tokens: Annotated[
        int | None, typer.Option(help="Prompt length that was planned, to check the server's count.")
    ] = None,
    metrics_url: Annotated[
        list[str] | None,
        typer.Option(help="Prometheus address, one per replica; default URL/metrics. 'none': off."),
    ] = None,
    point_id: Annotated[str, typer.Option(help="Name of this point in the records.")] = "load",
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", help="No progress line: every second at a terminal, else every 10 s on stderr."
        ),
    ] = False,
) -> None:
    """Send prompts to an endpoint under a fixed load and record every request.

    Ends 0 when the phase is valid and every request ended ok, 1 otherwise; the records are written either way.
    Ends 3 when the host does not let them be written, and says where the requests that had ended are: `assay
    recover` makes a table of them, as of a load that was stopped.
    """
    if requests is None and duration is None:
        raise BadInput("missing", where="--requests", hint="or --duration")
    if concurrency is None and rate is None:
        raise BadInput("missing", where="--concurrency", hint="or --rate")
    target_of(url)  # a bad one is told before it is taken apart
    spec = LoadSpec(
        url=url,
        model=model,
        endpoint=endpoint,
        concurrency=concurrency or 0,
        requests=requests,
        duration_s=duration,
        drain_limit_s=drain_limit,
        rate_per_s=rate,
        arrivals=arrivals,
        seed=seed,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        headers=parse_headers(header or []),
        api_key_env=api_key_env,
        timeout_s=timeout,
        extra_body=parse_object(extra_body, "--extra-body"),
        processes=processes,
        planned_prompt_tokens=planned_prompt_tokens,
        point_id=point_id,
        api_key_file=api_key_file,
        burstiness=burstiness,
        ramp_s=ramp,
        opening_per_stream=opening_per_stream,
        tokenizer=tokenizer,
        metrics_urls=metrics_addresses(url, metrics_url or []),
        ca_file=ca_file,
        judge_all=True,
        reuse_connections=not fresh_connections,
    )
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps what it freed: 30 MB here
    measured = read_prompts(prompts)
    opening = read_prompts(opening_prompts) if opening_prompts is not None else None
    spec = with_endpoint(spec, [*measured, *(opening or ())])
    progress = None if quiet else Progress(spec, sys.stderr)
    try:
        try:
            # A server that has no /metrics is told only to who named one.
            warn = _warn_of_metrics if metrics_url and spec.metrics_urls else None
            record = run_load(spec, measured, out, opening, progress, warn)
        finally:
            if progress is not None:
                progress.end()
        summary = summarise(out) | {name: record[name] for name in _FROM_CLIENT}
        write_json(out / "summary.json", summary)
    except (KeyboardInterrupt, SystemExit):
        typer.echo(f"assay: stopped: {what_is_kept(out)}", err=True)
        raise
    except OSError as error:  # the disk is full, or the host refused a file: no fault of the input or of ours
        raise Incomplete(f"{out}: {error.strerror or error}: {what_is_kept(out)}") from error
    for line in lines_of(summary, out):
        typer.echo(line)
    if record["state"] != "completed" or record["requests"]["ok"] != record["requests"]["issued"]:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _warn_of_metrics(why: str) -> None:
    shown = why if why.isprintable() else repr(why)
    typer.echo(
        f"assay: warning: --metrics-url: the load goes on without the server's gauges: {shown}", err=True
    )


def what_is_kept(out: Path) -> str:
    """Where the requests of a broken-off load are. A load that had none leaves nothing that bars its folder."""
    if (out / REQUESTS).exists():
        return f"the requests that had ended are in {REQUESTS} of {out}"
    journals = sorted(out.glob("journal-[0-9]*.bin"))
    kept = [path.name for path in journals if path.stat().st_size]
    if kept:
        command = f"python -m assay recover {shlex.quote(str(out))}"
        return (
            f"the requests that had ended are in {', '.join(kept)} of {out}; {command} makes a table of them"
        )
    for path in (*journals, out / JOURNAL_PLAN):
        path.unlink(missing_ok=True)
    return "no request had ended"


def parse_headers(values: list[str]) -> dict[str, str]:
    """``Name: value`` lines. Raises BadInput."""
    headers = {}
    for value in values:
        name, colon, text = value.partition(":")
        if not colon or not name.strip():
            raise BadInput(f"{name.strip()!r} has no value", where="--header", hint="'Name: value'")
        headers[name.strip()] = text.strip()
    return headers


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def parse_object(text: str | None, where: str) -> dict[str, Any]:
    """A JSON object out of an option. Raises BadInput."""
    if text is None:
        return {}
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {error}", where=where) from error
    if not isinstance(value, dict):
        raise BadInput("not a JSON object", where=where)
    return value


def metrics_addresses(url: str, given: list[str]) -> tuple[str, ...]:
    """The addresses to read counters from: those given, or ``/metrics`` of the server itself."""
    if given == ["none"]:
        return ()
    if given:
        return tuple(given)
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    return (urlunsplit((parts.scheme, parts.netloc, f"{path}/metrics", "", "")),)


def failures_of(requests: Path) -> tuple[dict[str, str], int]:
    """(error class -> text of the first that failed so, how many failed on a connection that had been kept)."""
    texts: dict[str, str] = {}
    n_kept = 0
    for part in read_batches(requests, ["status", "error_class", "error_text", "body"]):
        for row in part.filter(pc.equal(part.column("status"), RequestStatus.FAILED)).to_pylist():
            text = row["error_text"] or ""
            n_kept += KEPT_CONNECTION in text
            if row["error_class"] == ErrorClass.HTTP_STATUS and row["body"]:
                text = f"{text}: {row['body']}"
            shown = repr(text)  # what a server sent moves no terminal
            cut = shown if len(shown) <= TEXT_LIMIT else f"{shown[:TEXT_LIMIT]}..."
            texts.setdefault(row["error_class"], cut)
    return texts, n_kept


def lines_of(summary: dict[str, Any], out: Path) -> list[str]:
    """What a person wants to know first; a value that is unknown is a dash."""
    requests, throughput, latency = summary["requests"], summary["throughput"], summary["latency"]

    def show(value: Any, digits: int = 1) -> str:
        return (
            f"{value:,.{digits}f}" if isinstance(value, float | int) else "-" if value is None else str(value)
        )

    lines = [
        f"requests     {requests['issued']} issued: {requests['ok']} ok, {requests['failed']} failed, "
        f"{requests['incomplete']} incomplete",
        f"throughput   {show(throughput['output_tok_s'])} output tok/s over "
        f"{show(throughput['elapsed_s'], 2)} s, drain included",
    ]
    for name, label in (("ttft_ms", "first token"), ("tpot_ms", "per token"), ("e2e_ms", "end to end")):
        stats = latency[name]
        top = "p99" if stats["p99"] is not None else "p90" if stats["p90"] is not None else "max"
        lines.append(f"{label:<12} p50 {show(stats['p50'])} ms, {top} {show(stats[top])} ms (n {stats['n']})")
    if requests["failed"]:
        texts, n_kept = failures_of(out / REQUESTS)
        for name, n in requests["error_classes"].items():
            lines.append(f"failures     {n} {name}, the first: {texts.get(name, '-')}")
        if 2 * n_kept >= requests["failed"]:
            lines.append(
                f"hint         {n_kept} of {requests['failed']} failed on a kept connection that the server "
                "closed: --fresh-connections"
            )
    if summary["n_resent"]:
        lines.append(f"sent again   {summary['n_resent']} requests that a closing connection had not taken")
    if requests["incomplete"]:
        lines.append(
            f"incomplete   {requests['incomplete']} requests had not ended, or not been sent, "
            "when the drain limit ended the phase"
        )
    if throughput["output_tok_s"] is None and throughput["reason"]:
        lines.append(f"unknown      throughput: {throughput['reason']}")
    for name, screen in summary["screens"].items():
        line, why = f"screen       {name}: {screen['result']}", screen.get("reason")
        measured = screen["measured"] or {}
        if screen["result"] == ScreenResult.FAIL:
            values = ", ".join(f"{key} {show(value)}" for key, value in measured.items())
            line += f": {why or ''} ({values}; threshold {screen['threshold']})"
        elif name == Screen.CONCURRENCY_REACHED and screen["threshold"]:
            line += f" ({measured['max']} of {screen['threshold']['n']} in flight)"
        elif why:
            line += f": {why}"
        lines.append(line)
    state = summary["state"] + (f": {', '.join(summary['reasons'])}" if summary["reasons"] else "")
    lines.append(f"state        {state}" + (f" ({summary['detail']})" if summary["detail"] else ""))
    lines.append(f"records      {REQUESTS}, client.json, summary.json of {out}")
    lines.append(f"next         python -m assay export {shlex.quote(str(out))} --format vllm (aiperf, llmd)")
    return lines
