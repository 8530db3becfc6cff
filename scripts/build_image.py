"""Rule build_image: the environment an engine runs in, content-addressed, built once."""

from __future__ import annotations

from pathlib import Path

from assay.stage.adapter import finish, options
from assay.stage.prepare import build_image


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish(lambda: build_image(Path.cwd(), arguments.spec, arguments.output))


if __name__ == "__main__":
    main()
