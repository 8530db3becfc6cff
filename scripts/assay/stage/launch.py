"""What a leg starts: one server, or replicas behind a router as one process tree; and where they went."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from assay.probe import observed, placement
from assay.records.files import read_json, write_json
from assay.session import replicas
from assay.session.engines import Engine, EngineFiles, ReadBack, replica_group, router
from assay.session.lease import Session
from assay.session.processes import ProcessId, read_environment
from assay.session.readback import compare_config
from assay.vocab import Verdict

ROUTER_TIMEOUT_S = 60.0
"""More for the group than for one of its members: the router starts when all of them are ready."""


@dataclass(frozen=True)
class Launch:
    """A server's command as the lease takes it; ``{port}`` stands for the session's port."""

    argv: list[str]
    environment: dict[str, str]
    ready_path: str
    ready_timeout_s: float


def place(server: Mapping[str, Any], topology: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where each member goes, by the arm's ``placement``: one entry of `placement.plan` each. BadInput."""
    wanted = [{"name": member["name"], **server["placement"]} for member in router.members_of(server)]
    return placement.plan(dict(topology), wanted)


def launch(
    engine: Engine,
    server: Mapping[str, Any],
    files: EngineFiles,
    router_python: str | None,
    placed: list[dict[str, Any]],
    ready_timeout_s: float | None,
) -> Launch:
    """The command of a leg's server. Pure."""
    members = router.members_of(server)
    timeout_s = ready_timeout_s or engine.ready_timeout_s
    parts: list[dict[str, Any]] = []
    for number, member in enumerate(members):
        own = replace(
            files, version=server.get("engine_version"), placement=placed[number] if placed else None
        )
        parts.append(
            {
                "name": member["name"],
                "role": member["role"],
                "argv": engine.argv(member["flags"], own),
                "environment": engine.environment(member["flags"])
                | server.get("environment", {})
                | own.place_environment
                | side_channel(member),
                "ready_path": engine.ready_path,
                "ready_timeout_s": timeout_s,
            }
        )
    if "router" not in server:
        (one,) = parts
        return Launch(one["argv"], one["environment"], engine.ready_path, timeout_s)
    assert router_python is not None
    for part in parts:
        # The lease fills in {port} for the router; each member has a port of its own.
        part["argv"] = [word.replace("{port}", "{member_port}") for word in part["argv"]]
    order = {
        "port": "{port}",
        "members": parts,
        "router": {
            "argv": router.argv(router_python, server["router"], members),
            "version_argv": router.version_argv(router_python),
            "flags": router.resolve(server["router"]),
        },
    }
    argv = [sys.executable, str(Path(replica_group.__file__)), "--order", json.dumps(order, sort_keys=True)]
    return Launch(argv, {}, router.READY_PATH, timeout_s + ROUTER_TIMEOUT_S)


def launch_one(
    engine: Engine, server: Mapping[str, Any], files: EngineFiles, ready_timeout_s: float
) -> Launch:
    """The command of a server that is one process, whatever it plays: the simulated node. Pure."""
    argv, environment = engine.argv(server["flags"], files), engine.environment(server["flags"])
    return Launch(argv, environment, engine.ready_path, ready_timeout_s)


def side_channel(member: Mapping[str, Any]) -> dict[str, str]:
    """vLLM's NIXL connector listens on a port of its own: each member of a split needs another."""
    if member["role"] == "replica":
        return {}
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": "{side_port}"}


def read_configuration(engine: Engine, server: Mapping[str, Any], session: Session) -> dict[str, Any]:
    """The object of `config_readback.json`: asked against told, by replica where there are several."""
    asked: dict[str, Any] = {**server["flags"], "served_name": server["served_name"]}
    if "engine_version" in server and "rehearsal" not in server:
        asked["engine_version"] = server["engine_version"]
    error, more = None, dict[str, Any]()
    try:
        group = replicas.read_group(session.folder)
        if group is None:
            told = engine.read_back(session.url, session.folder / "server.log")
        else:
            members = router.members_of(server)
            for member in members if "split" in server else ():
                asked |= {f"{member['role']}.{key}": value for key, value in member["flags"].items()}
                asked = {key: value for key, value in asked.items() if key not in member["flags"]}
            asked |= {"replicas": len(members)}
            asked |= {f"router.{key}": value for key, value in server["router"]["flags"].items()}
            told, more = replicas.read_back(engine, group, session.folder / "router.log", len(members))
        if "rehearsal" not in server:
            wanted = server.get("environment", {})
            asked |= {f"environment.{name}": value for name, value in wanted.items()}
            told = with_environment(told, wanted, server_processes(session, group))
    except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError, OSError) as problem:
        # An engine that does not tell leaves everything unread, which no policy takes for agreement.
        told, error = ReadBack({}, {}), f"{type(problem).__name__}: {problem}"
    record = compare_config(asked, told)
    record["mismatches"] += more.pop("disagreements", [])
    return record | {"error": error} | ({"replicas": more} if more else {})


def server_processes(session: Session, group: replicas.Group | None) -> list[ProcessId]:
    """The engine's own processes: the one server, or the members that live."""
    if group is not None:
        return [member.process for member in group.members if member.process is not None]
    server = ProcessId.from_record(session.record["server"])
    return [server] if server is not None else []


def with_environment(told: ReadBack, wanted: Mapping[str, str], processes: list[ProcessId]) -> ReadBack:
    """``told`` and the variables as all the engine's processes have them; one that they disagree on is unread."""
    if not wanted:
        return told
    found = [read_environment(process, wanted) for process in processes]
    agreed = {
        name: found[0][name]
        for name in wanted
        if found and all(one.get(name) == found[0].get(name) for one in found) and name in found[0]
    }
    values = {f"environment.{name}": value for name, value in agreed.items()}
    source = "/proc/<pid>/environ of the engine's processes"
    return replace(told, values=told.values | values, sources=told.sources | dict.fromkeys(values, source))


def check_placement(session: Session, planned: list[dict[str, Any]]) -> dict[str, Any] | None:
    """`placement.json` of a session, written once: the plan, what was seen of it, and what differs.

    None when no placement was asked for.
    """
    path = session.folder / "placement.json"
    if not planned:
        return None
    if path.exists():
        found: dict[str, Any] = read_json(path)
        return found
    group = replicas.read_group(session.folder)
    if group is None:
        pids = {planned[0]["replica"]: int(session.record["server"]["pid"])}
    else:
        pids = {member.name: member.process.pid for member in group.members if member.process is not None}
    seen = observed.observe(pids)
    findings = placement.check(planned, seen)
    wrong = [finding for finding in findings if finding["verdict"] == Verdict.FAIL]
    unread = [finding["name"] for finding in findings if finding["verdict"] == Verdict.NOT_RUN]
    record = {
        "schema": "assay/placement/1",
        "declared": planned,
        "observed": seen,
        "findings": findings,
        # None: something could not be observed and nothing was wrong, which is no agreement.
        "mismatches": wrong if wrong or not unread else None,
        "unread": unread,
    }
    write_json(path, record)
    return record
