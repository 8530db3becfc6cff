"""``assay recover``: the records of a load that was broken off."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.export import is_evidence
from assay.errors import BadInput, Incomplete
from assay.load import recover as recover_table
from assay.load import summarise
from assay.load.phase import REQUESTS
from assay.records.files import write_json


def recover(
    folder: Annotated[Path, typer.Argument(help="Folder of a load that was stopped or killed.")],
) -> None:
    """Make requests.parquet and summary.json of the journals that a broken-off load left; the journals stay.

    The requests that had ended are in it. What a load proves about itself (client.json, the screens) is not:
    it was not finished. Ends 2 when requests.parquet is there already or the folder is of a session, whose
    evidence is append-only, and 3 when there is nothing to recover or the load still runs.
    """
    if (folder / REQUESTS).exists():
        raise BadInput(f"has {REQUESTS} already", where=folder, hint="records are never overwritten")
    if is_evidence(folder):
        raise BadInput("is evidence of a session, which is append-only", where=folder)
    try:
        told = recover_table(folder)
        write_json(folder / "summary.json", summarise(folder))
    except OSError as error:
        raise Incomplete(f"{folder}: {error.strerror or error}") from error
    typer.echo(f"recovered    {told['rows']} requests, {told['torn_bytes']} bytes of a torn frame left out")
    typer.echo(f"records      {REQUESTS} and summary.json of {folder}")
