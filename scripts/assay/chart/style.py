"""How charts look: colours that colour-blind readers tell apart, text that is safe and bounded, stable
bytes."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
"""Okabe and Ito's colours for all kinds of colour vision, strongest contrasts first."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1, 2)))
INK, FAINT, GRID = "#222222", "#666666", "#E3E3E3"
TEXT_LIMIT = 160
WIDTH_INCH = 9.0
LINE_INCH = 0.165
_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.parse_math": False,
    "text.usetex": False,
    "svg.hashsalt": "assay",
    "svg.fonttype": "path",
    "path.simplify": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "text.color": INK,
    "figure.dpi": 100.0,
    "savefig.dpi": 160.0,
    "figure.facecolor": "white",
}


@contextmanager
def settings() -> Iterator[None]:
    """Our settings on top of matplotlib's own defaults, whatever a user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        yield


def clean(text: Any, limit: int = TEXT_LIMIT) -> str:
    """One line of printable text: control and format characters become spaces, long text is cut.

    Names and titles come from configuration and models; none of it is trusted.
    """
    plain = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in str(text))
    plain = " ".join(plain.split())
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def number(value: float | None) -> str:
    """A figure for people, about four digits: 3,809 or 278.3 or 0.79; an em dash for none."""
    if value is None:
        return "—"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def look(index: int) -> dict[str, Any]:
    """Colour, marker and line of the arm at ``index``: told apart by more than the colour."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def tidy(axes: Axes) -> None:
    """A plain frame: left and bottom, a faint grid behind the data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=3, labelsize=8)


def wrap(lines: Sequence[str], width: int = 150) -> list[str]:
    """Caption lines, wrapped; at most 40 of them, and it is said when more were cut."""
    wrapped = [part for line in lines for part in textwrap.wrap(clean(line, 1200), width) or [""]]
    return (
        wrapped
        if len(wrapped) <= 40
        else [*wrapped[:39], f"… {len(wrapped) - 39} more lines in chart_data.json"]
    )


def frame(
    entry: dict[str, Any], caption: Sequence[str], body_inch: float, width_inch: float = WIDTH_INCH
) -> tuple[Figure, tuple[float, float]]:
    """An empty figure with title above and caption below; returns it with (bottom, top) of the body, in
    shares."""
    lines = wrap(caption)
    head, foot = 0.95, 0.30 + LINE_INCH * len(lines)
    height = head + body_inch + foot
    figure = Figure(figsize=(width_inch, height))
    left = 0.35 / width_inch
    figure.text(left, 1 - 0.32 / height, clean(entry["title"]), fontsize=14, fontweight="bold", va="center")
    subtitle = clean(entry.get("subtitle") or entry["campaign"])
    figure.text(left, 1 - 0.60 / height, subtitle, fontsize=9.5, color=FAINT, va="center")
    for k, line in enumerate(lines):
        y = (foot - 0.12 - LINE_INCH * (k + 0.5)) / height
        figure.text(left, y, line, fontsize=7.4, color=FAINT, va="center")
    if entry.get("rehearsal"):
        figure.text(
            0.5,
            0.5,
            "REHEARSAL",
            fontsize=60,
            color="#000000",
            alpha=0.06,
            rotation=30,
            ha="center",
            va="center",
            fontweight="bold",
        )
    return figure, (foot / height, 1 - head / height)


def dot_style(dot: dict[str, Any], color: str) -> dict[str, Any]:
    """Filled when publishable, hollow when not, a cross when invalid."""
    if dot["invalid"]:
        return {"marker": "x", "color": color, "markersize": 5, "markeredgewidth": 1.2}
    face = color if dot["publishable"] else "white"
    return {
        "marker": "o",
        "markerfacecolor": face,
        "markeredgecolor": color,
        "markersize": 3.6,
        "markeredgewidth": 0.9,
    }


def say_conditions(conditions: dict[str, Any]) -> str:
    """The conditions of a point in one line."""
    parts = [f"concurrency {conditions['concurrency']}"]
    if conditions.get("requests_planned"):
        parts.append(f"{conditions['requests_planned']} requests a repeat")
    if conditions.get("issue_s"):
        parts.append(f"issuing {conditions['issue_s']:g} s a window")
    if conditions.get("planned_prompt_tokens"):
        parts.append(f"{conditions['planned_prompt_tokens']:,} prompt tokens")
    if conditions.get("max_tokens"):
        forced = conditions.get("ignore_eos")
        parts.append(
            f"{'exactly' if forced else 'at most'} {conditions['max_tokens']:,} output tokens"
            + (", EOS ignored" if forced else "")
        )
    if conditions.get("gpus"):
        parts.append(f"{conditions['gpus']} GPUs")
    if conditions.get("stand_in_prompts"):
        parts.append("stand-in prompts")
    return " · ".join(parts)


def merge_conditions(all_conditions: Sequence[dict[str, Any]]) -> list[str]:
    """The conditions of several points; those that differ in concurrency alone share a line."""
    rest: dict[str, list[int]] = {}
    for one in all_conditions:
        said = say_conditions(one).split(" · ", 1)
        rest.setdefault(said[1] if len(said) > 1 else "", []).append(one["concurrency"])
    return [
        " · ".join(
            part for part in (f"concurrency {', '.join(map(str, sorted(set(numbers))))}", said) if part
        )
        for said, numbers in rest.items()
    ]
