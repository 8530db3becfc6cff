"""What the scripts of the rules share: reading their options, the way a stage ends, and its exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.errors import EXIT_OK, AssayError
from assay.stage.attempt import Interrupted, ignore_signals, interruptible
from assay.stage.bracket import Bench

RESULTS = Path("results")


def options(doc: str | None, **extra: dict[str, Any]) -> argparse.ArgumentParser:
    """A parser with `--spec` (the stage's canonical JSON) and `--output` (its receipt), and what is added."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--spec", type=json.loads, required=True, help="what the stage is asked, as JSON")
    parser.add_argument("--output", type=Path, required=True, help="the receipt")
    for name, settings in extra.items():
        parser.add_argument(f"--{name}", **settings)
    return parser


def bench(spec: dict[str, Any]) -> Bench:
    """The leg that a spec names, in the checkout and the results folder that the job runs in."""
    return Bench(Path.cwd(), spec["campaign"], spec["leg"], RESULTS, spec.get("rehearsal"))


def finish(main: Callable[[], Any]) -> None:
    """Run a stage; an error that is the user's to see is one line, an interrupted stage leaves no receipt."""
    try:
        with interruptible():
            record = main()
            ignore_signals()  # the receipt is there: what comes now must not make a failure of it
    except Interrupted as stop:
        print(f"interrupted by {stop}: without a receipt the next run repeats this stage", flush=True)
        sys.exit(stop.exit_code)
    except AssayError as error:
        print(f"assay: {error}", flush=True)
        sys.exit(error.exit_code)
    if isinstance(record, dict) and "state" in record:
        reasons = f" ({', '.join(record['reasons'])})" if record["reasons"] else ""
        print(f"{record['stage']}: {record['state']}{reasons}", flush=True)
    sys.exit(EXIT_OK)
