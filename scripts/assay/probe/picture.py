"""A picture of the machine as SVG: NUMA nodes, islands, GPUs, links. Equal topologies give equal bytes."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape, quoteattr

GPU_WIDTH, GPU_HEIGHT, GAP, MARGIN = 108, 58, 26, 28
LANE_HEIGHT = 190
ISLAND_GAP = 76
NODE_WIDTH = 268
NODE_HEIGHT = 64
_STYLE = (
    "text{font-family:DejaVu Sans,Helvetica,Arial,sans-serif;font-size:12px;fill:#1f2933}"
    ".small{font-size:10px;fill:#52606d}.title{font-size:15px;font-weight:bold}"
    ".gpu{fill:#e6f4ea;stroke:#2f855a}.island{fill:#f7fafc;stroke:#4a5568;stroke-dasharray:5 3}"
    ".node{fill:#ebf4ff;stroke:#2b6cb0}.nv{stroke:#2f855a;fill:none}.cross{stroke:#c05621;fill:none}"
    ".bind{stroke:#2b6cb0;stroke-dasharray:2 3;fill:none}.warn{fill:#c05621}"
)


def _clean(text: object, most: int = 60) -> str:
    """Text from a machine is not ours: shortened, control characters out, escaped."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text))
    return escape(shown if len(shown) <= most else shown[: most - 1] + "…")


class _Drawing:
    def __init__(self) -> None:
        self.parts: list[str] = []
        self.width = 0
        self.height = 0

    def _reach(self, x: int, y: int) -> None:
        self.width, self.height = max(self.width, x + MARGIN), max(self.height, y + MARGIN)

    def box(self, x: int, y: int, width: int, height: int, kind: str) -> None:
        self._reach(x + width, y + height)
        self.parts.append(
            f'<rect class={quoteattr(kind)} x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )

    def text(
        self, x: int, y: int, text: object, kind: str = "", anchor: str = "start", most: int = 60
    ) -> None:
        shown = _clean(text, most)
        self._reach(x + (len(shown) * 7 if anchor == "start" else 0), y)
        self.parts.append(
            f'<text class={quoteattr(kind)} x="{x}" y="{y}" text-anchor="{anchor}">{shown}</text>'
        )

    def path(self, data: str, kind: str, width: float, title: str) -> None:
        line = f'<path class={quoteattr(kind)} d="{data}" stroke-width="{width:g}">'
        self.parts.append(f"{line}<title>{_clean(title)}</title></path>")

    def finish(self, label: str) -> str:
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(label)}>'
        back = f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>'
        return "\n".join([head, f"<style>{_STYLE}</style>", back, *self.parts, "</svg>", ""])


