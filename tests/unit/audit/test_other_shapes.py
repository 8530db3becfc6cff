"""Files of a campaign that hold something else: each verb names the file in one line, and none ends in exit 4."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.audit.recompute import read_rows_csv
from assay.cli import main
from assay.cli.show import show
from assay.extract import everything
from make_results import Scene

REFERENCE = Path(__file__).resolve().parents[3] / "config" / "reference" / "published_results.csv"
OTHER_JSON = [b"[]", b"{}", b"null", b"5", b"\xff", b"[" * 100_000]
VERDICTS = b'{"schema": "assay/verdicts/1", "counts": {"rows": 1}, "legs": []}'
COMPARISONS = b'{"schema": "assay/comparisons/1", "comparisons": [5]}'
OTHER_ROWS = [b"", b"\0\0", b"\xff\xfe\xfa", b"[]", b"null", b"row_id\nx\n", b"a,b\n1\n", b"[" * 1000]
Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: exit code, and the lines of standard error."""

    def run(*words: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["assay", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err.splitlines()

    return run


def put(results: Path, name: str, content: bytes) -> str:
    """Another content of a file of the campaign; returns the campaign's folder."""
    (results / "campaign_test" / name).write_bytes(content)
    return str(results / "campaign_test")


@pytest.mark.parametrize(
    ("verb", "name", "content"),
    [
        *(("show", "verdicts.json", one) for one in (*OTHER_JSON, VERDICTS)),
        *(("compare", "comparisons.json", one) for one in (*OTHER_JSON, COMPARISONS)),
        *(("show", "rows.csv", one) for one in OTHER_ROWS),
        *(("compare --reference", "rows.csv", one) for one in OTHER_ROWS),
    ],
)
def test_an_extract_of_another_shape_is_incomplete(
    results: Path, assay: Run, verb: str, name: str, content: bytes
) -> None:
    """An extract that holds something else is one line with its name, and exit 3."""
    folder = put(results, f"extracts/{name}", content)
    more = ("--reference", str(REFERENCE)) if verb.endswith("--reference") else ()
    code, said = assay(verb.split()[0], folder, *more)
    assert code == 3, said
    assert len(said) == 1
    assert name in said[0]


def test_what_is_in_order_is_shown(results: Path, assay: Run) -> None:
    """A finished campaign is shown and compared, with exit 0."""
    folder = str(results / "campaign_test")
    assert assay("show", folder) == (0, [])
    assert assay("compare", folder) == (0, [])
    assert assay("compare", folder, "--reference", str(REFERENCE)) == (0, [])


def test_a_campaign_that_still_runs_shows_what_has_ended(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without rows, every receipt of a leg is a line, with its repeat's counts and the rate that its row has."""
    folder = results / "campaign_test"
    rows = {row["row_id"]: row for row in read_rows_csv(folder / "extracts" / "rows.csv")}
    (folder / "extracts" / "rows.csv").unlink()
    monkeypatch.setattr(sys, "argv", ["assay", "show", str(folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 3
    assert told.err.splitlines() == [
        f"assay: {folder}: no rows yet: they are made when every leg has ended; "
        "what is left: python -m assay plan campaign_test"
    ]
    lines = {line.split()[0]: line for line in told.out.splitlines()[1:]}
    receipts = {
        str(path.relative_to(folder / "receipts").with_suffix(""))
        for leg in ("base", "fast")
        for path in (folder / "receipts" / leg).rglob("*.json")
    }
    assert set(lines) == receipts
    row = rows["base/chat_c2/r1"]
    line = lines["base/finite/chat_c2/r1"]
    assert f" {row['n_ok']}/{row['n_issued']} " in line
    assert f" {row['output_tok_s']:.1f} " in line


@pytest.mark.parametrize("target", ["", "#base/chat_c2/r2", "folder"])
def test_a_target_that_is_no_campaign_is_bad_input(
    results: Path, assay: Run, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Nothing at all is not the folder one stands in, and a folder without a campaign is not audited."""
    (results / "folder").mkdir()
    monkeypatch.chdir(results)
    code, said = assay("audit", target)
    assert code == 2
    assert len(said) == 1


@pytest.mark.parametrize("content", [*OTHER_JSON, b'{"stage": "x", "state": 5, "reasons": []}'])
def test_what_is_no_receipt_is_retried(results: Path, assay: Run, content: bytes) -> None:
    """A receipt that holds something else is removed like one that cannot be read, and no other is."""
    receipts = results / "campaign_test" / "receipts"
    before = sorted(receipts.rglob("*.json"))
    broken = before[0]
    broken.write_bytes(content)
    assert assay("retry", "--failed", "--results", str(results)) == (0, [])
    assert sorted(receipts.rglob("*.json")) == [path for path in before if path != broken]


def test_receipts_without_a_state_are_kept(results: Path, assay: Run) -> None:
    """Prompts and topology have receipts that say no state: they are no failures."""
    path = results / "campaign_test" / "receipts" / "prompts" / "p.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"schema": "assay/prompts/1", "stage": "prepare_prompts", "point_id": "p"}))
    assert assay("retry", "--failed", "--results", str(results)) == (0, [])
    assert path.exists()


def test_a_leg_that_did_not_pass_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A leg with a session that had no gates after its load names what did not pass, beside its verdict."""
    scene = Scene(tmp_path)
    scene.why_open["base"] = "no gates after the load in this session"
    folder = scene.build()
    everything.write(folder)
    show(folder)
    lines = capsys.readouterr().out.splitlines()
    (base,) = [line for line in lines if line.startswith("base: ")]
    assert "gate_after" in base
    (fast,) = [line for line in lines if line.startswith("fast: ")]
    assert fast == "fast: pass"
