"""The published campaigns as files: what was published is in them, and what was not says so."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.config.campaign import Campaign, campaign_files, load_campaign
from assay.config.files import read_yaml
from assay.errors import BadInput
from assay.load import LoadSpec
from assay.records.requests import PHASE_KEY, REQUEST_SCHEMA, read_phase_facts, read_requests
from assay.stage import simulated
from assay.stage.estimate import Estimate
from assay.stage.local_prompts import check_local, read_local
from assay.stage.preflight import check_gpus, check_model_folder
from assay.stage.prompts import draw_prompts
from assay.stage.rehearse import Options, as_rehearsal, engine_of, read_options, with_options, with_stand_ins
from assay.stage.specs import Specs
from assay.stage.workflow import Workflow

PROJECT = Path(__file__).resolve().parents[3]
FILES = campaign_files(PROJECT)
PUBLISHED = sorted(name for name in FILES if not name.startswith(("campaign_local", "campaign_vllm_cpu")))
REFERENCE = PROJECT / "config" / "reference" / "published_results.csv"


def loaded(name: str) -> Campaign:
    return load_campaign(FILES[name], PROJECT)


def published_rows() -> list[dict[str, str]]:
    with REFERENCE.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_published_condition_is_in_a_file() -> None:
    """Each published figure of an arm at a concurrency has that arm and a point with that load in one campaign."""
    shapes: dict[str, list[tuple[set[str], set[tuple[str, str]]]]] = {}
    for name in PUBLISHED:
        campaign = loaded(name)
        about = campaign.config.get("published", {})
        names = about.get("workloads", {})
        points = {
            (names.get(point["workload"], point["workload"]), str(point["concurrency"]))
            for point in campaign.points.values()
        }
        shapes.setdefault(about.get("campaign", name), []).append((set(campaign.arms), points))
    missing = []
    for row in published_rows():
        if row["campaign"] == "original" or row["arm"] in ("both", "each", "ep4_and_prefix_cache"):
            continue
        workload = row["workload"].removeprefix("sustained_").removeprefix("soak_")
        found = any(
            row["arm"] in arms and (not row["concurrency"] or (workload, row["concurrency"]) in points)
            for arms, points in shapes.get(row["campaign"], [])
        )
        if not found:
            missing.append((row["campaign"], row["arm"], row["workload"], row["concurrency"]))
    assert missing == []


def test_the_totals_of_the_matched_pair() -> None:
    """campaign_256k has 38 finite points with 2,952 requests over both arms, and three windows of 120 s."""
    campaign = loaded("campaign_256k")
    finite = [point for point in campaign.points.values() if point["kind"] == "finite"]
    runs = 2 * sum(point["repeats"] for point in finite)
    assert runs == 38
    assert 2 * sum(point["repeats"] * point["requests"] for point in finite) == 2952
    window = campaign.points["sustained_c64"]
    assert (window["windows"], window["issue_s"], window["pool"], window["concurrency"]) == (3, 120, 256, 64)
    base, fast = campaign.arms["base"], campaign.arms["dspark5"]
    differing = {key for key in fast["flags"] if fast["flags"][key] != base["flags"].get(key)}
    assert differing == {"speculative_config"}
    assert fast["flags"]["speculative_config"] == {
        "method": "dspark", "num_speculative_tokens": 5, "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block", "enable_adaptive_verification": False,
    }  # fmt: skip
    assert (base["flags"]["max_num_seqs"], base["flags"]["max_num_batched_tokens"]) == (32, 8192)
    needles = [task for task in Specs(campaign).gate_policy.tasks if task.kind == "needle"]
    assert sorted({task.check["length_tokens"] for task in needles}) == [31000, 126000, 250000]
    assert len(needles) == 27


def test_the_other_published_totals() -> None:
    """1,552 requests of the replicas, 808 of an SGLang sweep, and the slots and memory targets of the soaks."""
    glm = loaded("campaign_glm_replicas").points.values()
    assert sum(point["requests"] * point["repeats"] for point in glm) == 1552
    sweep = loaded("campaign_glm_sglang").points.values()
    assert sum(point["requests"] * point["repeats"] for point in sweep) == 2424
    soak = loaded("campaign_reliability")
    recipes = {
        name: (arm["flags"]["max_num_seqs"], arm["flags"]["gpu_memory_utilization"])
        for name, arm in soak.arms.items()
    }
    assert recipes["base_s32"] == (32, 0.95)
    assert recipes["dspark_k3_s64"] == (64, 0.9)
    assert soak.points["soak_c128"]["issue_s"] == 7200
    spark = loaded("campaign_spark")
    assert [leg.name for leg in spark.legs()].count("glm53_flash.3") == 1
    assert len(spark.legs()) == 9
    assert all(point["ignore_eos"] and point["max_tokens"] == 512 for point in spark.points.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_the_source_leaves_out_says_why(name: str) -> None:
    """Every arm of a published campaign lists what its source leaves out, each with a reason in words."""
    campaign = loaded(name)
    for entries in [campaign.config["unspecified"], *(arm["unspecified"] for arm in campaign.arms.values())]:
        assert entries
        assert all(isinstance(why, str) and len(why) > 15 for why in entries.values()), entries
    for model in campaign.models.values():
        nulls = [key for key in ("sha256",) if model[key] is None]
        nulls += [key for key in ("revision",) if model["source"][key] is None]
        assert set(nulls) <= set(model["unspecified"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_campaign_can_be_rehearsed_and_planned(name: str, tmp_path: Path) -> None:
    """Its arms have a profile that takes their flags, its stages have specs, and its plan says `rehearsal`."""
    campaign = as_rehearsal(loaded(name), {"ci": True, "time_scale": 20})
    specs = Specs(campaign)
    plan = specs.plan()
    assert plan["rehearsal"] is True
    assert plan["name"] == f"{name}_rehearsal"
    assert set(plan["points"]) == set(loaded(name).points)
    for arm in campaign.arms:
        argv = engine_of(specs.server(arm)).argv
        assert callable(argv)
    estimate = Estimate(campaign, tmp_path).lines()
    assert {line.leg for line in estimate} == {leg.name for leg in campaign.legs()}
    assert all(line.wall_s is not None for line in estimate)


def test_a_rehearsal_keeps_the_dag() -> None:
    """The same receipts as the real campaign, under another folder: nothing of the shape is cut."""
    real = Workflow(PROJECT, FILES)
    rehearsal = Workflow(PROJECT, FILES, Options(rehearse=True))
    name = "campaign_glm_replicas"
    renamed = [path.replace(f"results/{name}/", f"results/{name}_rehearsal/") for path in real.targets(name)]
    assert rehearsal.targets(name) == renamed
    assert rehearsal.gpus(f"{name}_rehearsal") == 0
    with pytest.raises(BadInput, match="no campaign"):
        real.campaign(f"{name}_rehearsal")


def test_a_campaign_may_not_be_called_a_rehearsal(tmp_path: Path) -> None:
    """The suffix belongs to rehearsals: a campaign of that name would share their folder."""
    for folder in ("workflow", "config"):
        (tmp_path / folder).symlink_to(PROJECT / folder)
    path = tmp_path / "campaign_x_rehearsal.yaml"
    path.write_text(
        FILES["campaign_local"].read_text().replace("name: campaign_local", "name: campaign_x_rehearsal")
    )
    with pytest.raises(BadInput, match="name of a rehearsal's results"):
        load_campaign(path, tmp_path)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"rehearsal": True}, "unknown option"),
        ({"rehearse": "yes"}, "rehearse: 'yes' is neither"),
        ({"ci": True}, "only a rehearsal has it"),
        ({"time_scale": 8}, "only a rehearsal has it"),
        ({"rehearse": True, "time_scale": 0}, "no scale"),
        ({"rehearse": True, "time_scale": True}, "no scale"),
    ],
)
def test_options_that_cannot_be(words: dict[str, Any], complaint: str) -> None:
    """What --config says is checked before anything is read."""
    with pytest.raises(BadInput, match=complaint):
        read_options(words)


def test_options_in_the_words_of_a_shell() -> None:
    """`true` is true: Snakemake itself knows only Python's word."""
    assert read_options({"rehearse": "true", "ci": "false"}) == Options(rehearse=True)


