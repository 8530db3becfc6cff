"""The rehearsal engine: a simulated node that serves like a real one, on any CPU.

It is an engine of its own (flags as vLLM calls them, and the rehearsal's), or stands in for another engine:
`rehearse(engine("vllm"), {"time_scale": 20, ...})` takes vLLM's flags, runs what they mean on the simulated
node, and tells them back by the same names. The model file is a profile of config/rehearsal/profiles.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from assay.answer import ask
from assay.digest import PACKAGE_ROOT
from assay.errors import BadInput
from assay.session.engines.base import Engine, EngineFiles, Flag, ReadBack

CONFIG_PATH = "/rehearsal/config"
TIMEOUT_S = 10.0
OPTIONS = ("time_scale", "seed", "faults", "parameters", "recipe", "event_log")
"""Keys of the server's configuration beside profile, served_name, engine and flags."""

FLAGS: dict[str, Flag] = {
    "max_num_seqs": Flag(int, "sequence slots of a replica", minimum=1),
    "max_num_batched_tokens": Flag(int, "tokens of one step", minimum=1),
    "max_model_len": Flag(int, "context ceiling in tokens", minimum=1),
    "gpu_memory_utilization": Flag(float, "share of a GPU's memory that may be used"),
    "enable_prefix_caching": Flag(bool, "reuse KV blocks of prompts that begin alike"),
    "enforce_eager": Flag(bool, "no graphs"),
    "tensor_parallel_size": Flag(int, "GPUs of a replica", minimum=1),
    "replicas": Flag(int, "replicas behind a least-loaded router", minimum=1),
    "prefill_replicas": Flag(int, "engines that only prefill and hand over", minimum=0),
    "prefill_enforce_eager": Flag(bool, "no graphs in the engines that only prefill"),
    "num_speculative_tokens": Flag(int, "draft tokens; 0 for no speculation", minimum=0),
    "kv_cache_dtype": Flag(str, "type of the KV cache; its size is the profile's"),
    "time_scale": Flag(int, "simulated seconds in a second of the wall clock", minimum=1),
    "seed": Flag(int, "seed of everything random", minimum=0),
    "faults": Flag(list, "scripted faults, docs/rehearsal.md"),
    "parameters": Flag(dict, "parameters of the profile to replace"),
    "event_log": Flag(str, "file for what was really sent and when, in the session's folder"),
}


class Rehearsal:
    """The `rehearsal` engine, or the stand-in of ``stands_for``."""

    name = "rehearsal"
    metrics_name = "vllm"
    keeps_connections = True
    own_of_each = frozenset[str]()
    ready_path = "/health"
    ready_timeout_s = 120.0

    def __init__(self, stands_for: Engine | None = None, options: Mapping[str, Any] | None = None) -> None:
        unknown = sorted(set(options or {}) - set(OPTIONS))
        if unknown:
            raise BadInput("unknown option", where="rehearsal", key=unknown[0], hint=", ".join(OPTIONS))
        self.flags: Mapping[str, Flag] = FLAGS if stands_for is None else stands_for.flags
        self.parser_name = None if stands_for is None else stands_for.parser_name
        self.reserved: Mapping[str, str] = {} if stands_for is None else stands_for.reserved
        self._engine = self.name if stands_for is None else stands_for.name
        self._options = dict(options or {})

    def argv(self, flags: Mapping[str, Any], files: EngineFiles) -> list[str]:
        """The server runs in Assay's own environment: there is no image to rehearse."""
        own = set(OPTIONS) if self._engine == self.name else set()
        config = {
            "profile": files.model_path,
            "served_name": files.served_name,
            "engine": self._engine,
            "flags": {key: value for key, value in flags.items() if key not in own},
            **{key: value for key, value in flags.items() if key in own},
            **self._options,
        }
        text = json.dumps(config, sort_keys=True)
        if "{port}" in text:
            raise BadInput("the mark {port} may not stand in a flag", where="rehearsal")
        return [sys.executable, "-m", "assay.rehearsal.server", "--config", text, "--port", "{port}"]

    def environment(self, flags: Mapping[str, Any]) -> dict[str, str]:
        """The package that this process runs, and no other installed one."""
        return {"PYTHONPATH": str(PACKAGE_ROOT.parent)}

    def read_back(self, url: str, log: Path) -> ReadBack:
        """The scheduler's settings by the asked engine's names, from the server's own endpoint."""
        with httpx.Client(base_url=url, trust_env=False) as client:
            told = ask(client, CONFIG_PATH, TIMEOUT_S).raise_for_status().json()
            models = ask(client, "/v1/models", TIMEOUT_S).raise_for_status().json()
        values: dict[str, Any] = {"served_name": models["data"][0]["id"]}
        sources = {"served_name": "/v1/models"}
        for key, value in told["flags"].items():
            values[key], sources[key] = value, f"{CONFIG_PATH} flags"
        for key, value in told["not_simulated"].items():
            values[key], sources[key] = value, f"{CONFIG_PATH} not_simulated: as asked, without effect"
        if self._engine == self.name:
            for key, value in {
                **told["options"],
                "time_scale": told["time_scale"],
                "seed": told["seed"],
            }.items():
                values[key], sources[key] = value, f"{CONFIG_PATH} {key}"
        return ReadBack(values, sources, dict(told["capacity"]), told["version"])


def recipe_of_members(server: Mapping[str, Any]) -> dict[str, Any]:
    """The ``recipe`` option for an arm with ``replicas`` or a ``split``: one simulated node plays them all.

    Roles of a split share the arm's flags here, but for eager mode.
    """
    if "split" in server:
        roles = {role: server["split"][role] for role in ("prefill", "decode")}
        flags = {role: {**server["flags"], **about.get("flags", {})} for role, about in roles.items()}
        return {
            "prefill_replicas": roles["prefill"].get("replicas", 1),
            "replicas": roles["decode"].get("replicas", 1),
            "prefill_eager": bool(flags["prefill"].get("enforce_eager", False)),
            "eager": bool(flags["decode"].get("enforce_eager", False)),
        }
    return {"replicas": server["replicas"]} if "replicas" in server else {}


def rehearse(stands_for: Engine, options: Mapping[str, Any] | None = None) -> Rehearsal:
    """A stand-in for an engine: its flags, the simulated node. ``options``: see ``OPTIONS``. BadInput."""
    return Rehearsal(stands_for, options)
