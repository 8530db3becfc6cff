"""Rule start_server: a leased server, its configuration read back"""

from __future__ import annotations

from assay.stage.adapter import bench, finish, options
from assay.stage.server import start_server


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish(lambda: start_server(bench(arguments.spec), arguments.spec, arguments.output))


if __name__ == "__main__":
    main()
