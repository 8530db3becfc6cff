"""``nvidia-smi topo -m``: the link matrix as text, as it is found in the wild.

The header may carry underline codes (whole, or with the escape byte lost in a paste), tabs do not line up,
NICs are columns and rows (``NIC0``, ``mlx5_0``, ``mlx5_bond_0``), CPU affinity is a list of ranges, the last
columns depend on the driver's age. What cannot be such a matrix raises BadInput and names the line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from assay.errors import BadInput
from assay.probe.cpulist import format_cpulist, parse_cpulist

LINK_COSTS = {"PIX": 1, "PXB": 2, "PHB": 3, "NODE": 4, "SYS": 5}
"""How far two devices are apart when no NVLink joins them; more is slower.

PIX: one PCIe switch; PXB: several; PHB: through the CPU's host bridge; NODE: between host bridges of one NUMA
node; SYS: through the link between sockets.
"""
MOST_DEVICES = 256
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\([A-Z]|\[\d{1,2}(?:;\d{1,2})*m")
_AFFINITIES = {"CPU Affinity": "cpus", "NUMA Affinity": "numa", "GPU NUMA ID": "gpu_numa_id"}
_HEADER_WORD = re.compile(r"CPU\s+Affinity|GPU\s+NUMA\s+ID|NUMA\s+Affinity|\S+", re.IGNORECASE)
_GPU = re.compile(r"^GPU(0|[1-9][0-9]{0,2})$")
_CLASS = re.compile(r"^(NV(\d{1,3})|PIX|PXB|PHB|NODE|SYS|SOC)$")
_EMPTY = {"", "N/A", "NA", "-", "[N/A]"}
_NIC_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")


@dataclass
class TopoRow:
    """One row of the matrix: the device, its class to every column's device, its affinities."""

    label: str
    line: int
    classes: dict[str, str]
    affinities: dict[str, str | None] = field(default_factory=dict)


def nvlink_count(link_class: str | None) -> int:
    """18 for ``NV18``, 0 for every other class."""
    match = _CLASS.match(link_class or "")
    return int(match[2]) if match and match[2] else 0


def _header_columns(line: str) -> tuple[list[str], list[str]] | None:
    """Devices and affinity columns of a header line, or None when it is no header."""
    devices: list[str] = []
    affinities: list[str] = []
    for word in _HEADER_WORD.findall(line):
        known = {name.lower(): name for name in _AFFINITIES}.get(re.sub(r"\s+", " ", word).lower())
        if known is not None:
            affinities.append(_AFFINITIES[known])
        elif affinities:
            return None  # a device behind the affinities: not a header
        else:
            devices.append(word)
    if not devices or not _GPU.match(devices[0]):
        return None
    # A data row starts with GPU0 as well, but then cells follow, not names.
    if any(_CLASS.match(word) or word == "X" for word in devices):
        return None
    return devices, affinities


def _fail(where: object, line: int, message: str, hint: str | None = None) -> BadInput:
    return BadInput(message, where=where, key=f"line {line}", hint=hint)


def _split_affinities(raw: str, words: list[str], columns: list[str]) -> dict[str, str | None]:
    """Which of the words behind the matrix belongs to which column.

    With one word a column they simply match. With fewer, a cell is blank: the tabs say which, and where there
    are none a word is placed only when its form leaves no doubt (``0-23`` are CPUs).
    """
    if len(words) == len(columns):
        return dict(zip(columns, words, strict=True))
    found: dict[str, str | None] = dict.fromkeys(columns)
    cells = [cell.strip() for cell in raw.split("\t")]
    while len(cells) > len(columns) and "" in cells:
        cells.remove("")  # two tabs beside a wide heading
    if "\t" in raw and len(cells) == len(columns):
        return {name: cell or None for name, cell in zip(columns, cells, strict=True)}
    for word in words:
        if re.search(r"[-,]", word) and "cpus" in found and word.upper() not in _EMPTY:
            found["cpus"] = word
            break
    return found


def _read_row(where: object, number: int, text: str, devices: list[str], columns: list[str]) -> TopoRow:
    text = re.sub(r",[ ]+", ",", text)
    words = list(re.finditer(r"\S+", text))
    label = words[0].group()
    cells = [word.group() for word in words[1 : 1 + len(devices)]]
    if len(cells) < len(devices):
        raise _fail(
            where,
            number,
            f"{label} has {len(cells)} cells, the header has {len(devices)} devices",
            "one a device",
        )
    classes: dict[str, str] = {}
    for device, cell in zip(devices, cells, strict=True):
        known = _CLASS.match(cell)
        if (cell == "X") != (device == label) or (cell != "X" and not known):
            expected = "X" if device == label else "NV#, PIX, PXB, PHB, NODE or SYS"
            raise _fail(where, number, f"{cell[:40]!r} is no link class from {label} to {device}", expected)
        classes[device] = "SYS" if cell == "SOC" else cell
    rest = words[1 + len(devices) :]
    raw = text[words[len(devices)].end() :].strip(" \n\r")
    raw = raw.removeprefix("\t")
    if len(rest) > len(columns):
        raise _fail(
            where,
            number,
            f"{label} has {len(rest)} words behind the matrix, the header {len(columns)} columns",
        )
    split = _split_affinities(raw, [word.group() for word in rest], columns)
    affinities = {name: None if (text or "").upper() in _EMPTY else text for name, text in split.items()}
    return TopoRow(label, number, classes, affinities)


