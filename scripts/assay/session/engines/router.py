"""vllm-router in front of replicas: its flags, its argv, what it says it runs. Never retries, breaks no circuit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import BadInput
from assay.session.engines import parser
from assay.session.engines.told import Answers, log_lines, number

NAME = "vllm_router"
READY_PATH = "/readiness"
RETRIES = "a retried request hides a failure: retries and the circuit breaker are off"
BY_HARNESS = "the harness sets it, from the arm's replicas and the lease"
RESERVED = {
    **dict.fromkeys(
        ("host", "port", "worker_urls", "prefill", "decode", "vllm_pd_disaggregation"), BY_HARNESS
    ),
    **dict.fromkeys(("prometheus_host", "prometheus_port", "log_dir", "health_check_endpoint"), BY_HARNESS),
    **dict.fromkeys(("disable_retries", "retry_max_retries", "retry_initial_backoff_ms"), RETRIES),
    **dict.fromkeys(("retry_max_backoff_ms", "retry_backoff_multiplier", "retry_jitter_factor"), RETRIES),
    **dict.fromkeys(("disable_circuit_breaker", "cb_failure_threshold", "cb_success_threshold"), RETRIES),
    **dict.fromkeys(("cb_timeout_duration_secs", "cb_window_duration_secs"), RETRIES),
    "api_key": "secrets come from the environment and are never recorded",
    **dict.fromkeys(("service_discovery", "mini_lb", "enable_igw"), "the replicas are those of the arm"),
}
ALWAYS = (
    "policy", "max_concurrent_requests", "queue_size", "queue_timeout_secs", "request_timeout_secs",
    "health_check_interval_secs", "health_check_timeout_secs", "health_failure_threshold", "max_payload_size",
)  # fmt: skip
"""Flags that are always written out, so that the record holds what limits the load."""
DEFAULTS = {"policy": "round_robin"}
"""Ours where they are not the router's: its cache_aware sends prompts that begin alike to one replica."""

STARTED = re.compile(r"Starting router on \S+ \| mode: (\w+).*\| policy: (\w+)")
QUEUE = re.compile(r"Started request queue with size: (\d+), timeout: (\d+)s")
HEALTH = re.compile(r"Started health checker for workers with (\d+)s interval")


def load(version: str | None = None) -> parser.Parser:
    """The router's parser; the newest captured one without a version."""
    return parser.load_parser(NAME, version or parser.versions(NAME)[-1])


def check(router: Mapping[str, Any], where: Path, key: str) -> None:
    """BadInput for the first flag of an arm's ``router`` that it would not take."""
    version = router.get("version") or parser.versions(NAME)[-1]
    found = parser.captured(NAME, version, where, f"{key}.version")
    parser.check(found, router.get("flags", {}), where, f"{key}.flags", RESERVED)


def resolve(router: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that the router will run with: those asked for, and every limit and timeout by its default."""
    known = load(router.get("version"))
    plain = {name: known.flags[name]["default"] for name in ALWAYS if name in known.flags}
    return plain | DEFAULTS | dict(router.get("flags", {}))


def argv(python: str, router: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> list[str]:
    """The command line. ``{port}``, ``{prometheus_port}`` and ``{url:<member>}`` are filled in at the start.

    Members with the roles ``prefill`` and ``decode`` make it the split mode; ``replica`` the plain one.
    """
    command = [python, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", "{port}"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", "{prometheus_port}"]
    command += ["--disable-retries", "--disable-circuit-breaker"]
    command += parser.words(load(router.get("version")), resolve(router))
    if any(member["role"] != "replica" for member in members):
        command.append("--vllm-pd-disaggregation")
        for member in members:
            command += [f"--{member['role']}", f"{{url:{member['name']}}}"]
        return command
    return [*command, "--worker-urls", *[f"{{url:{member['name']}}}" for member in members]]


def version_argv(python: str) -> list[str]:
    """A command that prints the router's version."""
    return [python, "-c", "import importlib.metadata as m; print(m.version('vllm-router'))"]


def members_of(server: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The servers behind the router: ``{name, role, flags}``, from an arm's ``replicas`` or ``split``.

    In a split each role's flags lie over the arm's.
    """
    if "split" in server:
        return [
            {"name": f"{role}{number}", "role": role, "flags": {**server["flags"], **part.get("flags", {})}}
            for role in ("prefill", "decode")
            for part in [server["split"][role]]
            for number in range(part.get("replicas", 1))
        ]
    return [
        {"name": f"r{number}", "role": "replica", "flags": dict(server["flags"])}
        for number in range(server.get("replicas", 1))
    ]


def needs_router(arm: Mapping[str, Any]) -> bool:
    """Is there more than one server to an arm?"""
    return "split" in arm or arm.get("replicas", 1) > 1 or "router" in arm


def read_back(log: Path) -> Answers:
    """Policy, mode, queue and health interval as the router's own log tells them, as `router.<flag>`."""
    told = Answers()
    for line in log_lines(log):
        if found := STARTED.search(line):
            told.tell("router.mode", found.group(1), "router.log")
            told.tell("router.policy", snake(found.group(2)), "router.log")
        elif found := QUEUE.search(line):
            told.tell("router.queue_size", number(found.group(1)), "router.log")
            told.tell("router.queue_timeout_secs", number(found.group(2)), "router.log")
        elif found := HEALTH.search(line):
            told.tell("router.health_check_interval_secs", number(found.group(1)), "router.log")
    return told


def snake(name: str) -> str:
    """`round_robin` of `RoundRobin`."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()


def check_members(arm: Mapping[str, Any], where: Path, key: str) -> None:
    """BadInput when replicas, split and router do not go together."""
    if "split" in arm and "replicas" in arm:
        raise BadInput(
            "has no meaning beside split",
            where=where,
            key=f"{key}.replicas",
            hint="each role has its own replicas",
        )
    if needs_router(arm) and "router" not in arm:
        raise BadInput(
            "several servers need a router",
            where=where,
            key=f"{key}.router",
            hint="router: {image: vllm_router}",
        )
    if "router" in arm and "split" not in arm and "replicas" not in arm:
        raise BadInput(
            "there is nothing to route", where=where, key=f"{key}.router", hint="give replicas or split"
        )
    if "split" in arm and arm["engine"] != "vllm":
        raise BadInput(
            f"{arm['engine']} has no split that the router knows",
            where=where,
            key=f"{key}.split",
            hint="engine: vllm",
        )
