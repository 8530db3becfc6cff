"""Profiles, recipes, fault lists and the engine module of the rehearsal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.rehearsal.faults import PARAMETERS, read_faults
from assay.rehearsal.profile import Profile, parameter_docs, read_profile
from assay.rehearsal.published import PROFILES, read_cases, read_reference
from assay.rehearsal.recipe import flags_of, recipe_of
from assay.rehearsal.server import read_setup
from assay.session.engines import EngineFiles, engine, rehearse
from assay.session.engines.base import check_flags
from assay.session.engines.rehearsal import recipe_of_members
from assay.vocab import RehearsalFault
from engines.rehearsal_process import write_profile

ROOT = Path(__file__).resolve().parents[3]
FILES = EngineFiles("/somewhere/python", "/somewhere/profile.yaml", "served")


@pytest.mark.parametrize("path", sorted((ROOT / PROFILES).glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_profiles_are_valid_and_named_like_their_file(path: Path) -> None:
    """Every profile of the project reads, has its file's name, and leaves memory for a KV cache."""
    profile = read_profile(path, ROOT)
    assert profile.name == path.stem
    assert profile.kv_capacity_tokens(1, 0.9, True) > 0


def test_a_parameter_without_source_is_refused(tmp_path: Path) -> None:
    """A value must say where it comes from, or that it is assumed and why."""
    path = write_profile(tmp_path)
    path.write_text(path.read_text().replace("assumed: for a test", "note: for a test", 1))
    with pytest.raises(BadInput, match="parameters"):
        read_profile(path, ROOT)


def test_unknown_parameter_is_refused(tmp_path: Path) -> None:
    """A parameter that the simulation does not have is named, with those it has."""
    with pytest.raises(BadInput, match="no such parameter"):
        read_profile(write_profile(tmp_path, warp_factor=9), ROOT)


def test_every_parameter_and_fault_is_in_the_guide() -> None:
    """docs/rehearsal.md names every parameter, every fault and every parameter of a fault."""
    text = (ROOT / "docs/rehearsal.md").read_text()
    names = [*parameter_docs(), *RehearsalFault, *(name for known in PARAMETERS.values() for name in known)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_published_arms_exist_in_the_reference_table() -> None:
    """Each case stands for an arm and point of the reference table; a misspelt one would compare nothing."""
    rows = {
        (row["campaign"], row["arm"], row["workload"], row["concurrency"]) for row in read_reference(ROOT)
    }
    arms = {(row[0], row[1]) for row in rows}
    for case in read_cases(ROOT):
        assert (case.campaign, case.arm) in arms
        assert any(row[:2] == (case.campaign, case.arm) and row[2] == case.workload for row in rows), case


def test_kv_capacity_is_what_glm_reported() -> None:
    """The reported capacities, 1,598,848 tokens without speculation and 241,344 with it, come out of memory
    sizes, to a block's rounding."""
    profile = read_profile(ROOT / PROFILES / "glm53_flash_ep4.yaml", ROOT)
    assert profile.kv_capacity_tokens(4, 0.9, False) == pytest.approx(1_598_848, rel=0.001)
    assert profile.kv_capacity_tokens(4, 0.9, True) == pytest.approx(241_344, rel=0.005)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("vllm", {"max_num_seqs": 32, "max_model_len": 262144, "speculative_config": {"num_speculative_tokens": 5}}),
        ("vllm", {"tensor_parallel_size": 4, "data_parallel_size": 2, "gpu_memory_utilization": 0.95}),
        ("sglang", {"max_running_requests": 64, "disable_radix_cache": True, "speculative_num_steps": 5}),
        ("llama_cpp", {"ctx_size": 8192, "parallel": 4, "spec_type": "ngram_mod", "spec_n_max": 12}),
        ("llama_cpp", {"ctx_size": 8192, "cache_prompt": False, "spec_type": "none"}),
        ("rehearsal", {"max_num_batched_tokens": 4096, "num_speculative_tokens": 3, "enable_prefix_caching": True}),
    ],
)  # fmt: skip
def test_flags_come_back_as_they_were_asked(name: str, flags: dict[str, Any]) -> None:
    """What a recipe amounts to, told by the engine's own names, agrees with every flag that was asked."""
    told = flags_of(name, recipe_of(name, flags))
    assert {key: told.get(key) for key in flags} == flags


