"""A failure is data: what is recorded when servers die, do not start, or do not do what was asked."""

from __future__ import annotations

import json

import pytest

from checkout import Checkout

pytestmark = pytest.mark.e2e
EXTRACTS = "results/campaign_tiny/extracts/rows.csv"  # charts and digests are other tests' business


@pytest.fixture
def checkout(checkout: Checkout) -> Checkout:
    """As far as the extracts: the failures are in the receipts and rows."""
    checkout.target = EXTRACTS
    return checkout


def test_a_server_that_never_starts(checkout: Checkout) -> None:
    """Two starts, not one a point; the stages are `not_run` with the log's tail kept; the other arm is measured."""
    checkout.campaign["arms"]["a"]["flags"]["ctx_size"] = 4097
    checkout.write_campaign()
    checkout.build_image()
    checkout.script(fail_if_ctx=4097)
    run = checkout.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    sessions = [session for session in checkout.sessions() if session["leg"] == "a"]
    assert len(sessions) == 2
    assert all("cannot load the model: scripted failure" in session["log_tail"] for session in sessions)
    receipt = checkout.receipt("a/finite/p2/r1.json")
    assert (receipt["state"], receipt["reasons"]) == ("not_run", ["server_start_failed"])
    assert receipt["evidence"], "the failed session's evidence is named"
    assert checkout.receipt("b/finite/p2/r1.json")["state"] == "completed"
    assert "a/finite/p1/r1.json" in checkout.assay("retry", "--failed", "--dry-run").stdout


def test_a_crash_during_a_point(checkout: Checkout) -> None:
    """The crashed point keeps its failing record and its served requests; later points get a new session."""
    del checkout.campaign["arms"]["b"], checkout.campaign["comparisons"]
    checkout.campaign["order"] = ["a"]
    checkout.write_campaign()
    checkout.build_image()
    # 6 gate tasks, 1 + 2 warm-up requests, 3 requests of p1, and 2 of p2's 6
    checkout.script(exit_after_chat_streams=3 + 3 + 2)
    run = checkout.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    crashed = checkout.receipt("a/finite/p2/r1.json")
    assert (crashed["state"], crashed["reasons"]) == ("failed", ["requests_failed", "server_crashed"])
    counts = crashed["measured"]["counts"]
    assert counts["issued"] == counts["ok"] + counts["failed"] + counts["incomplete"]
    assert counts["ok"] == 2
    assert checkout.receipt("a/finite/p1/r1.json")["state"] == "completed"
    sessions = checkout.sessions()
    assert len(sessions) >= 2
    assert sessions[0]["why_stopped"] == "server exited by itself"
    brackets = checkout.receipt("a/gate_after.json")["measured"]["brackets"]
    assert "server exited by itself" in brackets[sessions[0]["session_id"]]["why_open"]
    # retry: the crashed point, and p1, whose session has no gates after the load
    checkout.script()
    removed = checkout.assay("retry", "--failed").stdout
    assert "a/finite/p2/r1.json" in removed
    assert "a/finite/p1/r1.json" in removed
    assert checkout.snakemake("campaign_tiny").returncode == 0, "the campaign's target misses no receipt"
    assert checkout.receipt("a/finite/p2/r1.json")["state"] == "completed"
    brackets = checkout.receipt("a/gate_after.json")["measured"]["brackets"]
    assert all(bracket["why_open"] is None for bracket in brackets.values())
    attempts = (checkout.root / "results/campaign_tiny/extracts/attempts.csv").read_text()
    assert "server_crashed" in attempts, "the failed attempt stays in the history"


def test_a_crash_in_the_gates_is_no_load(checkout: Checkout) -> None:
    """A server that dies in the gates before the load is tried twice; its load stages are not run."""
    checkout.campaign["points"] = {"p1": checkout.campaign["points"]["p1"]}
    checkout.write_campaign()
    checkout.build_image()
    checkout.script(exit_at_request=3)
    run = checkout.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert [session["leg"] for session in checkout.sessions()] == ["a", "a", "b", "b"]
    for name, reason in (("gate_before", "server_crashed"), ("finite/p1/r1", "server_start_failed")):
        receipt = checkout.receipt(f"a/{name}.json")
        assert (receipt["state"], receipt["reasons"]) == ("not_run", [reason])


