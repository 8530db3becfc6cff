"""The crate, the statements and the page of cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rocrate.rocrate import ROCrate

from assay.digest import sha256_of_file
from assay.extract import everything
from assay.records.pins import parse_sums
from assay.report.evidence import write_evidence
from assay.report.pages import cards_page
from make_results import Scene


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign with one failed, one invalid and one killed attempt, pinned."""
    scene = Scene(tmp_path_factory.mktemp("report"))
    scene.states["base/chat_c2/r2"] = ("failed", ["server_crashed"])
    scene.states["fast/chat_c2/r1"] = ("invalid", ["client_refused", "server_crashed"])
    scene.gates["fast", "after"] = {"unavailable": 1}
    made = scene.build()
    killed = scene.results / "evidence" / "20261128T080000Z-aaaaaa" / "warmup" / "stage.json"
    source = scene.results / "evidence" / scene.session_id("base") / "warmup" / "stage.json"
    scene.put(
        killed, json.loads(source.read_text()) | {"state": "started", "t_end_utc": None, "evidence": []}
    )
    everything.write(made)
    write_evidence(made)
    return made


def entities(folder: Path) -> dict[str, Any]:
    return {entity.id: entity for entity in ROCrate(folder).get_entities()}


def test_the_crate_opens_and_names_every_file_with_its_digest(folder: Path) -> None:
    """Opened with the rocrate library, the crate has every pinned file, each with its sha256 and its size."""
    found = entities(folder)
    sums = parse_sums((folder / "SHA256SUMS").read_text(), "SHA256SUMS")
    for path, sha256 in sums.items():
        if path == "campaign_test/ro-crate-metadata.json":
            continue
        identifier = (
            path.removeprefix("campaign_test/") if path.startswith("campaign_test/") else f"../{path}"
        )
        assert found[identifier]["sha256"] == sha256, path
        assert int(found[identifier]["contentSize"]) == (folder / identifier).stat().st_size


def test_the_crate_is_a_workflow_run_crate(folder: Path) -> None:
    """It conforms to Workflow Run Crate 0.5 on RO-Crate 1.1; its main entity is the resolved campaign."""
    crate = ROCrate(folder)
    assert crate.version == "1.1"
    profiles = {entity.id for entity in crate.root_dataset["conformsTo"]}
    assert "https://w3id.org/ro/wfrun/workflow/0.5" in profiles
    assert "ComputationalWorkflow" in crate.mainEntity.type
    run = entities(folder)["#campaign"]
    assert run["instrument"].id == "plan.json"
    inputs, outputs = ({entity.id for entity in run[key]} for key in ("object", "result"))
    assert {"plan.json", "receipts/images/img.json", "receipts/probe_topology.json"} <= inputs
    assert {"extracts/rows.csv", "extracts/verdicts.json", "receipts/base/gate_after.json"} <= outputs


def test_the_crate_has_every_attempt_the_failed_ones_included(folder: Path) -> None:
    """A failed, an invalid and a killed attempt are failed actions that say why, with their files."""
    actions = {key: one for key, one in entities(folder).items() if key.startswith("#attempt/")}
    failed = {key: one for key, one in actions.items() if one["actionStatus"].endswith("FailedActionStatus")}
    errors = sorted(one["error"] for one in failed.values())
    assert errors == ["client_refused; server_crashed", "interrupted", "server_crashed"]
    crashed = next(one for one in failed.values() if one["error"] == "server_crashed")
    assert any(entity.id.endswith("chat_c2/r2/requests.parquet") for entity in crashed["result"])
    records = list((folder.parent / "evidence").rglob("stage.json"))
    assert len(actions) == len(records) + 2  # stop_server of two legs has a receipt and no stage record


def test_the_same_evidence_gives_the_same_bytes(folder: Path) -> None:
    """Written twice, crate, statements, page and list are the same: nothing in them is the time of writing."""
    names = [path for path in folder.rglob("*") if path.is_file()]
    before = {path: sha256_of_file(path) for path in names}
    write_evidence(folder)
    assert {path: sha256_of_file(path) for path in names} == before


def test_statements_are_in_toto_and_tell_the_failed_task(folder: Path) -> None:
    """A gate's statement has the digests of its transcripts, its policy, and the task that failed with its outcome."""
    found = {path.name: json.loads(path.read_text()) for path in (folder / "statements").glob("gates_*.json")}
    assert len(found) == 4
    failing = [one for one in found.values() if one["predicate"]["result"] == "FAILED"]
    (one,) = failing
    assert one["_type"] == "https://in-toto.io/Statement/v1"
    assert one["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert len(one["predicate"]["passedTests"]) == 23
    assert one["predicate"]["failedTests"][0].endswith(": unavailable")
    for subject in one["subject"]:
        assert subject["digest"]["sha256"] == sha256_of_file(folder.parent / subject["name"])


def test_the_page_escapes_what_it_shows() -> None:
    """Text from models and configuration cannot become markup, and the page loads nothing from outside."""
    hostile = "<script>alert(1)</script>\x1b[31m"
    card = {
        "claim": {"configuration": hostile, "point_id": "p", "name": "n", "value": 1234.5, "unit": "tokens/s",
                  "statistic": "median of 3", "n": 3, "spread_ratio": 1.04, "publishable": False,
                  "reasons": [hostile], "excluded_rows": []},
        "conditions": {"system": hostile, "model": "x" * 5000},
        "evidence": {"row_ids": ["r"], "run_ids": ["r"]},
    }  # fmt: skip
    page = cards_page({"campaign": hostile, "title": None, "cards": [card]})
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    assert "1,234" in page or "1,235" in page
    assert "x" * 500 not in page
    assert "http" not in page.replace("http-equiv", "")


def test_no_home_path_or_host_in_what_is_written(folder: Path) -> None:
    """Everything written names files relative to results: no absolute path of this machine."""
    for path in [folder / "SHA256SUMS", folder / "ro-crate-metadata.json", *(folder / "statements").glob("*"),
                 *(folder / "extracts").glob("*")]:  # fmt: skip
        assert str(folder.parent.parent).encode() not in path.read_bytes(), path
