"""Rule prepare_prompts: the prompts of one point, drawn once for every arm and repeat."""

from __future__ import annotations

from pathlib import Path

from assay.stage.adapter import finish, options
from assay.stage.prompts import prepare_prompts


def main() -> None:
    parser = options(
        __doc__, prompts={"type": Path, "required": True, "help": "the prompts, one JSON a line"}
    )
    arguments = parser.parse_args()
    finish(lambda: prepare_prompts(Path.cwd(), arguments.spec, arguments.prompts, arguments.output))


if __name__ == "__main__":
    main()
