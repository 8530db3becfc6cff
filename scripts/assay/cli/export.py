"""``assay export``: the records of a load in the file formats of other tools."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from assay.digest import sha256_of_file
from assay.errors import BadInput
from assay.metrics import exports
from assay.records.files import read_json, write_text
from assay.records.requests import read_phase_facts, read_requests

FILE_NAMES = {
    "vllm": "vllm_bench.json",
    "aiperf": "profile_export.jsonl",
    "llmd": "benchmark_report_v0.2.json",
}


def export(
    folder: Annotated[
        Path, typer.Argument(help="Folder with requests.parquet: of assay load, or of a stage.")
    ],
    format: Annotated[str, typer.Option("--format", help="vllm, aiperf or llmd.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; default a name of that tool in the folder, for a stage in the current directory."
        ),
    ] = None,
) -> None:
    """Write a load's records as vllm bench, AIPerf or llm-d would, for plots that read those."""
    if format not in FILE_NAMES:
        raise BadInput(f"{format!r} is not known", where="--format", hint=", ".join(FILE_NAMES))
    source = folder / "requests.parquet"
    if not source.is_file():
        raise BadInput("has no requests.parquet", where=folder)
    target = out or (Path() if is_evidence(folder) else folder) / FILE_NAMES[format]
    if is_evidence(target.parent):
        raise BadInput(
            "is in a session's evidence, where every file is pinned", where=target, hint="--out elsewhere"
        )
    table = read_requests(source)
    phase = read_phase_facts(source)
    client = read_json(folder / "client.json") if (folder / "client.json").is_file() else {}
    if format == "vllm":
        text = json.dumps(exports.to_vllm(table, phase, client), indent=1) + "\n"
    elif format == "aiperf":
        text = "".join(f"{line}\n" for line in exports.to_aiperf(table, phase))
    else:
        report = exports.to_llmd(table, phase, client, sha256_of_file(source)[:32], version("assay"))
        text = json.dumps(report, indent=1) + "\n"
    write_text(target, text)
    typer.echo(f"{target}")


def is_evidence(folder: Path) -> bool:
    """Whether a folder is of a session or of one of its stages: those are append-only."""
    here = folder.resolve()
    return any(
        (place / "stage.json").exists()
        or (place / "session.json").exists()
        or place.parts[-2:] == ("results", "evidence")
        for place in (here, *here.parents)
    )
