"""vLLM's OpenAI-compatible server, `vllm serve`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from assay.answer import ask
from assay.session.engines import parser
from assay.session.engines.base import EngineFiles, Flag, ReadBack
from assay.session.engines.told import Answers, first_match, from_repr, info_labels, log_lines, number, scalar

TIMEOUT_S = 10.0
BY_HARNESS = "the harness sets it, from the arm's model and the lease"
SECRET = "secrets come from the environment and are never recorded"
ONE_FILE = "every flag stands in the campaign file, where it is checked and read back"
RESERVED = {
    **dict.fromkeys(("model", "served_model_name", "host", "port", "uds"), BY_HARNESS),
    **dict.fromkeys(("api_key", "hf_token", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"), SECRET),
    "config": ONE_FILE,
    **dict.fromkeys(("headless", "grpc"), "the load client needs the HTTP server"),
    **dict.fromkeys(
        ("numa_bind", "numa_bind_nodes", "numa_bind_cpus", "device_ids"), "it comes from `placement`"
    ),
}

NON_DEFAULT = re.compile(r"non-default args: (\{.*\})\s*$")
ENGINE_LINE = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)$")
KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
KV_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
SPECULATIVE = re.compile(
    r"speculative_config=SpeculativeConfig\(method='([^']*)', model=(.*?), num_spec_tokens=(\d+)\)"
)
CHUNKED = re.compile(r"[Cc]hunked prefill is enabled with max_num_batched_tokens=(\d+)")
ENGINE_KEYS = {
    "max_seq_len": "max_model_len",
    "dtype": "dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "decode_context_parallel_size": "decode_context_parallel_size",
    "quantization": "quantization",
    "enforce_eager": "enforce_eager",
    "kv_cache_dtype": "kv_cache_dtype",
    "seed": "seed",
    "load_format": "load_format",
    "enable_prefix_caching": "enable_prefix_caching",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "trust_remote_code": "trust_remote_code",
    "disable_custom_all_reduce": "disable_custom_all_reduce",
}
"""Key of the engine's configuration line -> flag."""
CACHE_KEYS = {
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "enable_prefix_caching": "enable_prefix_caching",
    "cache_dtype": "kv_cache_dtype",
    "prefix_caching_hash_algo": "prefix_caching_hash_algo",
    "num_gpu_blocks_override": "num_gpu_blocks_override",
}
"""Label of vllm:cache_config_info -> flag."""


class Vllm:
    """The `vllm` engine."""

    name = "vllm"
    metrics_name = "vllm"
    keeps_connections = True
    own_of_each = frozenset({"port"})
    flags: Mapping[str, Flag] = {}
    parser_name: str | None = "vllm"
    reserved: Mapping[str, str] = RESERVED
    ready_path = "/health"
    ready_timeout_s = 1800.0

    def argv(self, flags: Mapping[str, Any], files: EngineFiles) -> list[str]:
        """`vllm serve` as a module of the image's Python; the flags in the order of their names."""
        assert files.version is not None
        place = list(files.placement["vllm_flags"]) if files.placement else []
        return [
            *files.prefix,
            *[files.python, "-m", "vllm.entrypoints.cli.main", "serve", files.model_path],
            *["--host", "127.0.0.1", "--port", "{port}", "--served-model-name", files.served_name],
            *parser.words(parser.load_parser("vllm", files.version), flags),
            *place,
        ]

    def environment(self, flags: Mapping[str, Any]) -> dict[str, str]:
        """No look-ups and no usage reports during a measurement; INFO is the level of what is read back."""
        return {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
        }

    def read_back(self, url: str, log: Path) -> ReadBack:
        """/version, /v1/models, the engine's configuration line, cache_config_info, then the parsed arguments.

        In that order: what the engine resolved stands before what the parser was given.
        """
        told, lines = Answers(), log_lines(log)
        with httpx.Client(base_url=url, trust_env=False) as client:
            version = str(ask(client, "/version", TIMEOUT_S).raise_for_status().json()["version"])
            model = ask(client, "/v1/models", TIMEOUT_S).raise_for_status().json()["data"][0]
            metrics = ask(client, "/metrics", TIMEOUT_S).raise_for_status().text
        told.tell("engine_version", version.partition("+")[0], "/version")
        told.tell("served_name", model["id"], "/v1/models")
        told.tell("max_model_len", model.get("max_model_len"), "/v1/models")
        self._engine_line(told, lines)
        caches = info_labels(metrics, "vllm:cache_config_info")
        for label, flag in CACHE_KEYS.items():
            values = {scalar(cache[label]) for cache in caches if label in cache}
            if len(values) == 1:
                told.tell(flag, values.pop(), "/metrics vllm:cache_config_info")
        self._arguments(told, lines)
        return ReadBack(told.values, told.sources, self._capacity(lines, caches), version)

    def _engine_line(self, told: Answers, lines: list[str]) -> None:
        found = first_match(lines, ENGINE_LINE)
        if found is None:
            return
        source, text = "server.log: the engine's configuration", found.group(2)
        if draft := SPECULATIVE.search(text):
            told.tell("speculative_config.method", draft.group(1), source)
            told.tell("speculative_config.num_speculative_tokens", int(draft.group(3)), source)
        elif "speculative_config=None" in text:
            told.tell("speculative_config", None, source)
        for key, flag in ENGINE_KEYS.items():
            # Nested configurations repeat some keys: the plain ones come first in the line.
            value = re.search(rf"(?:^|, ){key}=([^,()]*?)(?:,|$)", text)
            if value:
                told.tell(flag, scalar(value.group(1).removeprefix("torch.")), source)
        if chunk := first_match(lines, CHUNKED):
            told.tell("max_num_batched_tokens", int(chunk.group(1)), "server.log: the scheduler")

    def _arguments(self, told: Answers, lines: list[str]) -> None:
        found = first_match(lines, NON_DEFAULT)
        if found is None:
            return
        try:
            arguments = from_repr(found.group(1))
        except ValueError:
            return  # what it holds stays unread, and is listed so
        for name, value in arguments.items():
            told.tell_all(str(name), value, "server.log: non-default args, as parsed")

    def _capacity(self, lines: list[str], caches: list[dict[str, str]]) -> dict[str, int | float | None]:
        tokens, concurrency = first_match(lines, KV_TOKENS), first_match(lines, KV_CONCURRENCY)
        blocks = [scalar(cache.get("num_gpu_blocks", "None")) for cache in caches]
        known = [count for count in blocks if isinstance(count, int)]
        return {
            "kv_tokens": number(tokens.group(1)) if tokens else None,
            "context_tokens": number(concurrency.group(1)) if concurrency else None,
            "max_concurrency": float(concurrency.group(2)) if concurrency else None,
            "kv_blocks": sum(known) if known and len(known) == len(blocks) else None,
        }
