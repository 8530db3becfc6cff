"""`assay validate`, `assay list` and `assay retry`: campaigns as files and their receipts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from assay.cli.console import table_console
from assay.cli.evidence import read_receipt
from assay.config.campaign import campaign_files, load_campaign
from assay.config.files import read_config
from assay.errors import AssayError, BadInput, Incomplete
from assay.gates import load_policy
from assay.stage.preflight import check_campaign, check_machine
from assay.stage.specs import root_of
from assay.vocab import Reason, StageState

RETRIED = (StageState.FAILED, StageState.INVALID, StageState.NOT_RUN)
OTHER_KINDS = {
    "gates": "gates",
    "images": "image",
    "models": "model",
    "workloads": "workload",
    "publication": "publication",
}


def validate(
    config: Annotated[Path, typer.Argument(help="a campaign file, or another YAML file below config/")],
    machine: Annotated[
        bool, typer.Option(help="also check GPUs, model files and ports of this machine")
    ] = False,
) -> None:
    """Check a configuration file; a fault is one line naming file, key and what would be right (exit 2)."""
    kind = config.resolve().parent.name
    root = root_of(config)
    if kind in OTHER_KINDS and (root / "workflow" / "schemas").is_dir():
        read_config(root, OTHER_KINDS[kind], config)
        if kind == "gates":
            load_policy(config)
        print(f"{config}: valid ({OTHER_KINDS[kind]})")
        return
    if not (root / "workflow" / "schemas").is_dir():
        # A file from anywhere is checked as a campaign of the checkout that we stand in.
        root = Path.cwd()
        if not (root / "workflow" / "schemas").is_dir():
            raise BadInput("lies in no checkout", where=config, hint="run it in the project's folder")
    campaign = load_campaign(config, root)
    check_campaign(campaign)
    if machine:
        check_machine(campaign)
    legs = ", ".join(leg.name for leg in campaign.legs())
    print(f"{config}: valid (campaign; legs: {legs}; points: {', '.join(campaign.points)})")


def list_campaigns() -> None:
    """Every campaign target of this checkout."""
    root = Path.cwd()
    files = campaign_files(root)
    if not files:
        raise BadInput(
            "no campaign file", where=root / "config" / "campaigns", hint="run it in the project's folder"
        )
    table = Table(Column("target", no_wrap=True), "arms", "points", "GPUs", "title", box=None)
    broken = []
    for name, path in files.items():
        try:
            config = load_campaign(path, root).config
            row = [
                ", ".join(config["arms"]),
                str(len(config["points"])),
                str(config["needs"]["gpus"]),
                config["title"],
            ]
        except BadInput as error:
            broken.append(str(error))
            row = ["", "", "", "not valid, see below"]
        table.add_row(name, *row)
    table_console().print(table)
    for line in broken:
        print(f"assay: {line}")
    if broken:
        raise typer.Exit(BadInput.exit_code)


def retry(
    failed: Annotated[
        bool, typer.Option("--failed", help="the stages that failed, are invalid or were not run")
    ] = False,
    results: Annotated[Path, typer.Option(help="the results folder, or one campaign in it")] = Path(
        "results"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="only say what would be removed")] = False,
) -> None:
    """Remove the receipts of failed stages, nothing else: the next run repeats them.

    A load stage whose session has no gates after the load counts as failed: its row can never be published.
    The evidence of every attempt stays.
    """
    if not failed:
        raise BadInput("nothing is selected", where="retry", hint="--failed")
    if not results.is_dir():
        raise Incomplete(f"{results}: no such folder")
    removed = 0
    for receipt, why in failed_receipts(results):
        print(f"{'would remove' if dry_run else 'removed'} {receipt}: {why}")
        if not dry_run:
            receipt.unlink()
        removed += 1
    print(
        f"{removed} receipt{'s' if removed != 1 else ''}; the next snakemake run repeats these stages"
        if removed
        else "nothing failed"
    )


def failed_receipts(results: Path) -> list[tuple[Path, str]]:
    """Receipts to repeat, each with its reason."""
    found: list[tuple[Path, str]] = []
    for folder in sorted(results.rglob("receipts")):
        receipts: dict[Path, dict[str, Any]] = {}
        for path in sorted(folder.rglob("*.json")):
            try:
                receipts[path] = read_receipt(path)
            except AssayError as error:
                found.append((path, str(error)))
        open_sessions = {
            session_id: bracket["why_open"]
            for record in receipts.values()
            for session_id, bracket in ((record.get("measured") or {}).get("brackets") or {}).items()
            if bracket.get("why_open")
        }
        for path, record in receipts.items():
            if record.get("state") in [str(state) for state in RETRIED]:
                found.append((path, ", ".join(map(str, record["reasons"])) or record["state"]))
            elif record.get("point_id") is not None and record.get("session_id") in open_sessions:
                found.append((path, f"{Reason.BRACKET_OPEN}: {open_sessions[record['session_id']]}"))
    return found
