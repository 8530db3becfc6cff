"""llama.cpp's own server, from the `xllamacpp` wheel: runs on any CPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from assay.answer import ask
from assay.session.engines.base import EngineFiles, Flag, ReadBack

LAUNCHER = Path(__file__).with_name("llama_cpp_serve.py")
RESOLVED_MARK = "assay-resolved "
TIMEOUT_S = 10.0

FLAGS: dict[str, Flag] = {
    "ctx_size": Flag(int, "tokens of context over all slots", minimum=1),
    "parallel": Flag(int, "sequence slots", minimum=1),
    "threads": Flag(int, "CPU threads of one forward pass", minimum=1),
    "batch_size": Flag(int, "tokens of a logical batch", minimum=1),
    "ubatch_size": Flag(int, "tokens of a physical batch", minimum=1),
    "cont_batching": Flag(bool, "continuous batching"),
    "cache_prompt": Flag(bool, "reuse a slot's KV cache when the prompt begins alike"),
    "cache_ram_mib": Flag(int, "MiB of host memory for prompts that left their slot; 0 for none", minimum=-1),
    "kv_unified": Flag(bool, "one KV buffer for all slots"),
    "threads_http": Flag(int, "threads of the HTTP server", minimum=-1),
    "spec_type": Flag(str, "speculation without a second model", choices=("none", "ngram_mod")),
    "spec_n_match": Flag(int, "tokens that must match before n-gram speculation drafts", minimum=1),
    "spec_n_min": Flag(int, "least tokens of an n-gram draft", minimum=0),
    "spec_n_max": Flag(int, "most tokens of an n-gram draft", minimum=1),
}


class LlamaCpp:
    """The `llama_cpp` engine."""

    name = "llama_cpp"
    metrics_name = "llamacpp"
    keeps_connections = False
    own_of_each = frozenset[str]()
    flags: Mapping[str, Flag] = FLAGS
    ready_path = "/health"
    ready_timeout_s = 120.0

    parser_name: str | None = None
    reserved: Mapping[str, str] = {}

    def argv(self, flags: Mapping[str, Any], files: EngineFiles) -> list[str]:
        return [
            *files.prefix,
            files.python,
            str(LAUNCHER),
            "--model",
            files.model_path,
            "--alias",
            files.served_name,
            "--port",
            "{port}",
            "--flags",
            json.dumps(dict(flags), sort_keys=True),
        ]

    def environment(self, flags: Mapping[str, Any]) -> dict[str, str]:
        return {}

    def read_back(self, url: str, log: Path) -> ReadBack:
        """Slots, context and model from /props and /slots; the rest from the engine's parameters after start."""
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}

        def tell(name: str, value: Any, source: str) -> None:
            values[name], sources[name] = value, source

        resolved = resolved_line(log)
        for name in FLAGS:
            if name in resolved:
                tell(name, resolved[name], "the engine's parameters after start, in server.log")
        with httpx.Client(base_url=url, trust_env=False) as client:
            props = ask(client, "/props", TIMEOUT_S).raise_for_status().json()
            slots = ask(client, "/slots", TIMEOUT_S).raise_for_status().json()
            models = ask(client, "/v1/models", TIMEOUT_S).raise_for_status().json()
        n_slots, slot_ctx = props["total_slots"], props["default_generation_settings"]["n_ctx"]
        tell("parallel", n_slots, "/props total_slots")
        tell("ctx_size", n_slots * slot_ctx, "/props total_slots * n_ctx of a slot")
        tell("served_name", models["data"][0]["id"], "/v1/models")
        tell("model_file", Path(props["model_path"]).name, "/props model_path")
        if not any(slot.get("speculative") for slot in slots):
            # Asked for or not: what counts is that no slot speculates.
            tell("spec_type", "none", "/slots speculative")
        capacity = {"kv_tokens": n_slots * slot_ctx, "slots": n_slots, "context_tokens_per_slot": slot_ctx}
        return ReadBack(values, sources, capacity, str(resolved.get("build", props.get("build_info"))))


def resolved_line(log: Path) -> dict[str, Any]:
    """The parameters that the launcher printed once the engine held them; empty when it did not."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(RESOLVED_MARK):
            try:
                found = json.loads(line.removeprefix(RESOLVED_MARK))
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return {}
