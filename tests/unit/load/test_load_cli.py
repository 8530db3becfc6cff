"""``assay load`` and ``assay export`` as a user types them."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from assay.load import LoadSpec
from assay.load.progress import Progress
from assay.records.requests import read_requests
from engines.scripted_server import Close, Request, ScriptedServer, Step, plain, words
from make_requests import Shape, request_rows, write_table


def assay(*arguments: Any, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "assay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"id": f"p{i}", "messages": [{"role": "user", "content": f"{i}"}]} for i in range(4)]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_a_load_and_its_exports(prompts: Path, tmp_path: Path) -> None:
    """Exit 0, the two files with the documented names, a few lines for a person; then all three exports."""
    out = tmp_path / "out"
    with ScriptedServer(lambda _r: words(4, first_ms=30, gap_ms=10)) as server:
        run = assay(
            *("load", "--url", server.url, "--model", "m", "--prompts", prompts, "--concurrency", 2),
            *("--requests", 8, "--max-tokens", 4, "--ignore-eos", "--out", out, "--header", "X-A: b"),
        )
        assert server.requests[0].headers["x-a"] == "b"
    summary = json.loads((out / "summary.json").read_text())
    assert run.stderr == ""
    # A host that starves the client is told so; that is then no valid phase, and the exit code says it.
    valid = summary["state"] == "completed"
    assert valid or summary["reasons"] == ["client_bound"]
    assert run.returncode == (0 if valid else 1), run.stdout
    assert summary["requests"] | {"n": 8} == summary["requests"]
    assert summary["throughput"]["output_tokens"] == 32
    assert "8 issued: 8 ok" in run.stdout
    for form in ("vllm", "aiperf", "llmd"):
        exported = assay("export", out, "--format", form)
        assert exported.returncode == 0, exported.stderr
        assert Path(exported.stdout.strip()).stat().st_size > 100


def test_failed_requests_end_it_with_1(prompts: Path, tmp_path: Path) -> None:
    """One failed request of four: the records are there, and the exit code says so."""

    def script(request: Request) -> list[Step]:
        return [plain(500, b"{}")] if request.index == 2 else words(2)

    with ScriptedServer(script) as server:
        run = assay(
            *("load", "--url", server.url, "--model", "m", "--prompts", prompts),
            *("--concurrency", 1, "--requests", 4, "--out", tmp_path / "out"),
        )
    assert run.returncode == 1
    assert "1 http_status" in run.stdout
    assert (tmp_path / "out" / "summary.json").is_file()


def test_the_end_of_a_load_tells_screens_errors_and_what_comes_next(prompts: Path, tmp_path: Path) -> None:
    """Every screen's result, the first error of each class on one bounded line, the records, the next command."""

    def script(request: Request) -> list[Step]:
        bad = plain(404, b"no model\n\x1b[31m" + b"x" * 9_000)
        return [bad] if request.index in (1, 3) else words(2, first_ms=50)

    out = tmp_path / "out"
    with ScriptedServer(script) as server:
        run = assay(
            *("load", "--url", server.url, "--model", "m", "--prompts", prompts),
            *("--concurrency", 1, "--requests", 4, "--out", out),
        )
    lines = run.stdout.splitlines()
    screens = [line.split()[1].rstrip(":") for line in lines if line.startswith("screen ")]
    assert sorted(screens) == sorted(json.loads((out / "summary.json").read_text())["screens"])
    assert "screen       concurrency_reached: pass (1 of 1 in flight)" in lines
    (failure,) = [line for line in lines if line.startswith("failures ")]
    assert "2 http_status, the first: 'HTTP status 404: no model\\n\\x1b[31mxxx" in failure
    assert len(failure) < 300
    assert f"of {out}" in lines[-2]
    assert f"python -m assay export {out} --format vllm" in lines[-1]
    assert "--fresh-connections" not in run.stdout


