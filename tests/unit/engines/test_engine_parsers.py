"""Flags of vLLM, SGLang and the router against parsers captured from their released wheels."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.session.engines import engine, parser, router
from assay.session.engines.base import check_flags

WHERE, KEY = Path("c.yaml"), "arms.a.flags"
DSPARK: dict[str, Any] = {
    "tensor_parallel_size": 4,
    "enable_expert_parallel": True,
    "kv_cache_dtype": "fp8",
    "max_model_len": 262144,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
    "enforce_eager": False,
    "speculative_config": {
        "method": "dspark",
        "num_speculative_tokens": 5,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
        "enable_adaptive_verification": False,
    },
    "engram_config": {"cpu_offload": True},
    "reasoning_parser": "deepseek_v41",
    "tool_call_parser": "deepseek_v41",
    "enable_auto_tool_choice": True,
    "default_chat_template_kwargs": {"enable_thinking": False},
    "gpu_memory_utilization": 0.9,
}
GLM: dict[str, Any] = {
    "tp_size": 4,
    "ep_size": 4,
    "disable_radix_cache": True,
    "disable_overlap_schedule": True,
    "max_mamba_cache_size": 512,
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 5,
    "mem_fraction_static": 0.85,
    "context_length": 32768,
}


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0"])
def test_the_flags_of_the_published_recipes_pass(version: str) -> None:
    """What the published campaigns ran is taken by both captured vLLM versions."""
    check_flags(engine("vllm"), DSPARK, WHERE, KEY, version)
    check_flags(
        engine("vllm"),
        {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}},
        WHERE,
        KEY,
        version,
    )
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5, "prompt_lookup_min": 2}
    check_flags(engine("vllm"), {"speculative_config": ngram}, WHERE, KEY, version)


def test_the_flags_of_the_published_sglang_recipes_pass() -> None:
    """Radix cache, overlap, state pool, EP and MTP steps of the published retries are flags of the release."""
    check_flags(engine("sglang"), GLM, WHERE, KEY, "0.5.23")


@pytest.mark.parametrize(
    ("name", "version", "flags", "words"),
    [
        (
            "vllm",
            "0.33.0",
            {"max_num_seq": 32},
            ["flags.max_num_seq", "no such flag", "did you mean 'max_num_seqs'"],
        ),
        ("vllm", "0.33.0", {"max-num-seqs": 32}, ["write 'max_num_seqs'"]),
        ("vllm", "0.33.0", {"tp": 4}, ["no such flag", "write 'tensor_parallel_size'"]),
        ("vllm", "0.33.0", {"max_num_seqs": "32"}, ["flags.max_num_seqs", "wrong type", "an integer"]),
        ("vllm", "0.33.0", {"max_num_seqs": True}, ["wrong type"]),
        ("vllm", "0.33.0", {"max_num_seqs": 0}, ["out of range", "at least 1"]),
        ("vllm", "0.33.0", {"gpu_memory_utilization": 1.5}, ["out of range", "at most 1"]),
        ("vllm", "0.33.0", {"enforce_eager": "yes"}, ["wrong type", "true or false"]),
        ("vllm", "0.33.0", {"kv_cache_dtype": "fp9"}, ["'fp9' is not a choice", "did you mean 'fp8'"]),
        (
            "vllm",
            "0.33.0",
            {"tool_call_parser": "deepseek_v42"},
            ["not a choice", "did you mean 'deepseek_v4"],
        ),
        (
            "vllm",
            "0.33.0",
            {"speculative_config": {"method": "dspark", "num_speculative_token": 5}},
            ["flags.speculative_config.num_speculative_token", "did you mean 'num_speculative_tokens'"],
        ),
        (
            "vllm",
            "0.33.0",
            {"speculative_config": {"method": "dspak"}},
            ["flags.speculative_config.method", "did you mean 'dspark'"],
        ),
        (
            "vllm",
            "0.33.0",
            {"speculative_config": {"num_speculative_tokens": 0}},
            ["speculative_config.num_speculative_tokens", "above 0"],
        ),
        (
            "vllm",
            "0.33.0",
            {"engram_config": {"cpu_ofload": True}},
            ["engram_config.cpu_ofload", "'cpu_offload'"],
        ),
        (
            "vllm",
            "0.33.0",
            {"engram_config": {"cpu_offload": "yes"}},
            ["engram_config.cpu_offload", "wrong type"],
        ),
        (
            "vllm",
            "0.33.0",
            {"compilation_config": {"pass_config": {"fuse": 1}}},
            ["pass_config.fuse", "PassConfig"],
        ),
        ("vllm", "0.33.0", {"port": 8000}, ["flags.port", "cannot be set here", "the lease"]),
        ("vllm", "0.33.0", {"api_key": "s"}, ["cannot be set here", "never recorded"]),
        ("vllm", "0.33.0", {"numa_bind": True}, ["placement"]),
        ("vllm", "0.33.0", {"max_num_seqs": None}, ["has no value"]),
        ("vllm", "0.32.0", {}, ["arms.a.engine_version", "'0.32.0' is not captured", "0.31.0, 0.33.0"]),
        ("vllm", None, {}, ["arms.a.engine_version", "is not given"]),
        ("sglang", "0.5.23", {"disable_radix_cach": True}, ["did you mean 'disable_radix_cache'"]),
        ("sglang", "0.5.23", {"tensor_parallel_size": 4}, ["no such flag", "write 'tp_size'"]),
        ("sglang", "0.5.23", {"kv_cache_dtype": "fp8"}, ["not a choice", "fp8_e4m3"]),
        ("sglang", "0.5.23", {"speculative_num_steps": 2.5}, ["wrong type", "an integer"]),
        ("sglang", "0.5.23", {"enable_metrics": True}, ["cannot be set here"]),
    ],
)
def test_a_bad_flag_is_named(name: str, version: str | None, flags: dict[str, Any], words: list[str]) -> None:
    """One line with file, key and what would be right, for each way of being wrong."""
    with pytest.raises(BadInput) as caught:
        check_flags(engine(name), flags, WHERE, KEY, version)
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in ["c.yaml", *words]), text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"polcy": "random"}, ["router.flags.polcy", "'policy'"]),
        ({"policy": "least"}, ["not a choice", "round_robin"]),
        ({"retry_max_retries": 3}, ["cannot be set here", "hides a failure"]),
        ({"cb_failure_threshold": 3}, ["cannot be set here"]),
        ({"queue_size": "many"}, ["wrong type"]),
    ],
)
def test_a_bad_router_flag_is_named(flags: dict[str, Any], words: list[str]) -> None:
    """The router's flags are checked against its own parser; retries cannot be turned on."""
    with pytest.raises(BadInput) as caught:
        router.check({"image": "vllm_router", "flags": flags}, WHERE, "arms.a.router")
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("name", "version"),
    [("vllm", "0.31.0"), ("vllm", "0.33.0"), ("sglang", "0.5.23"), ("vllm_router", "0.1.17")],
)
def test_captured_data_is_whole(name: str, version: str) -> None:
    """Each file names its wheel by sha256, every flag has a form and types, and what is unknown has a reason."""
    path = parser.FOLDER / f"{name}-{version}.json"
    data = json.loads(path.read_text())
    assert path.stat().st_size < 500_000
    assert data["wheel"]["file"].startswith(f"{name}-{version}-")
    assert len(data["wheel"]["sha256"]) == 64
    assert len(data["flags"]) > 60
    for key, flag in data["flags"].items():
        assert flag["flag"] == "--" + key.replace("_", "-"), key
        assert flag["form"] in ("value", "switch", "on_off", "list", "append", "json", "bare_or_value")
        assert flag["types"], key
        if ("choices" in flag and flag["choices"] is None) or "any" in flag["types"]:
            assert flag.get("why"), key
        for entry in flag["types"]:
            if isinstance(entry, dict) and "config" in entry and flag["form"] == "json":
                assert data["configs"][entry["config"]], key
    assert data["not_captured"] == {key: flag["why"] for key, flag in data["flags"].items() if "why" in flag}


def test_words_are_what_argparse_reads_back() -> None:
    """The words of every form, given to an argparse parser of the same form, come back as the values."""
    flags = {
        "max_num_seqs": 32,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
        "cudagraph_capture_sizes": [1, 2, 4],
        "gpu_memory_utilization": 0.9,
    }
    reader = argparse.ArgumentParser()
    reader.add_argument("--max-num-seqs", type=int)
    reader.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    reader.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    reader.add_argument("--speculative-config", type=json.loads)
    reader.add_argument("--cudagraph-capture-sizes", type=int, nargs="+")
    reader.add_argument("--gpu-memory-utilization", type=float)
    words = parser.words(parser.load_parser("vllm", "0.33.0"), flags)
    assert vars(reader.parse_args(words)) == flags
    assert words == parser.words(parser.load_parser("vllm", "0.33.0"), dict(reversed(flags.items())))


def test_a_switch_that_is_off_is_left_out() -> None:
    """SGLang's switches have no negative form: false writes nothing."""
    sglang = parser.load_parser("sglang", "0.5.23")
    assert parser.words(sglang, {"disable_radix_cache": False, "disable_overlap_schedule": True}) == [
        "--disable-overlap-schedule"
    ]
