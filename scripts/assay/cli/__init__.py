"""The command line: `assay VERB`. Exit codes: 0 ok, 1 the check failed, 2 bad input, 3 incomplete, 4 internal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from assay.cli import audit, campaigns, export, gates, load, probe, show
from assay.errors import EXIT_INTERNAL, AssayError

app = typer.Typer(
    name="assay",
    help="LLM-serving benchmark campaigns as one reproducible DAG. Exit codes: 0 ok, 1 the check failed, "
    "2 bad input, 3 incomplete, 4 internal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
VERBS: dict[str, Callable[..., None]] = {
    "validate": campaigns.validate,
    "list": campaigns.list_campaigns,
    "retry": campaigns.retry,
    "probe": probe.probe,
    "load": load.load,
    "gates": gates.gates,
    "export": export.export,
    "show": show.show,
    "audit": audit.audit,
    "verify": audit.verify,
    "compare": audit.compare,
}
for name, function in VERBS.items():
    app.command(name)(function)


def main() -> None:
    """Run the command line; every error a user can cause is one line on stderr."""
    try:
        app()
    except AssayError as error:
        print(f"assay: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output is gone: nothing more can be said, and that is no fault of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("ASSAY_DEBUG"):
            raise
        print(
            f"assay: internal error: {type(error).__name__}: {error} (ASSAY_DEBUG=1 shows where)",
            file=sys.stderr,
        )
        sys.exit(EXIT_INTERNAL)