def test_too_few_gpus_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what is needed, what was found, how to rehearse and how to run the small campaign, in one line."""
    topology = {"gpus": [], "gpus_reason": "no driver"}
    monkeypatch.setattr("assay.stage.preflight.probe_topology", lambda: topology)
    with pytest.raises(BadInput) as caught:
        check_gpus(loaded("campaign_256k"))
    text = str(caught.value)
    assert "\n" not in text
    for words in (
        "needs 8 GPUs",
        "has 0 (no driver)",
        "campaign_256k --config rehearse=true",
        "campaign_local",
    ):
        assert words in text


def test_a_missing_checkpoint_says_how_to_get_it(tmp_path: Path) -> None:
    """The folder of a checkpoint that is not there is bad input, with the command that gets its revision."""
    model = loaded("campaign_256k").models["dsv41_flash"]
    with pytest.raises(BadInput, match="2cba9e42aa026125f3ed06c6d98c1db82f7ca027"):
        check_model_folder(tmp_path / "none", model, tmp_path / "m.yaml")
    (tmp_path / "config.json").write_text("{}")
    check_model_folder(tmp_path, model, tmp_path / "m.yaml")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("{}")
    right = model | {"sha256": hashlib.sha256(b"{}").hexdigest()}
    check_model_folder(tmp_path, right, tmp_path / "m.yaml")
    index.write_text("{ }")
    with pytest.raises(BadInput, match="declared is"):
        check_model_folder(tmp_path, right, tmp_path / "m.yaml")


def share_gpt(path: Path, conversations: list[Any]) -> dict[str, Any]:
    path.write_text(json.dumps(conversations))
    workload = read_yaml(PROJECT / "config" / "workloads" / "sharegpt.yaml")
    workload["local"] |= {"path": str(path)}
    return dict(workload | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})


def test_first_turns_of_a_local_copy(tmp_path: Path) -> None:
    """First turns of people are taken in the file's order; other speakers, empty and long texts are not."""
    turns = [
        ("a", "human", "one"),
        ("b", "gpt", "two"),
        ("c", "human", "  "),
        ("d", "human", "x" * 4001),
        ("e", "user", "five"),
    ]
    pool = [{"id": i, "conversations": [{"from": who, "value": text}]} for i, who, text in turns]
    workload = share_gpt(tmp_path / "s.json", [*pool, {"id": "f", "conversations": []}])
    lines = read_local(workload, tmp_path / "w.yaml")
    assert [(line["id"], line["messages"][0]["content"]) for line in lines] == [("a", "one"), ("e", "five")]