def test_connections_that_the_server_closes_bring_the_option_that_helps(
    prompts: Path, tmp_path: Path
) -> None:
    """Failures on kept connections: the last lines name --fresh-connections."""
    with ScriptedServer(lambda request: [Close()] if request.index == 1 else words(2)) as server:
        run = assay(
            *("load", "--url", server.url, "--model", "m", "--prompts", prompts),
            *("--concurrency", 1, "--requests", 4, "--out", tmp_path / "out"),
        )
    assert "1 connect, the first: 'the server closed the connection" in run.stdout
    assert "1 of 1 failed on a kept connection that the server closed: --fresh-connections" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--concurrency", "1"], "--requests"),
        (["--requests", "1"], "--concurrency"),
        (["--concurrency", "1", "--requests", "1", "--header", "X"], "--header"),
        (["--concurrency", "1", "--requests", "1", "--extra-body", "[]"], "--extra-body"),
        (["--concurrency", "1", "--requests", "1", "--arrivals", "weekly"], "arrivals"),
        (["--concurrency", "1", "--requests", "1", "--extra-body", '{"a": NaN}'], "--extra-body"),
        (["--concurrency", "1", "--requests", "1", "--url", "http://[::1"], "url"),
    ],
)
def test_bad_input_is_one_line_and_2(prompts: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    """A missing or wrong option: one line that names it, exit 2, nothing written."""
    out = tmp_path / "out"
    run = assay(
        *("load", "--url", "http://127.0.0.1:9", "--model", "m", "--prompts", prompts, "--out", out),
        *arguments,
    )
    assert run.returncode == 2
    assert said in run.stderr
    assert run.stderr.count("\n") == 1
    assert not out.exists()


def test_export_names_what_is_wrong(tmp_path: Path) -> None:
    """No records, or a format that is not known: exit 2 and why."""
    assert assay("export", tmp_path, "--format", "vllm").returncode == 2
    run = assay("export", tmp_path, "--format", "csv")
    assert run.returncode == 2
    assert "vllm, aiperf, llmd" in run.stderr


def test_incomplete_requests_end_it_with_1(prompts: Path, tmp_path: Path) -> None:
    """An open loop far behind its rate: exit 1, and the screen says what was measured and the limit."""
    out = tmp_path / "out"
    with ScriptedServer(lambda _r: words(2, first_ms=400)) as server:
        run = assay(
            *("load", "--url", server.url, "--model", "m", "--prompts", prompts, "--rate", 50),
            *("--concurrency", 2, "--duration", 0.6, "--drain-limit", 0, "--out", out),
        )
    summary = json.loads((out / "summary.json").read_text())
    assert run.returncode == 1
    assert summary["requests"]["incomplete"] > 0
    assert "incomplete   " in run.stdout
    assert "schedule_kept: fail" in run.stdout
    assert summary["n_resent"] == 0
    assert {"output_length", "input_length", "schedule_kept"} <= set(summary["screens"])


def limited(what: int, limit: int, *arguments: Any) -> subprocess.CompletedProcess[str]:
    """A load on a host that refuses more of something."""
    code = "import resource, runpy, sys; n = int(sys.argv.pop(2)); resource.setrlimit(int(sys.argv.pop(1)), (n, n)); "
    code += "runpy.run_module('assay', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", code, str(what), str(limit), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("limit", "kept"), [(8_192, "journal-0.bin"), (16_384, "requests.parquet")])
def test_a_full_disk_ends_it_with_3_and_says_where_the_requests_are(
    prompts: Path, tmp_path: Path, limit: int, kept: str
) -> None:
    """No room for the records: exit 3, one line with the reason and the file that has the requests, or of which
    the rows come back."""
    out = tmp_path / "out"
    with ScriptedServer(lambda _r: words(2)) as server:
        run = limited(
            *(resource.RLIMIT_FSIZE, limit, "load", "--url", server.url, "--model", "m"),
            *("--prompts", prompts, "--concurrency", 2, "--requests", 400, "--out", out),
        )
    assert run.returncode == 3, run.stderr
    assert f"File too large: the requests that had ended are in {kept} of {out}" in run.stderr
    assert run.stderr.count("\n") == 1
    if kept.startswith("journal"):
        assert f"python -m assay recover {out} " in run.stderr
        assert assay("recover", out).returncode == 0
    assert read_requests(out / "requests.parquet").num_rows > 20


