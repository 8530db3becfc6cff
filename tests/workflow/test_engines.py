"""Engines before and after the start: what `validate` refuses, what a server's answers and log are read as."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from assay.config.campaign import load_campaign
from assay.probe import read_captured
from assay.probe.placement import plan
from assay.session.engines import EngineFiles, engine, router
from assay.session.readback import compare_config
from assay.session.replicas import Group, Member, add_capacity, agree, read_back
from assay.stage.launch import launch, place
from assay.stage.preflight import check_campaign
from checkout import PROJECT, Checkout

VLLM_LOG = """\
\x1b[0;36m(APIServer pid=7)\x1b[0;0m INFO 11-29 non-default args: {'model_tag': '/m', 'max_num_seqs': 32, \
'enable_auto_tool_choice': True, 'tool_call_parser': 'glm47', 'kv_cache_dtype': 'fp8', 'enforce_eager': True, \
'speculative_config': {'method': 'dspark', 'num_speculative_tokens': 5, 'draft_sample_method': 'probabilistic'}, \
'engram_config': EngramConfig(cpu_offload=True, use_thp=False, kind=<Kind.A: 1>)}
(EngineCore pid=9) INFO 11-29 Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore pid=9) INFO 11-29 Initializing a V1 LLM engine (v0.33.0) with config: model='/m', \
speculative_config=SpeculativeConfig(method='dspark', model='/m', num_spec_tokens=3), tokenizer='/m', \
dtype=torch.bfloat16, max_seq_len=262144, tensor_parallel_size=4, quantization=None, enforce_eager=False, \
kv_cache_dtype=fp8_ds_mla, seed=0, enable_prefix_caching=False, compilation_config=CompilationConfig(seed=7)
(EngineCore pid=9) INFO 11-29 GPU KV cache size: 1,598,848 tokens, Maximum concurrency for 262,144 tokens per \
request: 6.10x
"""
VLLM_METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="64",cache_dtype="fp8_ds_mla",enable_prefix_caching="False",\
gpu_memory_utilization="0.9",num_gpu_blocks="24982",engine="0"} 1.0
"""
FILES = EngineFiles("image/bin/python", "/models/m", "small", "0.33.0")


@contextmanager
def serving(answers: dict[str, Any]) -> Iterator[str]:
    """A server that has these answers, text or JSON, and 404 for the rest."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            body = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_vllm_is_read_back_from_what_it_resolved(tmp_path: Path) -> None:
    """The engine's own line stands before the parsed arguments: an ignored value is a mismatch, not agreement."""
    log = tmp_path / "server.log"
    log.write_text(VLLM_LOG)
    models = {"data": [{"id": "small", "max_model_len": 262144}]}
    with serving(
        {"/version": {"version": "0.33.0+cu130"}, "/v1/models": models, "/metrics": VLLM_METRICS}
    ) as url:
        told = engine("vllm").read_back(url, log)
    assert told.capacity == {
        "kv_tokens": 1598848,
        "context_tokens": 262144,
        "max_concurrency": 6.1,
        "kv_blocks": 24982,
    }
    asked = {
        "engine_version": "0.33.0",
        "served_name": "small",
        "max_model_len": 262144,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 8192,
        "tensor_parallel_size": 4,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "auto",
        "gpu_memory_utilization": 0.9,
        "tool_call_parser": "glm47",
        "engram_config": {"cpu_offload": True},
        "speculative_config": {
            "method": "dspark",
            "num_speculative_tokens": 5,
            "draft_sample_method": "probabilistic",
        },
        "block_size": 64,
        "async_scheduling": True,
    }
    record = compare_config(asked, told)
    assert record["mismatches"] == [
        {"key": "enforce_eager", "asked": True, "read": False},
        {"key": "speculative_config.num_speculative_tokens", "asked": 5, "read": 3},
    ]
    assert record["unread"] == ["async_scheduling"]
    assert record["read"]["seed"] == 0, "a nested configuration's key is not taken for the engine's"


def test_a_draft_that_is_not_there_is_a_mismatch(tmp_path: Path) -> None:
    """Speculation that was asked for and that the engine runs without fails each of its keys."""
    log = tmp_path / "server.log"
    log.write_text(
        "Initializing a V1 LLM engine (v0.33.0) with config: model='/m', speculative_config=None, seed=0\n"
    )
    models = {"data": [{"id": "small"}]}
    with serving({"/version": {"version": "0.33.0"}, "/v1/models": models, "/metrics": ""}) as url:
        told = engine("vllm").read_back(url, log)
    record = compare_config({"speculative_config": {"method": "mtp"}}, told)
    assert record["mismatches"] == [{"key": "speculative_config.method", "asked": "mtp", "read": None}]


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglang_is_read_back(tmp_path: Path, path: str) -> None:
    """Resolved values by flag, KV and state capacity; ranks that disagree leave a value unread."""
    log = tmp_path / "server.log"
    log.write_text("[x] Mamba Cache is allocated. max_mamba_cache_size: 512, conv_state size: 1.00GB\n")
    ranks = [
        {
            "tp_size": 4, "ep_size": 4, "disable_radix_cache": True, "speculative_num_steps": 5, "page_size": size,
            "memory_usage": {"token_capacity": 120672}, "effective_max_running_requests_per_dp": 64,
        }
        for size in (1, 64)
    ]  # fmt: skip
    info = {
        "version": "0.5.23",
        "internal_states": ranks,
        "disable_overlap_schedule": False,
        "max_req_input_len": 9,
    }
    with serving({path: info, "/v1/models": {"data": [{"id": "small"}]}}) as url:
        told = engine("sglang").read_back(url, log)
    assert told.capacity == {"kv_tokens": 241344, "slots": 128, "state_slots": 512, "max_input_tokens": 9}
    asked = {"tp_size": 4, "disable_radix_cache": False, "disable_overlap_schedule": True, "page_size": 1}
    record = compare_config(asked, told)
    assert record["mismatches"] == [
        {"key": "disable_overlap_schedule", "asked": True, "read": False},
        {"key": "disable_radix_cache", "asked": False, "read": True},
    ]
    assert record["unread"] == ["page_size"]


def test_placement_reaches_both_engines(two_quads: dict[str, Any]) -> None:
    """NUMA and GPUs of a replica come from the topology: prefix, flags and environment."""
    (entry,) = plan(two_quads, [{"name": "r0", "gpus": 4, "island": "auto"}])
    files = EngineFiles("py", "/m", "small", "0.33.0", entry)
    argv = engine("vllm").argv({"tensor_parallel_size": 4}, files)
    assert argv[:3] == entry["numactl"]
    assert argv[argv.index("--numa-bind") + 1 :] == ["--numa-bind-nodes", "0", "0", "0", "0"]
    sglang = engine("sglang").argv({"tp_size": 4}, EngineFiles("py", "/m", "small", "0.5.23", entry))
    assert sglang[-5:] == ["--numa-node", "0", "0", "0", "0"]
    assert files.place_environment["CUDA_VISIBLE_DEVICES"].count(",") == 3


@pytest.fixture
def two_quads() -> dict[str, Any]:
    """A captured machine: eight GPUs in two NVLink quads, each on a NUMA node of its own."""
    return read_captured(PROJECT / "tests" / "golden" / "topologies" / "two_quads")


def server_of(**more: Any) -> dict[str, Any]:
    flags = {"tensor_parallel_size": 4, "max_num_seqs": 32}
    return {"flags": flags, "served_name": "small", "engine_version": "0.33.0", **more}


def order_of(server: dict[str, Any], placed: list[dict[str, Any]]) -> dict[str, Any]:
    started = launch(engine("vllm"), server, FILES, "router/bin/python", placed, None)
    assert started.ready_path == router.READY_PATH
    found: dict[str, Any] = json.loads(started.argv[-1])
    return found


def test_replicas_are_one_tree_behind_the_router(two_quads: dict[str, Any]) -> None:
    """Each replica has its own port and island; the router knows both, retries nothing, and writes its limits out."""
    server = server_of(replicas=2, router={"image": "r", "version": None, "flags": {}}, placement={"gpus": 4})
    order = order_of(server, place(server, two_quads))
    first, second = order["members"]
    assert "{member_port}" in first["argv"]
    assert "{port}" not in first["argv"]
    visible = [member["environment"]["CUDA_VISIBLE_DEVICES"].split(",") for member in (first, second)]
    assert visible == [island["uuids"] for island in two_quads["islands"]]
    assert second["argv"][:3] == ["numactl", "--cpunodebind=1", "--membind=1"]
    argv = order["router"]["argv"]
    assert argv[argv.index("--worker-urls") + 1 :] == ["{url:r0}", "{url:r1}"]
    assert {"--disable-retries", "--disable-circuit-breaker"} <= set(argv)
    assert argv[argv.index("--policy") + 1] == "round_robin"
    assert {
        "--max-concurrent-requests",
        "--queue-size",
        "--queue-timeout-secs",
        "--request-timeout-secs",
    } <= set(argv)


def test_a_split_is_the_routers_prefill_decode_mode() -> None:
    """Each role has its flags over the arm's, a side channel of its own, and its place in the router's command."""
    split = {
        "prefill": {"replicas": 1, "flags": {"enforce_eager": True}},
        "decode": {"replicas": 2, "flags": {"max_num_seqs": 64}},
    }
    order = order_of(server_of(split=split, router={"image": "r", "version": None, "flags": {}}), [])
    assert [member["name"] for member in order["members"]] == ["prefill0", "decode0", "decode1"]
    prefill, decode, _ = (member["argv"] for member in order["members"])
    assert "--enforce-eager" in prefill
    assert prefill[prefill.index("--max-num-seqs") + 1] == "32"
    assert decode[decode.index("--max-num-seqs") + 1] == "64"
    assert order["members"][0]["environment"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "{side_port}"
    text = " ".join(order["router"]["argv"])
    assert (
        "--vllm-pd-disaggregation --prefill {url:prefill0} --decode {url:decode0} --decode {url:decode1}"
        in text
    )
    assert "--worker-urls" not in text


def test_replicas_that_disagree_are_listed() -> None:
    """A value that one replica tells otherwise, or not at all, is none of the group's."""
    same, different = agree({"r0": {"a": 1, "b": 2}, "r1": {"a": 1, "b": 3, "c": 4}})
    assert same == {"a": 1}
    assert different == [
        {"key": "b", "asked": None, "read": {"r0": 2, "r1": 3}},
        {"key": "c", "asked": None, "read": {"r0": None, "r1": 4}},
    ]
    assert add_capacity(
        [{"kv_tokens": 5, "context_tokens": 9}, {"kv_tokens": None, "context_tokens": 9}]
    ) == {
        "kv_tokens": None,
        "context_tokens": 9,
    }


def vllm_arm(**more: Any) -> dict[str, Any]:
    return {
        "engine": "vllm", "engine_version": "0.33.0", "image": "fake_llama_cpp", "model": "fake_model",
        "flags": {"max_num_seqs": 4}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        (vllm_arm(flags={"max_num_seq": 4}), ["arms.a.flags.max_num_seq", "did you mean 'max_num_seqs'"]),
        (vllm_arm(flags={"kv_cache_dtype": "fp9"}), ["arms.a.flags.kv_cache_dtype", "not a choice"]),
        (
            vllm_arm(flags={"speculative_config": {"methd": "mtp"}}),
            ["arms.a.flags.speculative_config.methd", "did you mean 'method'"],
        ),
        (vllm_arm(engine_version="9.9"), ["arms.a.engine_version", "0.31.0, 0.33.0"]),
        (vllm_arm(replicas=2), ["arms.a.router", "several servers need a router"]),
        (vllm_arm(router={"image": "fake_llama_cpp"}), ["arms.a.router", "nothing to route"]),
        (
            vllm_arm(replicas=2, router={"image": "fake_llama_cpp", "flags": {"queue_sise": 1}}),
            ["arms.a.router.flags.queue_sise", "did you mean 'queue_size'"],
        ),
        (vllm_arm(placement={"gpus": 4}), ["arms.a.placement.gpus", "needs.gpus is 0"]),
    ],
)
def test_validate_names_what_is_not_taken(checkout: Checkout, arm: dict[str, Any], words: list[str]) -> None:
    """`assay validate` ends with one line and exit 2 for each kind of wrong flag, before anything is built."""
    checkout.campaign["arms"]["a"] = arm
    checkout.write_campaign()
    run = checkout.assay("validate", "config/campaigns/campaign_tiny.yaml")
    assert run.returncode == 2, run.stdout + run.stderr
    (line,) = [line for line in run.stderr.splitlines() if line.strip()]
    assert all(word in line for word in ["campaign_tiny.yaml", *words]), line


def test_validate_takes_the_good_ones(checkout: Checkout) -> None:
    """The same arms without their faults are valid: a refusal above is of the fault alone."""
    good = vllm_arm(replicas=2, router={"image": "fake_llama_cpp", "flags": {"queue_size": 1}})
    checkout.campaign["arms"]["a"] = good
    checkout.write_campaign()
    run = checkout.assay("validate", "config/campaigns/campaign_tiny.yaml")
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "path", sorted((PROJECT / "config/campaigns").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_campaign_is_taken_by_its_engines(path: Path) -> None:
    """No flag of a campaign in the project is one that its engine's or router's parser would refuse."""
    check_campaign(load_campaign(path, PROJECT))


def test_what_each_server_has_of_its_own_is_no_disagreement(tmp_path: Path) -> None:
    """Two vLLM servers tell different ports and different batch sizes: only the second is a disagreement."""
    answers = {
        "/version": {"version": "0.33.0"},
        "/v1/models": {"data": [{"id": "small"}]},
        "/metrics": VLLM_METRICS,
    }
    members = []
    with serving(answers) as url:
        for name, port, slots in (("r0", 101, 32), ("r1", 102, 16)):
            log = tmp_path / f"{name}.log"
            log.write_text(f"non-default args: {{'port': {port}, 'max_num_seqs': {slots}, 'seed': 1}}\n")
            members.append(Member(name, "replica", url, log, None, None, None))
        (tmp_path / "router.log").write_text("")
        told, more = read_back(engine("vllm"), Group(tuple(members), {}), tmp_path / "router.log", 2)
    assert more["disagreements"] == [{"key": "max_num_seqs", "asked": None, "read": {"r0": 32, "r1": 16}}]
    assert told.values["seed"] == 1
    assert "port" not in told.values