def _draw_islands(drawing: _Drawing, topology: dict[str, Any], top: int) -> dict[int, tuple[int, int]]:
    """Boxes of islands with their GPUs in a row; gives the middle of each GPU's lower edge."""
    by_index = {gpu["index"]: gpu for gpu in topology["gpus"]}
    places: dict[int, tuple[int, int]] = {}
    crossings = {(entry["a"], entry["b"]): entry["class"] for entry in topology["crossings"]}
    x, before = MARGIN, None
    for island in topology["islands"]:
        if before is not None:
            middle = top + LANE_HEIGHT // 2
            name = crossings.get((before, island["name"])) or "unknown"
            drawing.path(
                f"M {x - ISLAND_GAP} {middle} L {x} {middle}", "cross", 2, f"{before} to {island['name']}"
            )
            drawing.text(x - ISLAND_GAP // 2, middle - 6, name, "small", "middle")
        before = island["name"]
        width = len(island["gpus"]) * (GPU_WIDTH + GAP) + GAP
        drawing.box(x, top, width, LANE_HEIGHT, "island")
        joined = island["joined_by"] or "no NVLink"
        if not island["complete"]:
            joined += ", not every pair"
        drawing.text(x + 10, top + 18, f"{island['name']}: {joined}", most=len(island["gpus"]) * 16)
        for place, index in enumerate(island["gpus"]):
            left, upper = x + GAP + place * (GPU_WIDTH + GAP), top + LANE_HEIGHT - GPU_HEIGHT - 18
            gpu = by_index[index]
            drawing.box(left, upper, GPU_WIDTH, GPU_HEIGHT, "gpu")
            drawing.text(left + GPU_WIDTH // 2, upper + 20, f"GPU {index}", anchor="middle")
            drawing.text(left + GPU_WIDTH // 2, upper + 35, gpu["name"] or "", "small", "middle", 18)
            shown = gpu["uuid"][:14] + "…" if gpu["uuid"] else "no UUID"
            drawing.text(left + GPU_WIDTH // 2, upper + 49, shown, "small", "middle", 20)
            places[index] = (left + GPU_WIDTH // 2, upper)
        x += width + ISLAND_GAP
    return places


def _draw_links(
    drawing: _Drawing, topology: dict[str, Any], places: dict[int, tuple[int, int]], top: int
) -> None:
    for link in topology["links"]:
        if not link["nvlinks"]:
            continue
        (x1, y1), (x2, _) = places[link["a"]], places[link["b"]]
        rise = min(20 + abs(x2 - x1) // 12, y1 - top - 30)
        data = f"M {x1} {y1} Q {(x1 + x2) // 2} {y1 - 2 * rise} {x2} {y1}"
        title = f"GPU {link['a']} to GPU {link['b']}: {link['class']}"
        drawing.path(data, "nv", 0.8 + min(link["nvlinks"], 18) / 12, title)


def _draw_nodes(
    drawing: _Drawing, topology: dict[str, Any], places: dict[int, tuple[int, int]], top: int
) -> None:
    """A box for each NUMA node that has CPUs or memory, joined to the GPUs that are near it."""
    boxes = []
    for node in topology["numa_nodes"]:
        near = [gpu["index"] for gpu in topology["gpus"] if gpu["numa_node"] == node["node"]]
        if node["cpus"] or near:  # else it is the memory of a GPU that shows as a node of its own
            wish = sum(places[index][0] for index in near) // len(near) - NODE_WIDTH // 2 if near else MARGIN
            boxes.append((wish, node, near))
    x = MARGIN
    for wish, node, near in sorted(boxes, key=lambda box: (not box[2], box[0], box[1]["node"])):
        x = max(x, wish)
        drawing.box(x, top, NODE_WIDTH, NODE_HEIGHT, "node")
        memory = "memory unknown" if node["memory_mib"] is None else f"{node['memory_mib'] / 1024:.0f} GiB"
        drawing.text(x + 10, top + 24, f"NUMA node {node['node']}, {memory}", most=34)
        drawing.text(x + 10, top + 44, f"CPUs {node['cpus'] or 'none'}", "small", most=42)
        for index in near:
            gx, gy = places[index]
            drawing.path(f"M {gx} {gy + GPU_HEIGHT} L {x + NODE_WIDTH // 2} {top}", "bind", 1, f"GPU {index}")
        x += NODE_WIDTH + GAP


def draw_topology(topology: dict[str, Any]) -> str:
    """The machine as one SVG document, text escaped. Pure: no date, no random name."""
    drawing = _Drawing()
    cpu = topology["cpu"]
    drawing.text(MARGIN, MARGIN + 6, topology["host"] or "Machine", "title")
    cores = "?" if cpu["cores"] is None else cpu["cores"]
    memory = "?" if topology["memory_mib"] is None else f"{topology['memory_mib'] / 1024:.0f}"
    about = f"{cpu['model'] or 'CPU unknown'}: {cores} cores, {cpu['threads'] or '?'} threads, {memory} GiB"
    drawing.text(MARGIN, MARGIN + 26, about, "small", most=110)
    top = MARGIN + 44
    places: dict[int, tuple[int, int]] = {}
    if topology["islands"]:
        places = _draw_islands(drawing, topology, top)
        _draw_links(drawing, topology, places, top)
        top += LANE_HEIGHT + 70
    else:
        drawing.text(MARGIN, top + 16, topology["gpus_reason"] or "no GPU", "warn", most=110)
        top += 40
    _draw_nodes(drawing, topology, places, top)
    top += NODE_HEIGHT + 24
    for crossing in topology["crossings"][:12]:
        drawing.text(
            MARGIN, top, f"{crossing['a']} to {crossing['b']}: {crossing['class'] or 'unknown'}", "small"
        )
        top += 16
    more = len(topology["crossings"]) - 12
    if more > 0:
        drawing.text(MARGIN, top, f"and {more} crossings more", "small")
        top += 16
    for said in topology["disagreements"][:6]:
        drawing.text(MARGIN, top, f"sources disagree: {said['what']}", "small warn")
        top += 16
    return drawing.finish("Picture of the machine: islands, links and NUMA nodes")
