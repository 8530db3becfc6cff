"""One module per engine behind one small interface. `engine(name)` gives it."""

from __future__ import annotations

from assay.session.engines.base import Engine, EngineFiles, Flag, ReadBack
from assay.session.engines.llama_cpp import LlamaCpp
from assay.session.engines.rehearsal import Rehearsal, rehearse
from assay.session.engines.sglang import Sglang
from assay.session.engines.vllm import Vllm

ENGINES: dict[str, Engine] = {
    "llama_cpp": LlamaCpp(),
    "rehearsal": Rehearsal(),
    "sglang": Sglang(),
    "vllm": Vllm(),
}

__all__ = ["ENGINES", "Engine", "EngineFiles", "Flag", "ReadBack", "engine", "rehearse"]


def engine(name: str) -> Engine:
    """The engine called ``name``; KeyError for one that the campaign schema does not know either."""
    return ENGINES[name]
