"""Rule plot_chart: one chart from its entry in chart_data.json, as SVG and PNG."""

from __future__ import annotations

import argparse
from pathlib import Path

from assay.chart.render import render_chart
from assay.records.files import read_json
from assay.stage.adapter import finish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chart-data", type=Path, required=True)
    parser.add_argument("--chart", required=True, help="the chart's id")
    parser.add_argument("--svg", type=Path, required=True)
    parser.add_argument("--png", type=Path, required=True)
    arguments = parser.parse_args()
    data = read_json(arguments.chart_data)

    def draw() -> None:
        for path in (arguments.svg, arguments.png):
            render_chart(data, arguments.chart, path)

    finish(draw)


if __name__ == "__main__":
    main()