def test_a_missing_or_changed_local_copy_says_what_to_do(tmp_path: Path) -> None:
    """The message names data set, revision, command and the stand-in; a changed file is refused by its digest."""
    workload = share_gpt(
        tmp_path / "s.json", [{"id": "a", "conversations": [{"from": "human", "value": "x"}]}]
    )
    (tmp_path / "s.json").write_text("[]")
    with pytest.raises(BadInput, match="has sha256"):
        check_local(workload, tmp_path / "w.yaml")
    (tmp_path / "s.json").unlink()
    with pytest.raises(BadInput, match=r"hf download .*--revision 192ab2185289.*stand_in_prompts=true"):
        check_local(workload, tmp_path / "w.yaml")


def test_stand_ins_mark_every_point() -> None:
    """Shipped prompts in the place of a local pool keep the pool's requests and mark their points."""
    campaign = loaded("campaign_256k")
    assert Specs(campaign).point("chat_c1")["stand_in_prompts"] is False
    for changed in (with_stand_ins(campaign), with_options(campaign, Options(stand_in_prompts=True))):
        point = Specs(changed).point("chat_c1")
        assert point["stand_in_prompts"] is True
        assert point["extra_body"] == Specs(campaign).point("chat_c1")["extra_body"]
    assert Specs(with_stand_ins(campaign)).point("synthetic_1k_c1")["stand_in_prompts"] is False


def test_a_conversation_grows_turn_by_turn() -> None:
    """Each prompt holds the one before it word for word, adds one turn, and ends with the user."""
    campaign = loaded("campaign_conversation_ramp")
    lines, facts = draw_prompts(PROJECT, Specs(campaign).prompts("ramp_c1"))
    assert len(lines) == 60
    assert facts["cycled"] is False
    for before, after in itertools.pairwise(lines):
        assert after["messages"][: len(before["messages"])] == before["messages"]
        assert len(after["messages"]) == len(before["messages"]) + 2
        assert after["messages"][-1]["role"] == "user"
    n_words = sum(len(message["content"].split()) for message in lines[-1]["messages"])
    assert n_words / 0.75 < campaign.config["context_tokens"]
    assert draw_prompts(PROJECT, Specs(campaign).prompts("ramp_c1"))[0] == lines


def requests_file(path: Path) -> None:
    """Two requests: one with three events, one that never got an answer."""
    rows: list[dict[str, Any]] = []
    for number, offsets in enumerate(([10, 20, 30], None)):
        row: dict[str, Any] = dict.fromkeys(REQUEST_SCHEMA.names)
        row |= {"request_id": f"r{number}", "prompt_id": "p", "point_id": "x", "worker": 0, "status": "ok"}
        row |= {
            "terminal_seen": True,
            "t_send_ns": 1000 + number,
            "t_end_ns": 2000,
            "chunk_offsets_ns": offsets,
        }
        rows.append(row)
    table = pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)
    phase = json.dumps({"t_start_ns": 1000, "t_issue_end_ns": None, "window": True}).encode()
    pq.write_table(table.replace_schema_metadata({PHASE_KEY.encode(): phase}), path)


def test_records_in_simulated_time(tmp_path: Path) -> None:
    """Every stamp and gap is multiplied by the scale, absent ones stay absent, and the file says so."""
    requests_file(tmp_path / "requests.parquet")
    simulated.rewrite_requests(tmp_path / "requests.parquet", 8, {"scale": 8})
    table = read_requests(tmp_path / "requests.parquet")
    assert table.column("t_send_ns").to_pylist() == [8000, 8008]
    assert table.column("t_first_token_ns").to_pylist() == [None, None]
    assert table.column("chunk_offsets_ns").to_pylist() == [[80, 160, 240], None]
    assert read_phase_facts(tmp_path / "requests.parquet") == {
        "t_start_ns": 8000, "t_issue_end_ns": None, "window": True, "simulated_time": {"scale": 8},
    }  # fmt: skip


def test_a_load_is_asked_in_wall_time() -> None:
    """Durations shrink by the scale, the number of requests does not."""
    spec = LoadSpec(url="http://127.0.0.1:1", model="m", duration_s=120, drain_limit_s=60, requests=7)
    asked = simulated.ask(spec, 8)
    assert (asked.duration_s, asked.drain_limit_s, asked.requests) == (15, 7.5, 7)