def test_a_stopped_load_names_the_command_that_recovers_it(prompts: Path, tmp_path: Path) -> None:
    """Ctrl-C: the last line names `assay recover`, which makes table and summary once: not before, not twice."""
    out = tmp_path / "out folder"
    command = "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command += "runpy.run_module('assay', run_name='__main__', alter_sys=True)"
    given = ["load", "--model", "m", "--prompts", prompts, "--out", out, "--concurrency", 2, "--duration", 60]
    with ScriptedServer(lambda _r: words(3, first_ms=20)) as server:
        run = subprocess.Popen(
            [sys.executable, "-c", command, *map(str, given), "--url", server.url],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        limit = time.monotonic() + 30
        while len(server.requests) < 20 and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(0.6)  # longer than a journal's rows wait for the file
        early = assay("recover", out)
        assert not (out / "requests.parquet").exists()
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=15)
    assert (early.returncode, early.stderr.count("\n")) == (3, 1), early.stderr
    assert "the load that writes it still runs" in early.stderr
    assert run.returncode != 0
    said = f"python -m assay recover '{out}'"
    assert said in errors
    recovered = assay("recover", out)
    assert recovered.returncode == 0, recovered.stderr
    n_rows = json.loads((out / "summary.json").read_text())["requests"]["issued"]
    assert n_rows >= 18
    assert f"{n_rows} requests, 0 bytes" in recovered.stdout
    again = assay("recover", out)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1), again.stderr
    assert "requests.parquet already" in again.stderr
    assert assay("export", out, "--format", "vllm").returncode == 0


def test_what_cannot_be_recovered_ends_with_3_and_makes_no_table(tmp_path: Path) -> None:
    """No journal, an empty one, one that is no journal: exit 3, one line that says so, no requests.parquet."""

    def said() -> str:
        run = assay("recover", tmp_path)
        assert (run.returncode, run.stderr.count("\n")) == (3, 1), run.stderr
        assert not list(tmp_path.glob("*requests.parquet*"))
        return run.stderr

    assert "journal-plan.json: not there" in said()
    (tmp_path / "journal-plan.json").write_text("{}")
    assert "no journal" in said()
    (tmp_path / "journal-0.bin").touch()
    assert "no request had ended" in said()
    (tmp_path / "journal-0.bin").write_bytes(b"\xff" * 100)
    assert "not a journal" in said()


def test_nothing_is_recovered_into_evidence(tmp_path: Path) -> None:
    """The journals of a stage that was killed are evidence: exit 2, and its folder stays as it is."""
    for name in ("stage.json", "journal-plan.json", "journal-0.bin"):
        (tmp_path / name).write_text("{}")
    before = sorted(tmp_path.iterdir())
    run = assay("recover", tmp_path)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1), run.stderr
    assert "is evidence of a session" in run.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/metrix", "HTTP status 404"),
        ("/other", "no gauge of a known engine"),
        ("/bad", "not Prometheus text"),
        ("/metrics", None),
    ],
)
def test_a_metrics_address_without_gauges_is_told_and_recorded(
    prompts: Path, tmp_path: Path, path: str, why: str | None
) -> None:
    """A named address without the server's gauges: one warning line, the reason in the record, the same exit code."""
    out = tmp_path / "out"
    pages = {
        "/bad": lambda: 'a{b="\x1b[31m" 1\n',
        "/other": lambda: "up 1\n",
        "/metrics": lambda: "vllm:num_requests_running 1\n",
    }
    with ScriptedServer(lambda _r: words(2, first_ms=1_300), pages=pages) as server:
        run = assay(
            *("load", "--url", server.url, "--model", "m", "--prompts", prompts, "--out", out),
            *("--concurrency", 1, "--requests", 1, "--metrics-url", f"{server.url}{path}"),
        )
    record = json.loads((out / "client.json").read_text())
    assert run.returncode == (0 if record["state"] == "completed" else 1)
    assert run.stderr.count("\n") == (why is not None)
    (first, *_) = record["server_gauges"]
    if why is None:
        assert "reason" not in first
    else:
        assert "warning: --metrics-url: " in run.stderr
        assert why in run.stderr
        assert why in first["reason"]


