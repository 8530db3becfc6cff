"""Scripted faults: what the simulated server does wrong, when, and to which request."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from assay.errors import BadInput
from assay.rehearsal.node import Node
from assay.rehearsal.profile import Profile
from assay.vocab import RehearsalFault as Kind

MATCH = {
    "after_load_requests": (0, "load requests that must have ended before; gate tasks are none"),
    "nth": (1, "the first such request that it meets"),
    "every": (0, "after that every so many of them; 0: never again"),
}
PARAMETERS: dict[Kind, dict[str, tuple[Any, str]]] = {
    Kind.WILL_NOT_LOAD: {
        "after_s": (5.0, "simulated seconds after the start"),
        "message": ("KeyError: 'model.layers.3.mlp.experts.weight_scale_inv'", "last line of the log"),
    },
    Kind.CRASH_AT_CONCURRENCY: {
        "concurrency": (64, "requests in flight"),
        "after_load_requests": MATCH["after_load_requests"],
    },
    Kind.ILLEGAL_MEMORY: {
        "after_s": (1020.0, "simulated seconds with a load running"),
        "replica": (1, "the replica that the log names"),
    },
    Kind.HTTP_500: {
        "kind": ("json", "gate kind of the request, or load"),
        **MATCH,
        "after_load_requests": (1, ""),
    },
    Kind.INCOMPLETE_JSON: {
        "load_in_flight": (1, "load requests that must be in flight"),
        **MATCH,
        "every": (1, ""),
    },
    Kind.THINKING_IGNORED: {
        "channel": ("reasoning", "reasoning, or content for a <think> block in the answer")
    },
    Kind.STATE_POOL_LIMIT: {"sequences": (16, "sequences of a replica that really run")},
    Kind.SLOW_REPLICA: {"replica": (0, "which one"), "factor": (1.5, "how much longer its steps take")},
    Kind.COMPILE_STALL: {"stall_s": (20.0, "simulated seconds of the first step of each shape")},
    Kind.HANG: dict(MATCH),
    Kind.STREAM_CUT: {"after_tokens": (8, "tokens sent before the cut"), **MATCH},
    Kind.WRONG_USAGE: {"offset": (-3, "added to completion_tokens"), **MATCH, "every": (1, "")},
    Kind.BROKEN_DRAFT: {"acceptance": (0.02, "probability that the first draft token is right")},
}
LOAD = "load"


@dataclass(frozen=True)
class Fault:
    """One scripted fault with its parameters filled in."""

    kind: Kind
    values: Mapping[str, Any]


def read_faults(items: Iterable[Mapping[str, Any]], where: object = "faults") -> list[Fault]:
    """``[{"kind": ..., parameter: value}]``. BadInput for an unknown kind, parameter, or type."""
    faults = []
    for index, item in enumerate(items):
        key = f"faults[{index}]"
        try:
            kind = Kind(item.get("kind", ""))
        except ValueError:
            near = difflib.get_close_matches(str(item.get("kind")), [k.value for k in Kind], n=1)
            hint = f"did you mean {near[0]!r}?" if near else ", ".join(Kind)
            raise BadInput(
                f"no fault {item.get('kind')!r}", where=where, key=f"{key}.kind", hint=hint
            ) from None
        known = PARAMETERS[kind]
        values = {name: default for name, (default, _) in known.items()}
        for name, value in item.items():
            if name == "kind":
                continue
            if name not in known:
                raise BadInput("no such parameter", where=where, key=f"{key}.{name}", hint=", ".join(known))
            wanted = type(values[name])
            if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else wanted):
                raise BadInput(
                    f"{value!r} is of the wrong type", where=where, key=f"{key}.{name}", hint=wanted.__name__
                )
            values[name] = value
        faults.append(Fault(kind, values))
    return faults


class FaultBook:
    """The faults of one server, and the counts that decide when they strike."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        self._met: dict[int, int] = {}
        self.n_load_done = 0
        self.n_load_in_flight = 0
        self.n_in_flight = 0
        self._busy_s = 0.0
        self._t_seen_s: float | None = None

    def find(self, kind: Kind) -> Fault | None:
        return next((fault for fault in self.faults if fault.kind is kind), None)

    def alter(self, profile: Profile) -> Profile:
        """The profile with what a fault changes of the model."""
        broken = self.find(Kind.BROKEN_DRAFT)
        if broken is None:
            return profile
        accepted = (float(broken.values["acceptance"]),)
        return replace(profile, acceptance_text=accepted, acceptance_random=accepted, acceptance_spread=0.0)

    def prepare(self, node: Node) -> None:
        """Apply the faults that are there from the start."""
        for fault in self.faults:
            if fault.kind is Kind.STATE_POOL_LIMIT:
                for replica in node.all_replicas:
                    replica.slot_limit = min(replica.slot_limit, int(fault.values["sequences"]))
            elif fault.kind is Kind.COMPILE_STALL:
                for replica in node.all_replicas:
                    replica.stall_s = float(fault.values["stall_s"])
            elif fault.kind is Kind.SLOW_REPLICA:
                place = int(fault.values["replica"])
                if not 0 <= place < len(node.replicas):
                    raise BadInput(f"there is no replica {place}", where="faults", key="slow_replica.replica")
                node.replicas[place].slowness = float(fault.values["factor"])

    # ------------------------------------------------------------------ requests

    def arrives(self, kind: str | None) -> None:
        """A request arrives; ``kind`` is the gate's, None for load."""
        self.n_in_flight += 1
        self.n_load_in_flight += kind is None

    def ends(self, kind: str | None) -> None:
        """A request has ended, in whatever way."""
        self.n_in_flight -= 1
        if kind is None:
            self.n_load_in_flight -= 1
            self.n_load_done += 1

    def strikes(self, fault: Kind, kind: str | None) -> Mapping[str, Any] | None:
        """The parameters of a fault that strikes this request, or None. Counts the requests it meets."""
        for index, item in enumerate(self.faults):
            if item.kind is not fault:
                continue
            values = item.values
            if "kind" in values and values["kind"] != (kind or LOAD):
                continue
            if fault is Kind.INCOMPLETE_JSON and (
                kind != "json" or self.n_load_in_flight < values["load_in_flight"]
            ):
                continue
            if fault in (Kind.STREAM_CUT, Kind.WRONG_USAGE, Kind.HANG) and kind is not None:
                continue  # these are met by load; gates are asked before and after it
            if self.n_load_done < values["after_load_requests"]:
                continue
            met = self._met[index] = self._met.get(index, 0) + 1
            late = met - int(values["nth"])
            if late == 0 or (late > 0 and values["every"] and late % int(values["every"]) == 0):
                return values
        return None

    def crash_log(self, t_s: float) -> list[str] | None:
        """The last lines of a log when the process must die now, at simulated ``t_s``."""
        if self._t_seen_s is not None and self.n_load_in_flight >= 2:
            self._busy_s += t_s - self._t_seen_s
        self._t_seen_s = t_s
        for fault in self.faults:
            values = fault.values
            if (
                fault.kind is Kind.CRASH_AT_CONCURRENCY
                and self.n_in_flight >= values["concurrency"]
                and self.n_load_done >= values["after_load_requests"]
            ):
                return [
                    f"scheduler: {self.n_in_flight} requests in flight",
                    "CUDA error: device-side assert triggered",
                    "EngineDeadError: the engine core died",
                ]
            if fault.kind is Kind.ILLEGAL_MEMORY and self._busy_s >= values["after_s"]:
                return [
                    f"replica {values['replica']}: CUDA error: an illegal memory access was encountered",
                    "in an asynchronous output copy; the kernel that caused it may be an earlier one",
                    "EngineDeadError: the engine core died",
                ]
        return None
