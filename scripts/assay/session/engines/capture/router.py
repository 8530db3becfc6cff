"""vllm-router's parser: every flag is written out."""

from __future__ import annotations

from typing import Any

from assay.session.engines.capture.arguments import calls, describe
from assay.session.engines.capture.sources import Sources, method_of


def capture(sources: Sources) -> dict[str, Any]:
    """``{"flags": {...}, "configs": {}}`` of `vllm-router`."""
    module = sources.must("vllm_router.router_args")
    _, owner = sources.class_of(module, "RouterArgs")
    flags: dict[str, Any] = {}
    for call in calls(method_of(owner, "add_cli_args")):
        found = describe(sources, module, call)
        if found is not None:
            flags[found[0]] = found[1]
    return {"flags": flags, "configs": {}}
