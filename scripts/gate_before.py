"""Rule gate_before: does the server answer correctly before the load?"""

from __future__ import annotations

from assay.stage.adapter import bench, finish, options
from assay.stage.server import front_stage


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish(lambda: front_stage(bench(arguments.spec), arguments.spec, arguments.output))


if __name__ == "__main__":
    main()
