"""Sustained sets: every window a dot, the pooled value a line."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.chart.curves import draw_legend, entry_labels
from assay.chart.style import clean, dot_style, frame, look, number, say_conditions, tidy

_PANEL_INCH = 2.9


def _draw_panel(axes: Axes, panel: dict[str, Any], arms: list[str]) -> None:
    values, windows = [], set()
    for series in panel["series"]:
        index = arms.index(series["arm"])
        style = look(index)
        shift = (index - (len(arms) - 1) / 2) * 0.12
        for point in series["points"]:
            windows.add(point["x"])
            for dot in point["dots"]:
                values.append(dot["value"])
                marker = dot_style(dot, style["color"]) | {"markersize": 7}
                if not dot["invalid"]:
                    marker["marker"] = style["marker"]
                axes.plot([point["x"] + shift], [dot["value"]], linestyle="none", zorder=4, **marker)
        pooled = series["pooled"]
        others = [
            o["pooled"]["value"] for o in panel["series"] if o["pooled"] and o["pooled"]["value"] is not None
        ]
        if pooled and pooled["value"] is not None:
            values.append(pooled["value"])
            axes.axhline(
                pooled["value"],
                color=style["color"],
                linestyle=style["linestyle"],
                linewidth=1.4,
                zorder=2,
                alpha=0.8,
            )
            axes.annotate(
                f"pooled {number(pooled['value'])}",
                (1.0, pooled["value"]),
                fontsize=7.5,
                xycoords=("axes fraction", "data"),
                xytext=(-2, 4 if pooled["value"] == max(others) else -10),
                textcoords="offset points",
                ha="right",
                color=style["color"],
                zorder=5,
            )
    if values:
        axes.set_ylim(0, max(values) * 1.2 or 1)
        axes.set_xlim(min(windows) - 0.5, max(windows) + 0.5)
        axes.set_xticks(sorted(windows))
    else:
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", color="#999999")
        axes.set_yticks([])
        axes.set_xticks([])
    axes.set_title(clean(panel["y"]["label"], 40), loc="left")
    axes.set_ylabel(clean(panel["y"]["unit"], 40), fontsize=8)
    axes.set_xlabel("window", fontsize=8)
    tidy(axes)


def draw_windows(entry: dict[str, Any]) -> Figure:
    """One row of panels per sustained set."""
    groups = entry["groups"]
    panels = [panel for group in groups for panel in group["panels"]]
    arms = list(dict.fromkeys(series["arm"] for panel in panels for series in panel["series"]))
    said = [
        f"{g['point_id']} ({g['workload']}): {say_conditions(g['conditions'])}"
        for g in groups
        if g["conditions"]
    ]
    caption = [*entry["notes"], *said] if groups else ["No sustained windows were planned.", *entry["notes"]]
    figure, (_, top) = frame(entry, caption, 0.4 + _PANEL_INCH * max(len(groups), 1))
    height = figure.get_figheight()
    for row, group in enumerate(groups):
        count = len(group["panels"])
        gap, left, right = 0.075, 0.075, 0.975
        width = (right - left - gap * (count - 1)) / max(count, 1)
        y = top - (0.45 + (row + 1) * _PANEL_INCH - 0.75) / height
        for k, panel in enumerate(group["panels"]):
            axes = figure.add_axes((left + k * (width + gap), y, width, (_PANEL_INCH - 1.05) / height))
            _draw_panel(axes, panel, arms)
    draw_legend(figure, entry_labels(panels), arms, top)
    return figure