def test_speculation_config_of_vllm_is_read_as_text_too() -> None:
    """vLLM takes its speculative_config as JSON text; a text that is no object is refused."""
    assert recipe_of("vllm", {"speculative_config": '{"num_speculative_tokens": 3}'}).draft_tokens == 3
    for bad in ("{", "[1]"):
        with pytest.raises(BadInput):
            recipe_of("vllm", {"speculative_config": bad})


def test_unknown_engine_is_refused() -> None:
    """An engine that nothing translates is named."""
    with pytest.raises(BadInput, match="cannot rehearse"):
        recipe_of("other", {})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "stream_cutt"}, "did you mean 'stream_cut'"),
        ({"kind": "stream_cut", "after": 3}, "no such parameter"),
        ({"kind": "slow_replica", "factor": "2"}, "wrong type"),
        ({"kind": "http_500", "nth": True}, "wrong type"),
    ],
)
def test_bad_faults_are_refused(fault: dict[str, Any], message: str) -> None:
    """A fault that is misspelt would strike nothing: it is refused."""
    with pytest.raises(BadInput, match=message):
        read_faults([fault])


@pytest.mark.parametrize(
    "config",
    [{}, {"profile": "x", "speed": 3}, {"profile": "x", "time_scale": True}, {"profile": "x", "faults": {}}],
)
def test_bad_configurations_are_refused(config: dict[str, Any]) -> None:
    """A wrong key or type of the server's configuration is named before anything starts."""
    with pytest.raises(BadInput):
        read_setup(config)


def test_engine_module_starts_the_server_with_its_flags() -> None:
    """The argv is pure: profile, name and flags inside one JSON text, the rehearsal's own keys beside them."""
    flags = {"max_num_seqs": 8, "time_scale": 20, "faults": [{"kind": "hang"}]}
    check_flags(engine("rehearsal"), flags, Path("f.yaml"), "arms.a.flags")
    argv = engine("rehearsal").argv(flags, FILES)
    assert argv[1:3] == ["-m", "assay.rehearsal.server"]
    assert argv[-2:] == ["--port", "{port}"]
    config = json.loads(argv[4])
    assert config["profile"] == FILES.model_path
    assert (config["flags"], config["time_scale"], config["engine"]) == ({"max_num_seqs": 8}, 20, "rehearsal")


def test_stand_in_takes_the_flags_of_the_engine_it_stands_for() -> None:
    """A rehearsed engine is checked against its own flags, which reach the simulated node unchanged."""
    stand_in = rehearse(engine("llama_cpp"), {"time_scale": 10})
    flags = {"ctx_size": 4096, "parallel": 2}
    check_flags(stand_in, flags, Path("f.yaml"), "arms.a.flags")
    config = json.loads(stand_in.argv(flags, FILES)[4])
    assert (config["engine"], config["flags"], config["time_scale"]) == ("llama_cpp", flags, 10)
    with pytest.raises(BadInput):
        rehearse(engine("llama_cpp"), {"speed": 1})


def test_replicas_and_splits_become_one_recipe() -> None:
    """An arm's replicas, or its prefill and decode roles, are played by one simulated node."""
    flags = {"enforce_eager": False, "tensor_parallel_size": 4}
    assert recipe_of_members({"flags": flags}) == {}
    assert recipe_of_members({"flags": flags, "replicas": 2}) == {"replicas": 2}
    split = {"prefill": {"flags": {"enforce_eager": True}}, "decode": {"replicas": 3}}
    made = recipe_of("vllm", flags, recipe_of_members({"flags": flags, "split": split}))
    assert (made.prefill_replicas, made.replicas, made.prefill_eager, made.eager) == (1, 3, True, False)


def test_defaults_are_a_node_without_effects() -> None:
    """A profile that says nothing has no speculation, no stalls, no handoff."""
    profile = Profile()
    assert (profile.acceptance_text, profile.handoff_s, profile.host_step_s) == ((), 0.0, 0.0)
