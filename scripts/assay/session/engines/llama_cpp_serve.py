"""Serve one GGUF model with llama.cpp's own server, from the `xllamacpp` wheel.

Runs inside the engine's image, where Assay itself is not installed: it must import nothing of Assay.
`python llama_cpp_serve.py --model M.gguf --port P --flags '{"ctx_size": 4096, ...}'` serves until it is
terminated. The flags and their meaning are in `llama_cpp.FLAGS`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import Any


def apply_flags(params: Any, flags: dict[str, Any], xllamacpp: Any) -> None:
    """Set each flag on llama.cpp's parameters; an unknown name raises KeyError."""
    direct = {
        "ctx_size": "n_ctx",
        "parallel": "n_parallel",
        "batch_size": "n_batch",
        "ubatch_size": "n_ubatch",
        "cont_batching": "cont_batching",
        "cache_prompt": "cache_prompt",
        "cache_ram_mib": "cache_ram_mib",
        "kv_unified": "kv_unified",
        "threads_http": "n_threads_http",
    }
    ngram = {"spec_n_match": "n_match", "spec_n_min": "n_min", "spec_n_max": "n_max"}
    for name, value in flags.items():
        if name in direct:
            setattr(params, direct[name], value)
        elif name == "threads":
            params.cpuparams.n_threads = value
            params.cpuparams_batch.n_threads = value
        elif name == "spec_type":
            kinds = xllamacpp.common_speculative_type
            params.speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{value.upper()}")]
        elif name in ngram:
            setattr(params.speculative.ngram_mod, ngram[name], value)
        else:
            raise KeyError(name)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="path of the GGUF file")
    parser.add_argument("--alias", required=True, help="name under which the model is served")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--flags", type=json.loads, default={}, help="JSON object of engine flags")
    options = parser.parse_args(argv)

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = [options.alias] if isinstance(params.model_alias, list) else {options.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    apply_flags(params, options.flags, xllamacpp)
    server = xllamacpp.Server(params)
    # The flags that no endpoint tells are printed as the engine holds them after start, for the read-back.
    speculative = params.speculative
    resolved = {
        "threads": params.cpuparams.n_threads,
        "batch_size": params.n_batch,
        "ubatch_size": params.n_ubatch,
        "cont_batching": params.cont_batching,
        "cache_prompt": params.cache_prompt,
        "cache_ram_mib": params.cache_ram_mib,
        "kv_unified": params.kv_unified,
        "threads_http": params.n_threads_http,
        "spec_type": str(speculative.types[0].name).removeprefix("COMMON_SPECULATIVE_TYPE_").lower(),
        "spec_n_match": speculative.ngram_mod.n_match,
        "spec_n_min": speculative.ngram_mod.n_min,
        "spec_n_max": speculative.ngram_mod.n_max,
        "build": xllamacpp.BUILD_INFO if isinstance(xllamacpp.BUILD_INFO, str) else str(xllamacpp.BUILD_INFO),
    }
    print("assay-resolved " + json.dumps(resolved, sort_keys=True), flush=True)
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    sys.exit(main())
