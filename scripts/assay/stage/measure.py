"""The stages that are measured: one repeat of a finite point, one set of sustained windows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.digest import sha256_of_file
from assay.gates import run_mixed
from assay.load import LoadSpec, Prompt, read_prompts
from assay.records.files import write_json
from assay.records.gates import MIXED
from assay.session import replicas
from assay.session.counters import read_counters, record_counters
from assay.session.lease import ServerFailed, Session
from assay.stage.attempt import Attempt, write_receipt
from assay.stage.bracket import EVIDENCE, Bench, stage_folder
from assay.stage.restore import restore
from assay.stage.server import not_run, raise_if_interrupted
from assay.vocab import Reason, Stage, StageState


def load_spec(bench: Bench, session: Session, point: dict[str, Any], **timing: Any) -> LoadSpec:
    """What the load client is asked for one phase of a point."""
    return LoadSpec(
        url=session.url,
        model=bench.server["served_name"],
        concurrency=point["concurrency"],
        max_tokens=point["max_tokens"],
        ignore_eos=point["ignore_eos"],
        extra_body=point["extra_body"],
        timeout_s=point["timeout_s"],
        seed=point["seed"],
        planned_prompt_tokens=point["planned_prompt_tokens"],
        point_id=point["point_id"],
        session_id=session.session_id,
        reuse_connections=bench.engine.keeps_connections,
        metrics_urls=tuple(f"{url}/metrics" for url in replicas.server_urls(session.folder, session.url)),
        **timing,
    )


@contextmanager
def gates_beside(bench: Bench, session: Session, folder: Path, wanted: bool) -> Iterator[None]:
    """The gate tasks asked beside a load, round after round; their record lies in ``folder``."""
    if not wanted:
        yield
        return
    over = threading.Event()
    with ThreadPoolExecutor(1, "assay-mixed-gates") as pool:
        asked = pool.submit(run_mixed, bench.endpoint(session), bench.specs.gate_policy, folder, stop=over)
        try:
            yield
        finally:
            over.set()
        asked.result()


def run_phase(
    bench: Bench,
    session: Session,
    spec: LoadSpec,
    prompts: list[Prompt],
    folder: Path,
    mixed: bool = False,
) -> tuple[dict[str, Any], list[Reason]]:
    """One phase of load with the server's counters around it; what spoils it comes back as reasons."""
    folder.mkdir(parents=True, exist_ok=True)
    engine_name = bench.engine.metrics_name
    urls, group = replicas.server_urls(session.folder, session.url), replicas.read_group(session.folder)
    before = read_counters(urls, engine_name)
    each_before = replicas.read_counters(group, engine_name) if group else None
    with gates_beside(bench, session, folder / MIXED, mixed):
        client = bench.run_load(spec, prompts, folder)
    after = read_counters(urls, engine_name)
    write_json(folder / "counters.json", record_counters(before, after, client))
    reasons = [Reason(word) for word in client["reasons"]]
    now = replicas.read_group(session.folder)
    if each_before is not None and now is not None:
        each_after = replicas.read_counters(now, engine_name)
        record = replicas.phase_record(each_before, each_after, now, folder / "requests.parquet")
        write_json(folder / "replicas.json", record)
    if client["requests"]["ok"] != client["requests"]["issued"]:
        reasons.append(Reason.REQUESTS_FAILED)
    return client, reasons


def judge_state(
    bench: Bench, session: Session, reasons: list[Reason], counts: dict[str, int]
) -> tuple[StageState, list[Reason], str | None]:
    """A dead server decides before a spoilt measurement; both facts stay in the reasons."""
    state, more, detail = bench.outcome(session)
    invalid = {Reason.CONCURRENCY_NOT_REACHED, Reason.CLIENT_BOUND, Reason.CLIENT_REFUSED} & set(reasons)
    if state is StageState.COMPLETED and invalid:
        state = StageState.INVALID
    if state is StageState.COMPLETED and counts["ok"] == 0:
        state, detail = StageState.FAILED, "no request succeeded"
    return state, reasons + more, detail


def prompts_of(bench: Bench, point_id: str) -> tuple[list[Prompt], str]:
    path = bench.folder / "prompts" / f"{point_id}.jsonl"
    return read_prompts(path), sha256_of_file(path)


def run_finite(bench: Bench, spec: dict[str, Any], receipt: Path) -> dict[str, Any]:
    """One repeat of one finite point."""
    bench.check_spec(spec)
    if (restored := restore(spec, bench.results, EVIDENCE, receipt)) is not None:
        return restored
    point, repeat = spec["point"], spec["repeat"]
    prompts, prompts_sha256 = prompts_of(bench, point["point_id"])
    try:
        with bench.session(Stage.WARM_UP) as session:
            folder = stage_folder(session, "finite", point["point_id"], f"r{repeat}")
            attempt = Attempt(spec, session, folder, bench.results)
            load = load_spec(bench, session, point, requests=point["requests"])
            with attempt.told_if_interrupted():
                client, reasons = run_phase(bench, session, load, prompts, folder)
            state, reasons, detail = judge_state(bench, session, reasons, client["requests"])
            measured = {"counts": client["requests"], "prompts_sha256": prompts_sha256}
            record = attempt.finish(state, reasons, detail, measured)
            raise_if_interrupted(record)
            write_receipt(receipt, record, folder / "stage.json", bench.results)
            return record
    except ServerFailed as error:
        return not_run(bench, spec, receipt, error)


def run_sustained(bench: Bench, spec: dict[str, Any], receipt: Path) -> dict[str, Any]:
    """A set of windows: issue for a time, stop issuing, drain with a limit, then the next window."""
    bench.check_spec(spec)
    if (restored := restore(spec, bench.results, EVIDENCE, receipt)) is not None:
        return restored
    point = spec["point"]
    prompts, prompts_sha256 = prompts_of(bench, point["point_id"])
    try:
        with bench.session(Stage.WARM_UP) as session:
            folder = stage_folder(session, "sustained", point["point_id"])
            attempt = Attempt(spec, session, folder, bench.results)
            reasons: list[Reason] = []
            windows: list[dict[str, Any]] = []
            for number in range(1, point["windows"] + 1):
                load = load_spec(
                    bench, session, point, duration_s=point["issue_s"], drain_limit_s=point["drain_limit_s"]
                )
                with attempt.told_if_interrupted():
                    client, more = run_phase(
                        bench, session, load, prompts, folder / f"w{number}", point.get("mixed_gates", False)
                    )
                reasons += more
                windows.append({"window": number, "counts": client["requests"]})
                if not session.refreshed().server_alive():
                    break
            counts = {key: sum(window["counts"][key] for window in windows) for key in windows[0]["counts"]}
            state, reasons, detail = judge_state(bench, session, reasons, counts)
            measured = {"counts": counts, "windows": windows, "prompts_sha256": prompts_sha256}
            record = attempt.finish(state, reasons, detail, measured)
            raise_if_interrupted(record)
            write_receipt(receipt, record, folder / "stage.json", bench.results)
            return record
    except ServerFailed as error:
        return not_run(bench, spec, receipt, error)
