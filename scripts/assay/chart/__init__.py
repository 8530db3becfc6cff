"""Charts: byte-stable pictures of entries of chart_data.json."""

from assay.chart.render import render_chart

__all__ = ["render_chart"]
