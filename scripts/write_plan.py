"""Rule write_plan: the resolved campaign that every receipt is judged against."""

from __future__ import annotations

from assay.records.files import write_json
from assay.stage.adapter import finish, options


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish(lambda: write_json(arguments.output, arguments.spec))


if __name__ == "__main__":
    main()