def _check_matrix(where: object, rows: list[TopoRow], devices: list[str], header_line: int) -> None:
    lines = {row.label: row for row in rows}
    for device in devices:
        if device not in lines:
            raise _fail(where, header_line, f"{device} has a column and no row", "the whole output is needed")
    for row in rows:
        for other, link in row.classes.items():
            back = lines[other].classes[row.label]
            if _GPU.match(row.label) and _GPU.match(other) and back != link:
                message = f"{row.label} to {other} is {link}, but line {lines[other].line} says {back} back"
                raise _fail(where, row.line, message, "the matrix is symmetric")


def _numbers(where: object, row: TopoRow, name: str) -> list[int] | None:
    text = row.affinities.get(name)
    return None if text is None else parse_cpulist(text, where=where, key=f"line {row.line}")


def _describe_gpu(where: object, row: TopoRow) -> dict[str, Any]:
    cpus, numa = _numbers(where, row, "cpus"), _numbers(where, row, "numa")
    own = _numbers(where, row, "gpu_numa_id")
    if own is not None and len(own) != 1:
        raise _fail(
            where, row.line, f"GPU NUMA ID of {row.label} is {row.affinities['gpu_numa_id']!r}", "one number"
        )
    return {
        "index": int(row.label[3:]),
        "cpus": None if cpus is None else format_cpulist(cpus),
        "numa_nodes": numa,
        "gpu_numa_id": None if own is None else own[0],
    }


def parse_topo(text: str, *, where: object = "nvidia-smi topo -m") -> dict[str, Any]:
    """Read the matrix: ``{columns, gpus, links, nics}``; links as ``{a, b, class, nvlinks}`` with a < b.

    Lines before the header (a shell prompt, a date) are passed over, and so is the legend, except for the
    names of the NICs. Raises BadInput, naming the line, when there is no header, a row is short, doubled or
    missing, a cell is no link class, the two halves of the matrix differ, or an affinity is no list of
    numbers.
    """
    header: tuple[list[str], list[str]] | None = None
    header_line, ended = 0, False
    rows: list[TopoRow] = []
    names: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _ESCAPES.sub("", raw).rstrip()
        if header is None:
            header = _header_columns(line)
            header_line = number
            if header and len(header[0]) > MOST_DEVICES:
                raise _fail(where, number, f"{len(header[0])} devices", f"at most {MOST_DEVICES}")
            if header and len(set(header[0])) != len(header[0]):
                raise _fail(where, number, "a device has two columns")
            continue
        label = line.split(maxsplit=1)[0] if line.strip() else ""
        legend = _NIC_LEGEND.match(line)
        if legend:
            names[legend[1]] = legend[2][:64]
        elif label in header[0] and not ended:
            if label in {row.label for row in rows}:
                raise _fail(where, number, f"{label} has a second row")
            rows.append(_read_row(where, number, line, *header))
        elif re.match(r"(?i)^\s*(nic\s+)?legend", line):
            ended = True
        elif _GPU.match(label):
            raise _fail(where, number, f"{label} has a row and no column in the header")
        elif line.strip() and not ended and len(rows) < len(header[0]):
            raise _fail(
                where,
                number,
                f"{line.strip()[:60]!r} is no row of the matrix",
                "a device of the header first",
            )
    if header is None:
        raise _fail(where, 1, "no header line with GPU0 in it", "the output of `nvidia-smi topo -m`")
    _check_matrix(where, rows, header[0], header_line)
    gpus = sorted((row for row in rows if _GPU.match(row.label)), key=lambda row: int(row.label[3:]))
    links = []
    for place, row in enumerate(gpus):
        for other in gpus[place + 1 :]:
            link = row.classes[other.label]
            a, b = int(row.label[3:]), int(other.label[3:])
            links.append({"a": a, "b": b, "class": link, "nvlinks": nvlink_count(link)})
    nics = []
    for row in rows:
        if not _GPU.match(row.label):
            to_gpus = {gpu.label[3:]: gpu.classes[row.label] for gpu in gpus}
            device = names.get(row.label) or (None if row.label.startswith("NIC") else row.label)
            nics.append({"name": row.label, "device": device, "classes": to_gpus})
    return {
        "columns": header[1],
        "gpus": [_describe_gpu(where, row) for row in gpus],
        "links": links,
        "nics": nics,
    }
