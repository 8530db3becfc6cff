"""An attempt is on record from its first moment, and its receipt comes after its record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from snakemake.persistence.file import FilePersistence

from assay.digest import canonical_json, sha256_of_bytes, sha256_of_file
from assay.session.lease import Session
from assay.stage.attempt import Attempt, Interrupted, new_folder, write_receipt
from assay.stage.restore import MANIFEST, RESTORE_VARIABLE, UNNOTED_VARIABLE, restore, unnoted_receipts
from assay.vocab import Reason, StageState

SPEC: dict[str, Any] = {
    "stage": "run_finite", "campaign": "campaign_x", "leg": "a", "arm": "a", "point": {"point_id": "p1"}, "repeat": 2,
}  # fmt: skip


@pytest.fixture
def session(tmp_path: Path) -> Session:
    folder = tmp_path / "results" / "evidence" / "s1"
    folder.mkdir(parents=True)
    return Session({"session_id": "s1", "run_id": "m__a__4k__e__t__1129-000000"}, folder)


def begin(session: Session, tmp_path: Path) -> Attempt:
    folder = new_folder(session.folder / "finite" / "p1" / "r2")
    return Attempt(SPEC, session, folder, tmp_path / "results")


def test_the_record_exists_before_anything_is_measured(session: Session, tmp_path: Path) -> None:
    """A killed stage is seen: its record says `started`."""
    attempt = begin(session, tmp_path)
    assert attempt.folder is not None
    record = json.loads((attempt.folder / "stage.json").read_text())
    assert (record["state"], record["attempt_id"]) == ("started", "s1/finite/p1/r2")
    assert record["spec_sha256"] == sha256_of_bytes(canonical_json(SPEC).encode())


def test_a_finished_attempt_pins_what_it_wrote(session: Session, tmp_path: Path) -> None:
    """Evidence is listed with path, digest and size, relative to the results folder; the receipt names the record."""
    attempt = begin(session, tmp_path)
    assert attempt.folder is not None
    (attempt.folder / "requests.parquet").write_bytes(b"rows")
    record = attempt.finish(StageState.COMPLETED, measured={"n": 1})
    assert record["evidence"] == [
        {
            "path": "evidence/s1/finite/p1/r2/requests.parquet",
            "sha256": sha256_of_bytes(b"rows"),
            "bytes": 4,
        }
    ]
    receipt = tmp_path / "results" / "campaign_x" / "r.json"
    write_receipt(receipt, record, attempt.folder / "stage.json", tmp_path / "results")
    written = json.loads(receipt.read_text())
    assert written["stage_record"]["sha256"] == sha256_of_file(attempt.folder / "stage.json")


def test_an_interrupted_attempt_says_so(session: Session, tmp_path: Path) -> None:
    """A stage that was told to stop is recorded as failed, interrupted, and the interruption goes on."""
    attempt = begin(session, tmp_path)
    with pytest.raises(Interrupted), attempt.told_if_interrupted():
        raise Interrupted(15)
    assert attempt.record["reasons"] == [str(Reason.INTERRUPTED)]
    assert attempt.record["state"] == str(StageState.FAILED)


def test_a_second_attempt_in_one_session_overwrites_nothing(session: Session, tmp_path: Path) -> None:
    """Evidence is append-only: the folder of a repeated attempt gets another name."""
    first, second = begin(session, tmp_path), begin(session, tmp_path)
    assert first.folder != second.folder
    assert second.record["attempt_id"] == "s1/finite/p1/r2-a2"


def test_a_finished_stage_is_restored_only_for_a_cluster_and_an_open_leg(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt of the very spec comes back while its session is not closed; never locally, never of another."""
    results, receipt = tmp_path / "results", tmp_path / "results" / "campaign_x" / "r.json"
    begin(session, tmp_path).finish(StageState.COMPLETED)
    monkeypatch.delenv(RESTORE_VARIABLE, raising=False)
    assert restore(SPEC, results, "evidence", receipt) is None
    monkeypatch.setenv(RESTORE_VARIABLE, "1")
    assert restore(SPEC | {"repeat": 3}, results, "evidence", receipt) is None
    restored = restore(SPEC, results, "evidence", receipt)
    assert restored is not None
    assert json.loads(receipt.read_text())["attempt_id"] == "s1/finite/p1/r2"
    (session.folder / MANIFEST).write_text("")
    assert restore(SPEC, results, "evidence", receipt) is None


@pytest.mark.parametrize(
    "folder", ["results/campaign_x/receipts", "results/" + "campaign_long/" * 20 + "receipts"]
)
def test_a_receipt_that_snakemake_had_no_time_to_note_is_restored(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """A receipt beside Snakemake's mark of a started job comes back, of a closed session too, for its own spec
    alone; a receipt without the mark, a torn one and another output do not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(RESTORE_VARIABLE, raising=False)
    results = Path("results")
    record = begin(session, tmp_path).finish(StageState.COMPLETED)
    (session.folder / MANIFEST).write_text("")
    marks = FilePersistence.__new__(FilePersistence)
    marks._incomplete_path, marks._incomplete_cache, marks._max_len = ".snakemake/incomplete", None, None
    Path(marks._incomplete_path).mkdir(parents=True)
    names = ("marked.json", "free.json", "torn.json", "table.csv")
    outputs = [Path(folder) / name for name in names]
    for output in outputs:
        write_receipt(output, record, session.folder / "finite/p1/r2/stage.json", tmp_path / "results")
    outputs[2].write_text('{"stage_record": {"pa')
    outputs[3].write_text("a,b")
    for output in (outputs[0], outputs[2], outputs[3]):
        marks._mark_incomplete(output.as_posix(), None)
    found = unnoted_receipts(Path())
    assert found == {outputs[0].as_posix(): "evidence/s1/finite/p1/r2/stage.json"}
    monkeypatch.setenv(UNNOTED_VARIABLE, json.dumps(found))
    before = outputs[0].read_bytes()
    outputs[0].unlink()
    assert restore(SPEC | {"repeat": 3}, results, "evidence", outputs[0]) is None
    assert restore(SPEC, results, "evidence", outputs[1]) is None
    assert restore(SPEC, results, "evidence", outputs[0]) is not None
    assert outputs[0].read_bytes() == before


def test_no_signal_makes_a_failure_of_a_stage_whose_receipt_is_there() -> None:
    """A request to end that comes after the stage, in the interpreter's last moments, leaves exit code 0."""
    code = (
        "import os, signal, sys\n"
        "from assay.stage.adapter import finish\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM): kill(pid, number)\n"
        "sys.modules['last'] = Last()\n"
        "finish(lambda: {'state': 'completed', 'reasons': [], 'stage': 'x'})\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "x: completed\n"), run.stderr
