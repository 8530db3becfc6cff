"""The load client: prompts in, ``requests.parquet`` and ``client.json`` out.

Names are looked up on first use, so that a client process, which starts from a module of this package, does
not import what only its parent needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.load.phase import run_load
    from assay.load.prompts import Prompt, read_prompts
    from assay.load.spec import LoadSpec
    from assay.load.summary import recover, summarise

__all__ = ["LoadSpec", "Prompt", "read_prompts", "recover", "run_load", "summarise"]

_HOMES = {
    "LoadSpec": "spec",
    "Prompt": "prompts",
    "read_prompts": "prompts",
    "recover": "summary",
    "run_load": "phase",
    "summarise": "summary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
