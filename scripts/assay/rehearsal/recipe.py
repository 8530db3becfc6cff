"""How a model is served: the scheduler's settings, out of the flags of the engine that is rehearsed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.errors import BadInput

DEFAULT_MEMORY_TARGET = 0.9


@dataclass(frozen=True)
class Recipe:
    """Settings of one server. ``replicas`` counts decode replicas where prefill has engines of its own."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    memory_target: float = DEFAULT_MEMORY_TARGET
    kv_capacity_tokens: int | None = None
    prefix_caching: bool = False
    eager: bool = False
    gpus_per_replica: int = 1
    replicas: int = 1
    prefill_replicas: int = 0
    prefill_eager: bool = False
    draft_tokens: int = 0
    flags: Mapping[str, Any] = field(default_factory=dict)
    """The flags as they were asked, for the read-back."""

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "gpus_per_replica",
            "replicas",
        ):
            if getattr(self, name) < 1:
                raise BadInput(f"must be above 0, is {getattr(self, name)}", where="rehearsal", key=name)
        if self.draft_tokens < 0 or self.prefill_replicas < 0:
            raise BadInput("must not be negative", where="rehearsal", key="draft_tokens, prefill_replicas")


def _drop_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _speculation(value: Any) -> int | None:
    """vLLM's ``speculative_config``: a JSON object, as text or parsed."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BadInput(f"not JSON: {error}", where="flags", key="speculative_config") from error
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("num_speculative_tokens", 0), int):
        raise BadInput("not an object with num_speculative_tokens", where="flags", key="speculative_config")
    return int(value.get("num_speculative_tokens", 0))


def _rehearsal(flags: Mapping[str, Any]) -> dict[str, Any]:
    return _vllm({"enable_prefix_caching": False, **flags})


def _vllm(flags: Mapping[str, Any]) -> dict[str, Any]:
    draft = _speculation(flags.get("speculative_config"))
    return _drop_none(
        max_num_seqs=flags.get("max_num_seqs"),
        max_num_batched_tokens=flags.get("max_num_batched_tokens"),
        max_model_len=flags.get("max_model_len"),
        memory_target=flags.get("gpu_memory_utilization"),
        prefix_caching=flags.get("enable_prefix_caching", True),
        eager=flags.get("enforce_eager"),
        gpus_per_replica=flags.get("tensor_parallel_size"),
        replicas=flags.get("replicas", flags.get("data_parallel_size")),
        prefill_replicas=flags.get("prefill_replicas"),
        prefill_eager=flags.get("prefill_enforce_eager"),
        draft_tokens=flags.get("num_speculative_tokens", draft),
    )


def _sglang(flags: Mapping[str, Any]) -> dict[str, Any]:
    disable_cache = flags.get("disable_radix_cache")
    return _drop_none(
        max_num_seqs=flags.get("max_running_requests"),
        max_num_batched_tokens=flags.get("chunked_prefill_size"),
        max_model_len=flags.get("context_length"),
        memory_target=flags.get("mem_fraction_static"),
        kv_capacity_tokens=flags.get("max_total_tokens"),
        prefix_caching=True if disable_cache is None else not disable_cache,
        eager=flags.get("disable_cuda_graph"),
        gpus_per_replica=flags.get("tp_size", flags.get("tensor_parallel_size")),
        replicas=flags.get("replicas", flags.get("dp_size")),
        draft_tokens=flags.get("speculative_num_steps"),
    )


def _llama_cpp(flags: Mapping[str, Any]) -> dict[str, Any]:
    slots, context = flags.get("parallel", 4), flags.get("ctx_size", 4096)
    return _drop_none(
        max_num_seqs=slots,
        max_num_batched_tokens=flags.get("batch_size", 2048),
        max_model_len=max(context // max(slots, 1), 1),
        kv_capacity_tokens=context,
        prefix_caching=flags.get("cache_prompt", True),
        draft_tokens=0 if flags.get("spec_type", "none") == "none" else flags.get("spec_n_max", 8),
    )


TRANSLATIONS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "rehearsal": _rehearsal,
    "vllm": _vllm,
    "sglang": _sglang,
    "llama_cpp": _llama_cpp,
}


def recipe_of(engine: str, flags: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe that ``flags`` of ``engine`` ask for; ``overrides`` are the recipe's own names.

    A flag that changes nothing in the simulation is kept for the read-back. BadInput for an unknown engine.
    """
    translate = TRANSLATIONS.get(engine)
    if translate is None:
        raise BadInput(
            f"cannot rehearse {engine!r}", where="rehearsal", key="engine", hint=", ".join(TRANSLATIONS)
        )
    return Recipe(**{**translate(flags), **(overrides or {})}, flags=dict(flags))


def flags_of(engine: str, recipe: Recipe) -> dict[str, Any]:
    """The flags by ``engine``'s names that a running recipe amounts to: the other way round of `recipe_of`.

    Of two names for one setting the one that was asked for is told.
    """
    asked = recipe.flags
    if engine == "llama_cpp":
        told: dict[str, Any] = {
            "parallel": recipe.max_num_seqs,
            "batch_size": recipe.max_num_batched_tokens,
            "ctx_size": recipe.kv_capacity_tokens,
            "cache_prompt": recipe.prefix_caching,
            "spec_n_max": recipe.draft_tokens,
        }
        told["spec_type"] = asked.get("spec_type", "none") if recipe.draft_tokens else "none"
    elif engine == "sglang":
        told = {
            "max_running_requests": recipe.max_num_seqs,
            "chunked_prefill_size": recipe.max_num_batched_tokens,
            "context_length": recipe.max_model_len,
            "mem_fraction_static": recipe.memory_target,
            "max_total_tokens": recipe.kv_capacity_tokens,
            "disable_radix_cache": not recipe.prefix_caching,
            "disable_cuda_graph": recipe.eager,
            "tensor_parallel_size" if "tensor_parallel_size" in asked else "tp_size": recipe.gpus_per_replica,
            "replicas" if "replicas" in asked else "dp_size": recipe.replicas,
            "speculative_num_steps": recipe.draft_tokens,
        }
    else:
        told = {
            "max_num_seqs": recipe.max_num_seqs,
            "max_num_batched_tokens": recipe.max_num_batched_tokens,
            "max_model_len": recipe.max_model_len,
            "gpu_memory_utilization": recipe.memory_target,
            "enable_prefix_caching": recipe.prefix_caching,
            "enforce_eager": recipe.eager,
            "tensor_parallel_size": recipe.gpus_per_replica,
            "data_parallel_size" if "data_parallel_size" in asked else "replicas": recipe.replicas,
            "prefill_replicas": recipe.prefill_replicas,
            "prefill_enforce_eager": recipe.prefill_eager,
        }
        speculative = asked.get("speculative_config")
        if speculative is not None and _speculation(speculative) == recipe.draft_tokens:
            told["speculative_config"] = speculative
        else:
            told["num_speculative_tokens"] = recipe.draft_tokens
    return {name: value for name, value in told.items() if value is not None}
