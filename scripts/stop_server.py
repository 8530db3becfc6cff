"""Rule stop_server: end the session and pin its evidence"""

from __future__ import annotations

from assay.stage.adapter import bench, finish, options
from assay.stage.server import stop_server


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish(lambda: stop_server(bench(arguments.spec), arguments.spec, arguments.output))


if __name__ == "__main__":
    main()
