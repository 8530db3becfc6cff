"""Curves: a metric of the finite points against concurrency, the spread of the repeats drawn, each repeat a
dot."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from assay.chart.style import clean, dot_style, frame, look, merge_conditions, number, tidy

_DODGE = 0.035
_LABELLED = 4


def _place(x: float, index: int, count: int, log: bool) -> float:
    """A little to the side, so that arms at one concurrency do not hide each other."""
    shift = (index - (count - 1) / 2) * _DODGE
    return x * (1 + shift) if log else x + shift * 2


def _draw_series(axes: Axes, series: dict[str, Any], index: int, count: int, log: bool) -> None:
    style = look(index)
    color = style["color"]
    points = [point for point in series["points"] if point["value"] is not None]
    places = [_place(point["x"], index, count, log) for point in points]
    axes.plot(
        places,
        [point["value"] for point in points],
        color=color,
        linestyle=style["linestyle"],
        linewidth=1.6,
        zorder=3,
    )
    for place, point in zip(places, points, strict=True):
        axes.vlines(place, point["min"], point["max"], color=color, linewidth=2.4, alpha=0.45, zorder=2)
        face = color if point["publishable"] else "white"
        axes.plot(
            [place],
            [point["value"]],
            marker=style["marker"],
            markersize=8,
            markerfacecolor=face,
            markeredgecolor=color,
            markeredgewidth=1.6,
            linestyle="none",
            zorder=4,
        )
    for point in series["points"]:
        place = _place(point["x"], index, count, log)
        for dot in point["dots"]:
            axes.plot([place], [dot["value"]], linestyle="none", zorder=5, alpha=0.9, **dot_style(dot, color))


def _label_points(axes: Axes, panel: dict[str, Any], arms: list[str], log: bool) -> None:
    """Numbers beside the medians: of the highest arm at a concurrency above, of the lowest below."""
    labelled = [s for s in panel["series"] if len(s["points"]) <= _LABELLED]
    for x in {point["x"] for series in labelled for point in series["points"]}:
        here = [
            (point, arms.index(series["arm"]))
            for series in labelled
            for point in series["points"]
            if point["x"] == x and point["value"] is not None
        ]
        here.sort(key=lambda one: one[0]["value"])
        for rank, (point, index) in enumerate(here):
            if 0 < rank < len(here) - 1:
                continue  # between two others there is no room
            above = rank == len(here) - 1
            axes.annotate(
                number(point["value"]),
                (_place(x, index, len(arms), log), point["max"] if above else point["min"]),
                textcoords="offset points",
                xytext=(0, 9 if above else -15),
                ha="center",
                fontsize=7.5,
                color=look(index)["color"],
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.75},
                zorder=6,
            )


def _draw_panel(axes: Axes, panel: dict[str, Any], entry: dict[str, Any], arms: list[str]) -> None:
    concurrencies = sorted({point["x"] for series in panel["series"] for point in series["points"]})
    log = len(concurrencies) > 1 and max(concurrencies) / min(concurrencies) >= 4
    if log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(min(concurrencies) / 1.35, max(concurrencies) * 1.35)
    elif concurrencies:
        span = max(concurrencies) - min(concurrencies) or 2
        axes.set_xlim(min(concurrencies) - span * 0.3, max(concurrencies) + span * 0.3)
    for series in panel["series"]:
        _draw_series(axes, series, arms.index(series["arm"]), len(arms), log)
    _label_points(axes, panel, arms, log)
    axes.set_xticks(concurrencies)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    values = [dot["value"] for s in panel["series"] for point in s["points"] for dot in point["dots"]]
    if values:
        axes.set_ylim(0, max(values) * 1.18 or 1)
    else:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", color="#999999")
        axes.set_yticks([])
    axes.set_title(clean(panel["workload"], 60), loc="left")
    axes.set_xlabel(clean(f"{entry['x']['label']} ({entry['x']['unit']})"))
    tidy(axes)


def draw_curves(entry: dict[str, Any]) -> Figure:
    """One panel per workload, side by side."""
    arms = list(dict.fromkeys(series["arm"] for panel in entry["panels"] for series in panel["series"]))
    conditions = [
        f"{panel['workload']}: {line}"
        for panel in entry["panels"]
        for line in merge_conditions(list(panel["conditions"].values()))
    ]
    figure, (bottom, top) = frame(entry, [*entry["notes"], *conditions], 3.9)
    panels = entry["panels"]
    gap, left, right = 0.085, 0.085, 0.975
    width = (right - left - gap * (len(panels) - 1)) / max(len(panels), 1)
    pad = 0.55 / figure.get_figheight()
    legend = 0.30 / figure.get_figheight()
    for k, panel in enumerate(panels):
        place = (left + k * (width + gap), bottom + pad, width, top - bottom - pad - legend - 0.03)
        axes = figure.add_axes(place)
        _draw_panel(axes, panel, entry, arms)
        if k == 0:
            axes.set_ylabel(clean(f"{entry['y']['label']} ({entry['y']['unit']})", 80))
    draw_legend(figure, entry_labels(panels), arms, top)
    return figure


def entry_labels(panels: list[dict[str, Any]]) -> dict[str, str]:
    return {series["arm"]: series["label"] for panel in panels for series in panel["series"]}


def draw_legend(figure: Figure, labels: dict[str, str], arms: list[str], top: float) -> None:
    """Arms by colour, marker and line, in one row under the title."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linewidth=1.6, markersize=6, **look(arms.index(arm))) for arm in arms]
    texts = [clean(labels.get(arm, arm), 48) for arm in arms]
    if handles:
        figure.legend(
            handles,
            texts,
            loc="upper left",
            bbox_to_anchor=(0.03, top + 0.005),
            frameon=False,
            ncols=min(len(handles), 4),
            fontsize=8.5,
            borderpad=0,
            handlelength=3,
        )