def test_an_image_whose_check_fails(checkout: Checkout) -> None:
    """An arm whose image cannot be built is not run and says why; the other arm is measured."""
    import yaml

    image = yaml.safe_load((checkout.root / "config/images/fake_llama_cpp.yaml").read_text())
    image |= {"name": "broken", "checks": [{"name": "never", "code": "raise SystemExit('scripted refusal')"}]}
    checkout.write("config/images/broken.yaml", image)
    checkout.campaign["arms"]["b"]["image"] = "broken"
    checkout.campaign["points"] = {"p1": checkout.campaign["points"]["p1"]}
    checkout.write_campaign()
    run = checkout.snakemake()
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert checkout.receipt("images/broken.json")["state"] == "failed"
    receipt = checkout.receipt("b/finite/p1/r1.json")
    assert (receipt["state"], receipt["reasons"]) == ("not_run", ["image_failed"])
    assert "never" in receipt["detail"]
    assert checkout.receipt("a/finite/p1/r1.json")["state"] == "completed"
    assert "images/broken.json" in checkout.assay("retry", "--failed", "--dry-run").stdout


def test_an_ignored_flag_is_read_back(checkout: Checkout) -> None:
    """A server that ignores a flag is caught by the read-back, and no row of it is publishable."""
    checkout.campaign["points"] = {"p1": checkout.campaign["points"]["p1"]}
    checkout.write_campaign()
    checkout.build_image()
    checkout.script(ignore_flags=["n_parallel"])
    assert checkout.snakemake().returncode == 0
    started = checkout.receipt("a/start_server.json")
    assert started["reasons"] == ["config_mismatch"]
    assert {"key": "parallel", "asked": 4, "read": 1} in started["measured"]["mismatches"]
    verdicts = json.loads((checkout.root / "results/campaign_tiny/extracts/verdicts.json").read_text())
    assert "config_readback" in json.dumps(verdicts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(ordr=["a"]), ["campaign_tiny.yaml", "ordr", "did you mean 'order'"]),
        (lambda c: c["points"]["p1"].update(concurrency="two"), ["points.p1.concurrency", "integer"]),
        (
            lambda c: c["arms"]["a"]["flags"].update(paralel=4),
            ["arms.a.flags.paralel", "did you mean 'parallel'"],
        ),
        (
            lambda c: c["arms"]["a"]["flags"].update(spec_type="ngram"),
            ["arms.a.flags.spec_type", "ngram_mod"],
        ),
        (lambda c: c["arms"]["a"].update(image="lama"), ["arms.a.image", "fake_llama_cpp"]),
        (lambda c: c["needs"].update(gpus=8), ["needs.gpus", "needs 8 GPUs"]),
        (lambda c: c["order"].append("c"), ["order[2]", "no arm 'c'"]),
    ],
)
def test_bad_input_is_one_line_and_exit_2(checkout: Checkout, change, words) -> None:
    """A fault in the campaign file: one line naming file, key and what is right, exit 2, nothing written."""
    change(checkout.campaign)
    checkout.write_campaign()
    run = checkout.snakemake()
    assert run.returncode == 2, run.stdout + run.stderr
    lines = [line for line in run.stderr.splitlines() if line.startswith("assay:")]
    assert len(lines) == 1
    assert all(word in lines[0] for word in words), lines[0]
    assert "Traceback" not in run.stderr + run.stdout
    assert not (checkout.root / "results").exists()
    checked = checkout.assay("validate", "--machine", "config/campaigns/campaign_tiny.yaml")
    assert checked.returncode == 2
    assert words[-1] in checked.stderr


def test_model_file_and_port_are_checked_before_anything_starts(checkout: Checkout) -> None:
    """A model file that is not there or has another digest, and a port in use, each end with exit 2."""
    import socket

    import yaml

    path = checkout.root / "config/models/fake_model.yaml"
    model = yaml.safe_load(path.read_text())
    model["source"] = {"path": str(checkout.root / "weights.gguf")}
    checkout.write("config/models/fake_model.yaml", model)
    run = checkout.snakemake()
    assert run.returncode == 2
    assert "no model file" in run.stderr
    (checkout.root / "weights.gguf").write_bytes(b"other weights")
    run = checkout.snakemake()
    assert run.returncode == 2
    assert "fake_model.yaml: sha256" in run.stderr
    (checkout.root / "weights.gguf").write_bytes(b"no weights, only a name\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        checkout.campaign["arms"]["a"]["port"] = taken.getsockname()[1]
        checkout.write_campaign()
        run = checkout.snakemake()
    assert run.returncode == 2
    assert "arms.a.port" in run.stderr
    assert not (checkout.root / "results").exists()
