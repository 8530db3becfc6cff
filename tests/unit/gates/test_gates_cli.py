"""``assay gates`` from outside: a table, a folder of records, an exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from assay.cli.gates import gates
from assay.errors import BadInput
from assay.gates import Policy, load_policy
from engines.gate_server import GateServer, Reply

ROOT = Path(__file__).resolve().parents[3]
LOCAL = ROOT / "config" / "gates" / "local.yaml"

app = typer.Typer()
app.command()(gates)


@pytest.fixture(scope="module")
def local_policy() -> Policy:
    return load_policy(LOCAL)


def call(server: GateServer, out: Path, *more: str) -> Any:
    words = ["--url", f"{server.url}/v1", "--model", "m", "--policy", str(LOCAL), "--out", str(out), *more]
    return CliRunner().invoke(app, words)


def test_a_pass_exits_0_and_writes_both_files(local_policy: Policy, tmp_path: Path) -> None:
    """Every task right: exit 0, a table of the kinds, tasks.jsonl with a line per task, summary.json."""
    with GateServer(local_policy) as server:
        result = call(server, tmp_path / "out", "--concurrency", "2")
    assert result.exit_code == 0, result.output
    assert "verdict: pass" in result.output
    assert len((tmp_path / "out" / "tasks.jsonl").read_text().splitlines()) == len(local_policy.tasks)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["when"] == "before"
    assert summary["policy_sha256"] == local_policy.sha256


def test_a_fail_exits_1_and_names_the_task(local_policy: Policy, tmp_path: Path) -> None:
    """One HTTP 500: exit 1, and the task stands there with its outcome; what a model wrote cannot paint."""
    script = {"json-small_plain": Reply(status=500), "needle-pass_key-230-d10-k1": Reply("\x1b[31m[red]no")}
    with GateServer(local_policy, script) as server:
        result = call(server, tmp_path / "out")
    assert result.exit_code == 1
    assert "json-small_plain: unavailable (http_status) HTTP 500" in result.output
    assert "\x1b[31m" not in result.output


def test_json_output_is_the_summary(local_policy: Policy, tmp_path: Path) -> None:
    """--format json prints the summary itself and nothing else."""
    with GateServer(local_policy) as server:
        result = call(server, tmp_path / "out", "--format", "json", "--when", "after")
    assert json.loads(result.stdout) == json.loads((tmp_path / "out" / "summary.json").read_text())


@pytest.mark.parametrize(
    "more",
    [
        ("--when", "sometime"),
        ("--concurrency", "0"),
        ("--format", "xml"),
        ("--header", "no colon"),
        ("--timeout", "0"),
        ("--api-key-env", "GATES_NO_SUCH_VARIABLE"),
        ("--policy", "none.yaml"),
    ],
)
def test_bad_input_starts_nothing(more: tuple[str, ...], local_policy: Policy, tmp_path: Path) -> None:
    """A wrong option is named, nothing is asked and nothing is written."""
    with GateServer(local_policy) as server:
        result = call(server, tmp_path / "out", *more)
        assert isinstance(result.exception, BadInput)
        assert more[0] in str(result.exception) or more[1] in str(result.exception)
        assert server.log == []
    assert not (tmp_path / "out").exists()
