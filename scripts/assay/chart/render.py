"""A chart from its entry in chart_data.json: the same entry gives the same bytes, with its identity
inside."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from assay.chart.cards import draw_card
from assay.chart.curves import draw_curves
from assay.chart.style import settings
from assay.chart.windows import draw_windows
from assay.digest import sha256_of_value
from assay.errors import BadInput, Incomplete
from assay.records.files import write_bytes

MARK = "assay"
"""Key of the identity in a PNG's text chunks; in an SVG it is the description of the metadata."""
DRAWERS: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "curve": draw_curves,
    "windows": draw_windows,
    "card": draw_card,
}
ROOMS = ("digest", "chart")
"""What charts are drawn by; their digest makes a changed style draw again."""
_MARK_LIMIT_BYTES = 4096
_SVG_HEAD_BYTES = 1 << 16


def chart_entry(chart_data: dict[str, Any], chart_id: str) -> dict[str, Any]:
    """The entry of a chart. Raises BadInput when there is none of that name."""
    charts = chart_data.get("charts") or {}
    if chart_id not in charts:
        raise BadInput(
            f"no chart {chart_id!r}", where="chart_data.json", hint=f"charts: {', '.join(charts) or 'none'}"
        )
    return dict(charts[chart_id])


def identity(entry: dict[str, Any]) -> dict[str, str]:
    """What a chart carries inside: campaign, id, digest of its entry, and what drew it."""
    return {
        "campaign": str(entry["campaign"]),
        "chart_id": str(entry["id"]),
        "entry_sha256": sha256_of_value(entry),
        "matplotlib": matplotlib.__version__,
    }


def draw_bytes(entry: dict[str, Any], form: str) -> bytes:
    """The picture as ``svg`` or ``png``."""
    mark = json.dumps(identity(entry), sort_keys=True)
    stream = io.BytesIO()
    with settings():
        figure = DRAWERS[entry["kind"]](entry)
        if form == "svg":
            metadata = {
                "Date": None,
                "Creator": MARK,
                "Title": f"{entry['campaign']} {entry['id']}",
                "Description": mark,
            }
            print_svg: Any = FigureCanvasSVG(figure).print_svg
            print_svg(stream, metadata=metadata)
        elif form == "png":
            print_png: Any = FigureCanvasAgg(figure).print_png
            print_png(stream, metadata={"Software": None, MARK: mark})
        else:
            raise BadInput(f"charts are svg or png, not {form!r}", where="chart")
    return stream.getvalue()


def render_chart(chart_data: dict[str, Any], chart_id: str, out: Path) -> None:
    """Draw one chart into ``out`` (.svg or .png)."""
    write_bytes(out, draw_bytes(chart_entry(chart_data, chart_id), out.suffix.removeprefix(".")))


def read_identity(path: Path) -> dict[str, str]:
    """The identity inside a chart. Raises Incomplete when the file is no chart of ours."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Incomplete(f"{path}: cannot be read") from error
    text = _png_mark(data) if path.suffix == ".png" else _svg_mark(data)
    try:
        mark = json.loads(text or "")
    except ValueError:
        mark = None
    if not isinstance(mark, dict) or not {"campaign", "chart_id", "entry_sha256"} <= mark.keys():
        raise Incomplete(f"{path}: carries no identity of a chart")
    return {str(key): str(value) for key, value in mark.items()}


def _png_mark(data: bytes) -> str | None:
    """The text chunk of our key, by the chunk lengths; nothing is decompressed."""
    place, prefix = 8, MARK.encode() + b"\0"
    while place + 12 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        if data[place + 4 : place + 8] == b"tEXt" and data[place + 8 :].startswith(prefix):
            body = data[place + 8 + len(prefix) : place + 8 + length]
            return body[:_MARK_LIMIT_BYTES].decode("latin-1")
        place += 12 + length
    return None


def _svg_mark(data: bytes) -> str | None:
    """The description in the metadata; only the head is looked at, and no document type is accepted."""
    head = data[:_SVG_HEAD_BYTES]
    start, end = head.find(b"<metadata>"), head.find(b"</metadata>")
    if start < 0 or end < 0:
        return None
    try:
        root = ElementTree.fromstring(head[start : end + len(b"</metadata>")])
    except ElementTree.ParseError:
        return None
    found = root.find(".//{http://purl.org/dc/elements/1.1/}description")
    return None if found is None or found.text is None else found.text[:_MARK_LIMIT_BYTES]
