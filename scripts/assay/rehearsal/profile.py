"""What a model costs on some hardware: the parameters of the simulation, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from assay.config.files import read_config
from assay.digest import PACKAGE_ROOT
from assay.errors import BadInput

CHECKOUT_ROOT = PACKAGE_ROOT.parents[1]
PROFILE_SCHEMA = "rehearsal_profile"


def _doc(text: str, default: Any) -> Any:
    return field(default=default, metadata={"doc": text})


@dataclass(frozen=True)
class Profile:
    """Parameters of one model on one kind of node. Times in seconds, sizes in GiB or tokens.

    A step's time is in `cost`. A profile file must give each value a ``source`` or say ``assumed`` and why;
    what a file leaves out has the value here, which is that of a node without the effect.
    """

    name: str = "unnamed"
    # one forward pass
    step_fixed_s: float = _doc("floor of a step: weights that every step reads, and launch overhead", 0.008)
    host_step_s: float = _doc("what the host needs for a step with graphs; the longer of both counts", 0.0)
    host_step_eager_s: float = _doc("what the host needs for a step in eager mode", 0.0)
    moe_load_s: float = _doc("reading all experts of a mixture of experts once", 0.0)
    moe_tokens: float = _doc("tokens in a step after which 63 % of the experts are read", 16.0)
    token_s: float = _doc("each decoded or verified token of a step", 0.0002)
    decode_context_s: float = _doc("attention of one decoded token per token of its context", 0.0)
    prefill_token_s: float = _doc("each prompt token of a step", 0.00003)
    prefill_context_s: float = _doc("attention of a prompt token per token before it", 0.0)
    prefill_request_s: float = _doc("each request that has prompt tokens in a step", 0.0)
    mixed_step_s: float = _doc("a step with prompt tokens, which runs without full graphs", 0.0)
    # speculation
    draft_fixed_s: float = _doc("each draft token of a step, whatever the batch", 0.0)
    draft_token_s: float = _doc("each draft token of each sequence", 0.0)
    draft_prefill_share: float = _doc("what the draft head adds to a prompt's cost, as a share", 0.0)
    acceptance_text: tuple[float, ...] = _doc(
        "probability that draft token i is right after i-1 right ones", ()
    )
    acceptance_random: tuple[float, ...] = _doc("the same after a prompt of random token ids", ())
    acceptance_spread: float = _doc("spread between requests, as the sigma of a shift of the log-odds", 0.0)
    # memory
    kv_block_tokens: int = _doc("tokens of a KV block", 16)
    gpu_gib: float = _doc("memory of one GPU", 140.0)
    weights_gib: float = _doc("weights and workspace on one GPU", 60.0)
    draft_gib: float = _doc("what speculation takes of the KV memory of one GPU", 0.0)
    kv_tokens_per_gib: float = _doc(
        "tokens of KV cache in a GiB, summed over the GPUs of a replica", 20_000.0
    )
    # prefill and decode apart
    handoff_s: float = _doc("from the end of a prefill to its decode engine", 0.0)
    handoff_token_s: float = _doc("moving one prompt token's KV", 0.0)
    eager_prefill_factor: float = _doc("how much longer a prompt takes in eager mode", 1.0)
    eager_prefill_request_s: float = _doc("each request of a prefill step in eager mode", 0.0)
    # life
    ready_s: float = _doc("from the start of the process until it answers", 60.0)
    http_s: float = _doc("from the arrival of a request until the scheduler sees it", 0.0)
    # the model's habits
    answer_median_tokens: float = _doc("median length of an answer that ends by itself", 400.0)
    answer_sigma: float = _doc("sigma of the logarithm of that length", 0.8)
    reasoning_median_tokens: float = _doc("median length of the reasoning before an answer", 96.0)
    thinks_by_default: bool = _doc("does the chat template open a thinking block unless told not to", False)

    def with_values(self, values: Mapping[str, Any], where: object = None) -> Profile:
        """A copy with some parameters replaced. Raises BadInput for a name that there is not."""
        known = {item.name for item in fields(self)} - {"name"}
        for name in values:
            if name not in known:
                raise BadInput("no such parameter", where=where, key=str(name), hint=", ".join(sorted(known)))
        fixed: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return replace(self, **fixed)

    def kv_capacity_tokens(self, gpus: int, memory_target: float, speculating: bool) -> int:
        """Tokens of KV cache of one replica, in whole blocks; 0 when the weights alone do not fit."""
        gib = self.gpu_gib * memory_target - self.weights_gib - (self.draft_gib if speculating else 0.0)
        blocks = int(max(gib, 0.0) * gpus * self.kv_tokens_per_gib) // self.kv_block_tokens
        return blocks * self.kv_block_tokens


def read_profile(path: Path, root: Path = CHECKOUT_ROOT) -> Profile:
    """Read and check a profile file. BadInput names file and key."""
    config = read_config(root, PROFILE_SCHEMA, path)
    values = {name: entry["value"] for name, entry in config["parameters"].items()}
    return replace(Profile().with_values(values, path), name=config["name"])


def parameter_docs() -> dict[str, str]:
    """Parameter -> what it is."""
    return {item.name: item.metadata["doc"] for item in fields(Profile) if "doc" in item.metadata}
