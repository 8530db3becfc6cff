"""SGLang's server, `python -m sglang.launch_server`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from assay.answer import ask
from assay.session.engines import parser
from assay.session.engines.base import EngineFiles, Flag, ReadBack
from assay.session.engines.told import Answers, first_match, log_lines
from assay.session.engines.vllm import BY_HARNESS, ONE_FILE, SECRET

TIMEOUT_S = 10.0
RESERVED = {
    **dict.fromkeys(("model_path", "served_model_name", "host", "port"), BY_HARNESS),
    **dict.fromkeys(("api_key", "admin_api_key", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"), SECRET),
    "config": ONE_FILE,
    "enable_metrics": "it is always on: the counters are part of the record",
    "numa_node": "it comes from `placement`",
}
STATE_SLOTS = re.compile(r"Mamba Cache is allocated\. max_mamba_cache_size: (\d+)")
INFO_PATHS = ("/server_info", "/get_server_info")


class Sglang:
    """The `sglang` engine."""

    name = "sglang"
    metrics_name = "sglang"
    keeps_connections = True
    own_of_each = frozenset({"port", "nccl_port", "dist_init_addr", "base_gpu_id", "random_seed"})
    flags: Mapping[str, Flag] = {}
    parser_name: str | None = "sglang"
    reserved: Mapping[str, str] = RESERVED
    ready_path = "/health_generate"
    ready_timeout_s = 1800.0

    def argv(self, flags: Mapping[str, Any], files: EngineFiles) -> list[str]:
        """The server as a module of the image's Python; the flags in the order of their names."""
        assert files.version is not None
        return [
            *files.prefix,
            *[files.python, "-m", "sglang.launch_server", "--model-path", files.model_path],
            *["--host", "127.0.0.1", "--port", "{port}", "--served-model-name", files.served_name],
            "--enable-metrics",
            *parser.words(parser.load_parser("sglang", files.version), flags),
            *(files.placement["sglang_flags"] if files.placement else []),
        ]

    def environment(self, flags: Mapping[str, Any]) -> dict[str, str]:
        """No look-ups during a measurement."""
        return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

    def read_back(self, url: str, log: Path) -> ReadBack:
        """The resolved configuration from /server_info, under the flags' names; capacity there and in the log."""
        with httpx.Client(base_url=url, trust_env=False) as client:
            answer = ask(client, INFO_PATHS[0], TIMEOUT_S)
            path = INFO_PATHS[0]
            if answer.status_code == httpx.codes.NOT_FOUND:  # releases before the shorter name
                path = INFO_PATHS[1]
                answer = ask(client, path, TIMEOUT_S)
            info = answer.raise_for_status().json()
            model = ask(client, "/v1/models", TIMEOUT_S).raise_for_status().json()["data"][0]
        version = str(info["version"])
        states = [state for state in info.get("internal_states") or [] if isinstance(state, dict)]
        told = Answers()
        told.tell("engine_version", version.partition("+")[0], path)
        told.tell("served_name", model["id"], "/v1/models")
        known = parser.versions("sglang")
        used = parser.load_parser("sglang", version if version in known else known[-1])
        for name, flag in used.flags.items():
            field = flag.get("dest", name)
            resolved = [state[field] for state in states if field in state]
            resolved = resolved or [info[key] for key in (field,) if key in info]
            # Ranks that disagree have no one value: it stays unread.
            if resolved and all(value == resolved[0] for value in resolved):
                told.tell_all(name, resolved[0], path)
        return ReadBack(told.values, told.sources, self._capacity(info, states, log), version)

    def _capacity(
        self, info: dict[str, Any], states: list[dict[str, Any]], log: Path
    ) -> dict[str, int | float | None]:
        memory = [state.get("memory_usage") or {} for state in states]
        tokens: list[int] = [
            usage["token_capacity"] for usage in memory if usage.get("token_capacity") is not None
        ]
        slots: list[int] = [
            state["effective_max_running_requests_per_dp"]
            for state in states
            if state.get("effective_max_running_requests_per_dp") is not None
        ]
        state_slots = first_match(log_lines(log), STATE_SLOTS)
        return {
            "kv_tokens": sum(tokens) if tokens else info.get("max_total_num_tokens"),
            "slots": sum(slots) if slots and len(slots) == len(states) else None,
            "state_slots": int(state_slots.group(1)) if state_slots else None,
            "max_input_tokens": info.get("max_req_input_len"),
        }
