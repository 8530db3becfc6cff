"""The arms side by side: bars with their numbers, and beneath them what differs between the arms."""

from __future__ import annotations

import json
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.chart.style import FAINT, INK, clean, dot_style, frame, look, number, say_conditions

_DIFFERENCES = 14
_LABEL = 22
"""Characters of an arm's name on a card."""


def _draw_bars(axes: Axes, metric: dict[str, Any], arms: list[str], labelled: bool) -> None:
    values = [dot["value"] for arm in metric["arms"] for dot in arm["dots"]]
    longest = max(values, default=0.0) or 1.0
    for arm in metric["arms"]:
        index = arms.index(arm["arm"])
        color = look(index)["color"]
        y = -index
        if arm["value"] is None:
            axes.text(0, y, "no value", va="center", fontsize=8, color=FAINT)
            continue
        face = color if arm["publishable"] else "white"
        axes.barh(y, arm["value"], height=0.62, color=face, edgecolor=color, linewidth=1.4, zorder=2)
        if arm["n"] > 1:
            axes.hlines(y, arm["min"], arm["max"], color=INK, linewidth=1.1, zorder=3)
            for end in (arm["min"], arm["max"]):
                axes.vlines(end, y - 0.12, y + 0.12, color=INK, linewidth=1.1, zorder=3)
        for dot in arm["dots"]:
            if dot["invalid"]:
                axes.plot([dot["value"]], [y], linestyle="none", zorder=4, **dot_style(dot, color))
        edge = max(arm["value"], arm["max"])
        axes.text(edge + longest * 0.03, y, number(arm["value"]), va="center", fontsize=9, fontweight="bold")
    axes.set_xlim(0, longest * 1.42)
    axes.set_ylim(-len(arms) + 0.4, 0.6)
    axes.set_yticks([-index for index in range(len(arms))])
    axes.set_yticklabels([clean(arm, _LABEL) for arm in arms] if labelled else [""] * len(arms), fontsize=8.5)
    axes.set_xticks([])
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    return clean(value if isinstance(value, str) else json.dumps(value), 40)


def say_comparison(claim: dict[str, Any]) -> list[str]:
    """A comparison in lines: what it may be called, each difference, each ratio with what the data carry."""
    pair = f"{claim['numerator']} / {claim['denominator']}"
    lines = [f"{pair}: {claim['kind']}, run order {claim['run_order']}."]
    if claim["why_not_matched"]:
        lines[0] += f" Not matched: {'; '.join(claim['why_not_matched'])}."
    for difference in claim["differences"][:_DIFFERENCES]:
        top, base = difference["numerator"], difference["denominator"]
        shown = f"{_value(top['asked'])} against {_value(base['asked'])}"
        if difference["seen_in"] == ["readback"]:
            shown = f"{_value(top['read'])} against {_value(base['read'])}"
        lines.append(f"   {difference['key']}: {shown} (seen in {', '.join(difference['seen_in'])})")
    if len(claim["differences"]) > _DIFFERENCES:
        lines.append(
            f"   … {len(claim['differences']) - _DIFFERENCES} further differences in comparisons.json"
        )
    ratios = [
        f"{one['point_id']} {one['metric']} {one['ratio']:.2f}x"
        + (f" ({one['separation']})" if one["separation"] else "")
        for one in claim["ratios"]
        if one["ratio"] is not None
    ]
    if ratios:
        lines.append(f"   Ratios: {'; '.join(ratios)}.")
    return lines


def draw_card(entry: dict[str, Any]) -> Figure:
    """One row per point, one column per metric; bars carry their numbers."""
    groups = entry["groups"]
    arms = list(
        dict.fromkeys(arm["arm"] for group in groups for metric in group["metrics"] for arm in metric["arms"])
    )
    caption = [*entry["notes"], *(line for claim in entry["comparisons"] for line in say_comparison(claim))]
    bar_inch = 0.30
    row_inch = 0.72 + bar_inch * max(len(arms), 1)
    figure, (_, top) = frame(entry, caption, 0.30 + row_inch * max(len(groups), 1))
    height = figure.get_figheight()
    columns = len(groups[0]["metrics"]) if groups else 0
    longest = max((len(clean(arm, _LABEL)) for arm in arms), default=0)
    left, right, gap = max(0.13, 0.05 + 0.0075 * longest), 0.985, 0.025
    width = (right - left - gap * (columns - 1)) / max(columns, 1)
    for k in range(columns):
        metric = groups[0]["metrics"][k]
        x = left + k * (width + gap)
        figure.text(
            x, top + 0.12 / height, clean(metric["label"], 40), fontsize=9.5, fontweight="bold", va="center"
        )
        figure.text(x, top - 0.06 / height, clean(metric["unit"], 48), fontsize=7.5, color=FAINT, va="center")
    for row, group in enumerate(groups):
        y_top = top - (0.30 + row * row_inch) / height
        name = f"{group['point_id']} · {group['conditions'].get('workload', '')}"
        figure.text(
            0.35 / 9, y_top - 0.10 / height, clean(name, 60), fontsize=8.5, fontweight="bold", va="center"
        )
        if group["conditions"]:
            said = clean(say_conditions(group["conditions"]), 130)
            figure.text(0.35 / 9, y_top - 0.27 / height, said, fontsize=7.4, color=FAINT, va="center")
        for k, metric in enumerate(group["metrics"]):
            bars = bar_inch * max(len(arms), 1) / height
            axes = figure.add_axes((left + k * (width + gap), y_top - 0.40 / height - bars, width, bars))
            _draw_bars(axes, metric, arms, labelled=k == 0)
    if not groups:
        figure.text(0.5, top - 0.2 / height, "nothing was measured", ha="center", color=FAINT)
    return figure
