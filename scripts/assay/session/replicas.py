"""The servers behind one session: which there are, what each tells, which died, whose the failures are."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq

from assay.answer import ask
from assay.errors import Incomplete
from assay.metrics import prometheus
from assay.records.files import read_json
from assay.session.engines import Engine, ReadBack, router
from assay.session.processes import ProcessId, is_alive
from assay.vocab import ErrorClass, RequestStatus

RECORD = "replicas.json"
SCHEMA = "assay/replicas/1"
TIMEOUT_S = 10.0
ROUTED, OUTCOMES = "vllm_router_processed_requests_total", "vllm_router_cb_outcomes_total"
ADDED = ("kv_tokens", "kv_blocks", "slots", "state_slots", "max_concurrency")
"""Capacities that add up over replicas; any other is told only where all agree."""


@dataclass(frozen=True)
class Member:
    """One server behind the router."""

    name: str
    role: str
    url: str
    log: Path
    process: ProcessId | None
    t_exit_ns: int | None
    returncode: int | None

    def lives(self) -> bool:
        return self.t_exit_ns is None and is_alive(self.process)


@dataclass(frozen=True)
class Group:
    """The members of a session and their router, as replicas.json tells them now."""

    members: tuple[Member, ...]
    router: Mapping[str, Any]

    def lost(self) -> list[str]:
        """Names of the members that live no more."""
        return [member.name for member in self.members if not member.lives()]


def read_group(session_folder: Path) -> Group | None:
    """The group of a session; None when one server is all there is."""
    try:
        record = read_json(session_folder / RECORD)
    except Incomplete:
        return None
    members = tuple(
        Member(
            name,
            told["role"],
            told["url"],
            session_folder / told["log"],
            ProcessId.from_record(told["process"]),
            told["t_exit_ns"],
            told["returncode"],
        )
        for name, told in sorted(record["members"].items())
    )
    return Group(members, record["router"] or {})


def server_urls(session_folder: Path, url: str) -> list[str]:
    """Where the engine's own endpoints are: those of each member, or the one server's."""
    group = read_group(session_folder)
    return [url] if group is None else [member.url for member in group.members]


def read_back(
    engine: Engine, group: Group, router_log: Path, n_asked: int
) -> tuple[ReadBack, dict[str, Any]]:
    """What all members tell alike, and ``{"by_replica", "disagreements", "router"}`` for the record.

    A value that one member tells otherwise, or does not tell, is none of the group's: it stays unread, and a
    disagreement is listed. ``replicas`` is the number of members that answered.
    """
    told: dict[str, ReadBack] = {}
    errors: dict[str, str] = {}
    for member in group.members:
        try:
            told[member.name] = engine.read_back(member.url, member.log)
        except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError, OSError) as problem:
            errors[member.name] = f"{type(problem).__name__}: {problem}"
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    disagreements: list[dict[str, Any]] = []
    roles = sorted({member.role for member in group.members})
    for role in roles:
        # In a split the two roles are meant to differ: each is told under its own name.
        prefix = f"{role}." if len(roles) > 1 else ""
        alike = {m.name: told[m.name] for m in group.members if m.role == role and m.name in told}
        same, different = agree({name: answer.values for name, answer in alike.items()})
        for key, value in same.items():
            values[prefix + key] = value
            sources[prefix + key] = next(iter(alike.values())).sources.get(key, "")
        disagreements += [
            {**entry, "key": prefix + entry["key"]}
            for entry in different
            if entry["key"] not in engine.own_of_each
        ]
    routed = router.read_back(router_log)
    values |= {"replicas": len(told), **routed.values}
    sources |= {"replicas": "members that answered", **routed.sources}
    capacity = add_capacity([answer.capacity for answer in told.values()]) if len(told) == n_asked else {}
    versions = {answer.version for answer in told.values()}
    version = versions.pop() if len(versions) == 1 else None
    by_replica = {
        name: {"read": answer.values, "capacity": answer.capacity, "version": answer.version}
        for name, answer in told.items()
    }
    more = {
        "by_replica": by_replica,
        "disagreements": disagreements,
        "errors": errors,
        "router": dict(group.router),
    }
    return ReadBack(values, sources, capacity, version), more


def agree(by_replica: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(values that every replica tells alike, ``{"key", "read": {replica: value}}`` of the others)."""
    keys = sorted({key for values in by_replica.values() for key in values})
    same: dict[str, Any] = {}
    different: list[dict[str, Any]] = []
    for key in keys:
        read = {name: values.get(key) for name, values in by_replica.items()}
        texts = {json.dumps(value, sort_keys=True, default=str) for value in read.values()}
        if len(texts) == 1:
            same[key] = next(iter(read.values()))
        else:
            different.append({"key": key, "asked": None, "read": read})
    return same, different