def at_a_terminal(*arguments: Any) -> bytes:
    """What a terminal shows of a verb's standard error."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "assay", *map(str, arguments)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(mine, 4_096):
            shown += data
    except OSError:
        pass  # Linux: the other end is closed
    os.close(mine)
    run.wait(60)
    return shown


def test_progress_at_a_terminal_is_one_line_in_place(prompts: Path, tmp_path: Path) -> None:
    """Each second one line over the last, erased at the end; with --quiet nothing."""
    with ScriptedServer(lambda _r: words(2, first_ms=300)) as server:
        given = ["load", "--url", server.url, "--model", "m", "--prompts", prompts, "--concurrency", 1]
        given += ["--requests", 10]
        shown = at_a_terminal(*given, "--out", tmp_path / "a")
        assert at_a_terminal(*given, "--out", tmp_path / "b", "--quiet") == b""
    assert re.search(rb"\r\x1b\[Kassay: [1-9] s: [1-9] of 10 requests ended: [1-9] ok", shown)
    assert b"\n" not in shown
    assert shown.endswith(b"\r\x1b[K")


def test_progress_elsewhere_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the first ten seconds, then lines of what was counted; a reader that is gone ends no load."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    stream = io.StringIO()
    progress = Progress(LoadSpec(url="http://h", model="m", duration_s=60.0), stream)
    for _ in range(51):
        progress.tell({"failed": 2, "ok": 3}, 4)
        now_s += 0.5
    said = "requests ended: 3 ok, 2 failed, 4 more in the opening"
    assert stream.getvalue().splitlines() == [f"assay: {n} s (issuing for 60 s): 5 {said}" for n in (10, 20)]
    stream.close()
    now_s += 10
    progress.tell({}, 0)
    progress.end()


def test_too_few_files_bar_no_folder(prompts: Path, tmp_path: Path) -> None:
    """A host that allows too few open files to begin: exit 3, and the same folder serves the next load."""
    out = tmp_path / "out"
    with ScriptedServer(lambda _r: words(2)) as server:
        given = ("load", "--url", server.url, "--model", "m", "--prompts", prompts, "--out", out)
        given += ("--concurrency", "1", "--requests", "1", "--metrics-url", "none")
        run = limited(resource.RLIMIT_NOFILE, 12, *given)
        assert (run.returncode, run.stderr.count("\n")) == (3, 1), run.stderr
        assert "Too many open files: no request had ended" in run.stderr
        assert server.requests == []
        assay(*given)
    assert (out / "summary.json").is_file()


def test_an_export_names_the_endpoint_that_was_used(tmp_path: Path) -> None:
    """Prompts that are texts went to completions, asked for or not, and the export says so."""
    prompts, out = tmp_path / "texts.jsonl", tmp_path / "out"
    prompts.write_text('{"id": "a", "prompt": "x"}\n')
    with ScriptedServer(lambda _r: words(2)) as server:
        assay(
            *("load", "--url", server.url, "--model", "m", "--prompts", prompts, "--out", out),
            *("--concurrency", 1, "--requests", 1, "--metrics-url", "none"),
        )
        assert [request.path for request in server.requests] == ["/v1/completions"]
    assert assay("export", out, "--format", "vllm").returncode == 0
    assert json.loads((out / "vllm_bench.json").read_text())["endpoint_type"] == "openai"


@pytest.mark.parametrize(
    ("stage", "marks"),
    [
        ("results/evidence/s/finite/p/r1", []),
        ("copied/s/finite/p/r1", ["copied/s/finite/p/r1/stage.json"]),
        ("copied/s/sustained/p/w1", ["copied/s/session.json"]),
    ],
)
def test_an_export_leaves_evidence_as_it_is(tmp_path: Path, stage: str, marks: list[str]) -> None:
    """The export of a stage goes to the current directory, and none is written into a session."""
    folder, elsewhere = tmp_path / stage, tmp_path / "elsewhere"
    folder.mkdir(parents=True)
    elsewhere.mkdir()
    write_table(folder / "requests.parquet", request_rows(Shape(), "s", "p"))
    for mark in marks:
        (tmp_path / mark).write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    for out in (folder / "x.json", folder / "new" / "x.json"):
        refused = assay("export", folder, "--format", "vllm", "--out", out)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert "--out elsewhere" in refused.stderr
    assert assay("export", ".", "--format", "vllm", cwd=folder).returncode == 2
    assert sorted(tmp_path.rglob("*")) == before
    exported = assay("export", folder, "--format", "vllm", cwd=elsewhere)
    assert (exported.returncode, exported.stdout) == (0, "vllm_bench.json\n"), exported.stderr
    assert sorted(tmp_path.rglob("*")) == sorted([*before, elsewhere / "vllm_bench.json"])
