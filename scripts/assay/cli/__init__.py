"""The command line: `assay VERB`. Exit codes: 0 ok, 1 the check failed, 2 bad input, 3 incomplete, 4 internal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module

import typer

from assay.errors import EXIT_INTERNAL, AssayError

VERBS = {
    "validate": "campaigns.validate",
    "list": "campaigns.list_campaigns",
    "plan": "plan.plan",
    "retry": "campaigns.retry",
    "probe": "probe.probe",
    "load": "load.load",
    "recover": "recover.recover",
    "gates": "gates.gates",
    "export": "export.export",
    "show": "show.show",
    "audit": "audit.audit",
    "verify": "audit.verify",
    "compare": "audit.compare",
}
"""Verb -> module and function in this room, in the order of `assay --help`."""


def build_app(verbs: Iterable[str]) -> typer.Typer:
    """The program with these verbs. Only their modules are imported: a load client needs no charts."""
    app = typer.Typer(
        name="assay",
        help="LLM-serving benchmark campaigns as one reproducible DAG. Exit codes: 0 ok, 1 the check failed, "
        "2 bad input, 3 incomplete, 4 internal.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)  # with a single verb the program would otherwise become that verb
    for verb in verbs:
        module, function = VERBS[verb].split(".")
        app.command(verb)(getattr(import_module(f"assay.cli.{module}"), function))
    return app


def main() -> None:
    """Run the command line; every error a user can cause is one line on stderr."""
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        build_app([asked] if asked in VERBS else VERBS)()
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