def add_capacity(parts: Sequence[Mapping[str, Any]]) -> dict[str, int | float | None]:
    """Capacity of all replicas together; null where one does not tell."""
    total: dict[str, int | float | None] = {}
    for key in sorted({key for part in parts for key in part}):
        values = [part.get(key) for part in parts]
        if key in ADDED:
            known = [value for value in values if value is not None]
            total[key] = sum(known) if len(known) == len(values) else None
        else:
            total[key] = values[0] if all(value == values[0] for value in values) else None
    return total


def read_counters(group: Group, engine_name: str) -> dict[str, Any]:
    """Counters of each member and of the router now; a member that does not answer has null and a reason."""
    reading: dict[str, Any] = {"members": {}, "router": None}
    with httpx.Client(trust_env=False) as client:
        for member in group.members:
            told: dict[str, Any] = {"t_ns": time.monotonic_ns(), "alive": member.lives()}
            try:
                text = ask(client, f"{member.url}/metrics", TIMEOUT_S).raise_for_status().text
                told["metrics"] = prometheus.normalise(prometheus.parse(text), engine_name)
            except (httpx.HTTPError, ValueError) as error:
                told |= {
                    "metrics": dict.fromkeys(prometheus.NAMES),
                    "error": f"{type(error).__name__}: {error}",
                }
            reading["members"][member.name] = told
        try:
            reading["router"] = router_counters(
                ask(client, group.router["metrics_url"], TIMEOUT_S).raise_for_status().text, group
            )
        except (httpx.HTTPError, ValueError, KeyError) as error:
            reading["router_error"] = f"{type(error).__name__}: {error}"
    return reading


def router_counters(text: str, group: Group) -> dict[str, Any]:
    """The router's own counters: requests sent to each member, those it could not deliver, and its totals."""
    names = {member.url: member.name for member in group.members}
    per_member = {name: {"routed": 0.0, "undelivered": 0.0} for name in names.values()}
    totals: dict[str, float] = {}
    for family in prometheus.families(text):
        for sample in family.samples:
            name = names.get(sample.labels.get("worker", ""))
            if name is not None and sample.name == ROUTED:
                per_member[name]["routed"] += sample.value
            elif name is not None and sample.name == OUTCOMES and sample.labels.get("outcome") == "failure":
                per_member[name]["undelivered"] += sample.value
            elif name is None and "bucket" not in sample.name:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return {"members": per_member, "totals": totals}


def phase_record(
    before: Mapping[str, Any], after: Mapping[str, Any], group: Group, requests_file: Path
) -> dict[str, Any]:
    """`replicas.json` of one phase: counters, deaths and failed requests by replica.

    A failed request belongs to the member that the router's error answer names; one that names none
    belongs to the member that died in this phase, when exactly one did. Anything else is unattributed, and
    counted as that.
    """
    died = [
        name
        for name, told in before["members"].items()
        if told["alive"] and not after["members"][name]["alive"]
    ]
    failed, unattributed = failures(requests_file, group, died)
    members: dict[str, Any] = {}
    for member in group.members:
        first, last = before["members"][member.name], after["members"][member.name]
        growth, reasons = prometheus.delta(first["metrics"], last["metrics"])
        members[member.name] = {
            "role": member.role,
            "url": member.url,
            "alive_before": first["alive"],
            "alive_after": last["alive"],
            "t_exit_ns": member.t_exit_ns,
            "returncode": member.returncode,
            "before": first,
            "after": last,
            "delta": growth,
            "reasons": reasons,
            "routed": routed(before, after, member.name, "routed"),
            "undelivered": routed(before, after, member.name, "undelivered"),
            "failed_requests": failed[member.name],
        }
    return {
        "schema": SCHEMA,
        "members": members,
        "died": died,
        "failed_unattributed": unattributed,
        "router": {"before": before["router"], "after": after["router"]},
    }


def routed(before: Mapping[str, Any], after: Mapping[str, Any], name: str, key: str) -> float | None:
    """Growth of one of the router's counters for a member; None when one reading is missing."""
    if before["router"] is None or after["router"] is None:
        return None
    return float(after["router"]["members"][name][key] - before["router"]["members"][name][key])


def failures(requests_file: Path, group: Group, died: Sequence[str]) -> tuple[dict[str, dict[str, int]], int]:
    """Failed requests of each member, ``{"named", "inferred"}``, and how many belong to none."""
    counts = {member.name: {"named": 0, "inferred": 0} for member in group.members}
    unattributed = 0
    if not requests_file.exists():
        return counts, unattributed
    table = pq.read_table(requests_file, columns=["status", "error_class", "http_status", "body"])
    for row in table.to_pylist():
        if row["status"] != str(RequestStatus.FAILED):
            continue
        # Only an error answer is the router's own text; what a stream holds is the model's.
        refusal = (row["body"] or "") if row["http_status"] not in (None, 200) else ""
        named = [member.name for member in group.members if f"{member.url}/" in refusal]
        if len(named) == 1:
            counts[named[0]]["named"] += 1
        elif len(died) == 1 and row["error_class"] != str(ErrorClass.CLIENT):
            counts[died[0]]["inferred"] += 1
        else:
            unattributed += 1
    return counts, unattributed
