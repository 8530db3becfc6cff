"""What every engine module offers, and the check of flags that they share."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from assay.errors import BadInput
from assay.session.engines import parser


@dataclass(frozen=True)
class Flag:
    """One flag of an engine: its type, its choices or least value, and where the server tells it."""

    type: type
    doc: str
    choices: tuple[Any, ...] | None = None
    minimum: int | None = None


@dataclass(frozen=True)
class EngineFiles:
    """What an argv needs from this machine: the image's interpreter, the model, the version, the place.

    ``version`` is the arm's ``engine_version``; ``placement`` an entry of `probe.placement.plan`, or None
    where the server goes anywhere.
    """

    python: str
    model_path: str
    served_name: str
    version: str | None = None
    placement: Mapping[str, Any] | None = None

    @property
    def prefix(self) -> list[str]:
        """The words before the server's own: numactl with the NUMA nodes of the placement."""
        return list(self.placement["numactl"]) if self.placement else []

    @property
    def place_environment(self) -> dict[str, str]:
        """The GPUs of the placement as variables."""
        return dict(self.placement["environment"]) if self.placement and self.placement["gpu_indices"] else {}


@dataclass(frozen=True)
class ReadBack:
    """What a running server says of itself, by the flags' names. ``sources`` says where each was read."""

    values: dict[str, Any]
    sources: dict[str, str]
    capacity: dict[str, int | float | None] = field(default_factory=dict)
    version: str | None = None


class Engine(Protocol):
    """An inference server. argv is a pure function of what was declared."""

    name: str
    metrics_name: str
    """Which table of `metrics.prometheus` names its counters."""
    keeps_connections: bool
    """False: the server ends each kept connection after an answer, and each request gets one of its own."""
    own_of_each: frozenset[str]
    """What the servers of one group tell differently by nature, such as a port: that is no disagreement."""
    ready_path: str
    ready_timeout_s: float
    """How long a server of this engine may take to become ready, unless the arm says otherwise."""

    flags: Mapping[str, Flag]
    """The flags of an engine without a captured parser; empty for one that has it."""
    parser_name: str | None
    """Whose captured parser judges the flags (`parser.load_parser`), or None for the table in ``flags``."""
    reserved: Mapping[str, str]
    """Flags of the captured parser that a campaign may not set, each with the reason."""

    def argv(self, flags: Mapping[str, Any], files: EngineFiles) -> list[str]:
        """The command line; ``{port}`` stands for the port."""
        ...

    def environment(self, flags: Mapping[str, Any]) -> dict[str, str]:
        """Variables that the server needs beside the allow-list."""
        ...

    def read_back(self, url: str, log: Path) -> ReadBack:
        """Ask the running server for its configuration. Unreadable values are absent, never guessed."""
        ...


def check_flags(
    engine: Engine, flags: Mapping[str, Any], where: Path, key: str, version: str | None = None
) -> None:
    """BadInput for the first flag that the engine does not know or whose value it would not take.

    ``version`` is the arm's ``engine_version``, which an engine with a captured parser needs.
    """
    if engine.parser_name is not None:
        version_key = f"{key.rpartition('.')[0]}.engine_version"
        found = parser.captured(engine.parser_name, version, where, version_key)
        parser.check(found, flags, where, key, engine.reserved)
        return
    for name, value in flags.items():
        flag, place = engine.flags.get(name), f"{key}.{name}"
        if flag is None:
            near = difflib.get_close_matches(name, list(engine.flags), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"flags: {', '.join(sorted(engine.flags))}"
            raise BadInput(f"{engine.name} has no such flag", where=where, key=place, hint=hint)
        # bool is an int to Python, and not to an engine
        if not isinstance(value, flag.type) or (flag.type is not bool and isinstance(value, bool)):
            raise BadInput(
                f"{value!r} is of the wrong type",
                where=where,
                key=place,
                hint=f"{flag.type.__name__}: {flag.doc}",
            )
        if flag.choices is not None and value not in flag.choices:
            raise BadInput(
                f"{value!r} is not a choice",
                where=where,
                key=place,
                hint=f"one of {', '.join(map(str, flag.choices))}",
            )
        if flag.minimum is not None and isinstance(value, int | float) and value < flag.minimum:
            raise BadInput(
                f"{value!r} is too small", where=where, key=place, hint=f"at least {flag.minimum}: {flag.doc}"
            )
