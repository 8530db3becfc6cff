"""Rule gate_after: does the server still answer correctly after the load, in each session of the leg?"""

from __future__ import annotations

from pathlib import Path

from assay.stage.adapter import bench, finish, options
from assay.stage.server import gate_after


def main() -> None:
    parser = options(
        __doc__, load={"type": Path, "nargs": "+", "required": True, "help": "the load receipts"}
    )
    arguments = parser.parse_args()
    finish(lambda: gate_after(bench(arguments.spec), arguments.spec, arguments.output, arguments.load))


if __name__ == "__main__":
    main()
