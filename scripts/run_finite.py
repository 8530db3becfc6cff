"""Rule run_finite: one repeat of one finite point"""

from __future__ import annotations

from assay.stage.adapter import bench, finish, options
from assay.stage.measure import run_finite


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish(lambda: run_finite(bench(arguments.spec), arguments.spec, arguments.output))


if __name__ == "__main__":
    main()
