"""Rule run_sustained: one set of sustained windows"""

from __future__ import annotations

from assay.stage.adapter import bench, finish, options
from assay.stage.measure import run_sustained


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish(lambda: run_sustained(bench(arguments.spec), arguments.spec, arguments.output))


if __name__ == "__main__":
    main()
