"""Rule probe_topology: the stable facts of this machine."""

from __future__ import annotations

from assay.stage.adapter import finish, options
from assay.stage.prepare import probe_topology


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish(lambda: probe_topology(arguments.spec, arguments.output))


if __name__ == "__main__":
    main()
