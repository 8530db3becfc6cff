"""``assay gates``: ask a server the tasks of a policy; keep every request and answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.errors import EXIT_CHECK_FAILED, EXIT_OK, BadInput
from assay.gates import Endpoint, load_policy, read_tasks, run_gates
from assay.vocab import GateOutcome, Verdict

_MAX_LISTED = 40


def gates(
    url: Annotated[str, typer.Option("--url", help="Address of an OpenAI-compatible server.")],
    model: Annotated[str, typer.Option("--model", help="Model name to ask for.")],
    policy: Annotated[Path, typer.Option("--policy", help="Policy file (see config/gates).")],
    out: Annotated[Path, typer.Option("--out", help="Folder for tasks.jsonl and summary.json.")],
    when: Annotated[
        str, typer.Option("--when", help="before, after or mixed: noted in the record.")
    ] = "before",
    concurrency: Annotated[int, typer.Option("--concurrency", help="Tasks in flight at once.")] = 1,
    header: Annotated[list[str] | None, typer.Option("--header", help="'Name: value', repeatable.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option("--api-key-env", help="Environment variable that holds the API key.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="Seconds a request may take, instead of the policy's.")
    ] = None,
    output_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Ask a server the gate tasks of a policy; exit 0 when the verdict is pass, 1 when it is not.

    Writes OUT/tasks.jsonl (every request and every answer) and OUT/summary.json.
    """
    if output_format not in ("text", "json"):
        raise BadInput(f"{output_format!r} is not known", where="--format", hint="text or json")
    chosen = load_policy(policy)
    endpoint = Endpoint(url, model, _headers(header or []), api_key_env, timeout)
    summary = run_gates(endpoint, chosen, out, when=when, concurrency=concurrency)
    if output_format == "json":
        typer.echo(json.dumps(summary, indent=1, sort_keys=True))
    else:
        _print(summary, out)
    raise typer.Exit(EXIT_OK if summary["verdict"] == Verdict.PASS.value else EXIT_CHECK_FAILED)


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or any(char in line for char in "\r\n"):
            raise BadInput("not a header", where="--header", hint="'Name: value'")
        headers[name.strip().lower()] = value.strip()
    return headers


def _print(summary: dict[str, Any], out: Path) -> None:
    console = Console(highlight=False)
    table = Table(title=f"Gates {summary['policy']} ({summary['when']})")
    for column in ("kind", "passed", "not passed", "threshold", "verdict"):
        table.add_column(column, justify="right" if column in ("passed", "threshold") else "left")
    for kind, value in summary["kinds"].items():
        counts = value["counts"]
        others = [outcome.value for outcome in GateOutcome if outcome is not GateOutcome.PASS]
        not_passed = ", ".join(f"{counts[name]} {name}" for name in others if counts[name])
        passed = f"{counts[GateOutcome.PASS.value]}/{value['n']}"
        table.add_row(kind, passed, not_passed or "-", f"{value['threshold']:g}", value["verdict"])
    console.print(table)
    if not summary["kinds"]:
        console.print("The policy selects no kind of gate: zero checks is a failure.")
    failed = [task for task in read_tasks(out / "tasks.jsonl") if task["outcome"] != GateOutcome.PASS.value]
    for task in failed[:_MAX_LISTED]:
        # Text, not markup: the detail may quote what the server or the model wrote
        line = f"{task['task_id']}: {task['outcome']} ({task['reason']}) {task['detail'] or ''}"
        console.print(Text("".join(char if char.isprintable() else "?" for char in line)), soft_wrap=True)
    if len(failed) > _MAX_LISTED:
        console.print(f"... and {len(failed) - _MAX_LISTED} more")
    thinking = summary["thinking"]
    console.print(Text(f"thinking toggle: {thinking['verdict']} ({thinking['why']})"))
    console.print(Text(f"verdict: {summary['verdict']}   records: {out}"), soft_wrap=True)
