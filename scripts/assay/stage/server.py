"""The stages around the load: start_server, gate_before, warm_up, gate_after, stop_server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.digest import sha256_of_file
from assay.errors import Incomplete
from assay.records.files import read_json, write_text
from assay.session.lease import ServerFailed, Session, current, stop
from assay.session.processes import ProcessId, is_alive
from assay.stage.attempt import Attempt, Interrupted, describe_files, write_receipt
from assay.stage.bracket import EVIDENCE, FRONT, Bench
from assay.stage.restore import MANIFEST
from assay.vocab import Reason, Stage, StageState


def not_run(bench: Bench, spec: dict[str, Any], receipt: Path, error: ServerFailed) -> dict[str, Any]:
    """The receipt of a stage for which no server could be had; the failed session's evidence is named."""
    attempt = Attempt(spec, None, None, bench.results)
    files: list[Path] = []
    if error.session_dir is not None and (error.session_dir / "session.json").exists():
        record = read_json(error.session_dir / "session.json")
        if record.get("why_stopped") in ("interrupted", "owner gone"):
            raise Interrupted(15) from error
        attempt.record["session_id"] = record["session_id"]
        attempt.record["run_id"] = record["run_id"]
        files = [error.session_dir / name for name in ("session.json", "server.log")]
    record = attempt.finish(
        StageState.NOT_RUN,
        [error.reason],
        str(error),
        evidence=[f for f in files if f.exists()],
    )
    write_receipt(receipt, record, None, bench.results)
    return record


def start_server(bench: Bench, spec: dict[str, Any], receipt: Path) -> dict[str, Any]:
    """A live server and its configuration read back."""
    bench.check_spec(spec)
    try:
        with bench.session(Stage.START_SERVER) as session:
            folder = session.folder / "started"
            folder.mkdir(exist_ok=True)
            attempt = Attempt(spec, session, folder, bench.results)
            readback = bench.read_back(session)
            reasons = [Reason.CONFIG_MISMATCH] if readback["mismatches"] else []
            measured = {
                "ready_after_s": session.record["ready_after_s"],
                "mismatches": readback["mismatches"],
                "unread": readback["unread"],
                "capacity": readback["capacity"],
            }
            files = [session.folder / "config_readback.json"]
            record = attempt.finish(StageState.COMPLETED, reasons, readback["error"], measured, files)
            write_receipt(receipt, record, folder / "stage.json", bench.results)
            return record
    except ServerFailed as error:
        return not_run(bench, spec, receipt, error)


def front_stage(bench: Bench, spec: dict[str, Any], receipt: Path) -> dict[str, Any]:
    """gate_before and warm_up: the session's own record becomes the receipt."""
    bench.check_spec(spec)
    stage = Stage(spec["stage"])
    try:
        with bench.session(stage) as session:
            record_file = session.folder / FRONT[stage] / "stage.json"
            record = read_json(record_file)
            raise_if_interrupted(record)
            write_receipt(receipt, record, record_file, bench.results)
            return dict(record)
    except ServerFailed as error:
        return not_run(bench, spec, receipt, error)


def raise_if_interrupted(record: dict[str, Any]) -> None:
    """A stage whose server was taken away from outside leaves no receipt: it is to be run again."""
    if str(Reason.SERVER_STOPPED) in record["reasons"]:
        raise Interrupted(15)


def gate_after(
    bench: Bench, spec: dict[str, Any], receipt: Path, load_receipts: list[Path]
) -> dict[str, Any]:
    """Gates against the live session, and the bracket of every session that the leg's load receipts name.

    A session that is over cannot be asked any more: without after-gates of its own its bracket stays open.
    """
    bench.check_spec(spec)
    session_ids = sorted(
        {record["session_id"] for record in map(read_json, load_receipts) if record["session_id"] is not None}
    )
    live = live_session(bench)
    record: dict[str, Any] | None = None
    record_file: Path | None = None
    if live is not None and live.session_id in session_ids:
        record_file = live.folder / FRONT[Stage.GATE_AFTER] / "stage.json"
        if not record_file.exists():
            with bench.session(Stage.WARM_UP) as session:
                if session.session_id != live.session_id:
                    record_file = None  # it died just now; its bracket stays open
                else:
                    bench.run_gate(session, Stage.GATE_AFTER)
        if record_file is not None:
            record = read_json(record_file)
            raise_if_interrupted(record)
    brackets = {session_id: bracket_of(bench.results, session_id) for session_id in session_ids}
    open_ones = {
        session_id: bracket["why_open"] for session_id, bracket in brackets.items() if bracket["why_open"]
    }
    if record is None:
        attempt = Attempt(spec, None, None, bench.results)
        # Nothing was measured now; what earlier sessions of these receipts measured is in the brackets.
        closed = bool(brackets) and not open_ones
        state = StageState.COMPLETED if closed else StageState.NOT_RUN
        detail = (
            None
            if closed
            else f"no live session of this leg to ask; open: {open_ones or 'no session at all'}"
        )
        record = attempt.finish(state, [] if closed else [Reason.BRACKET_OPEN], detail)
    record["measured"] = record["measured"] | {"brackets": brackets}
    write_receipt(receipt, record, record_file, bench.results)
    return record


def live_session(bench: Bench) -> Session | None:
    """The session of this leg that still serves, if there is one."""
    session = current(bench.devices())
    if (
        session is None
        or session.record["leg"] != bench.leg.name
        or session.record["campaign"] != bench.campaign.name
    ):
        return None
    return session if session.server_alive() and session.state == "ready" else None


def bracket_of(results: Path, session_id: str) -> dict[str, Any]:
    """The two halves of a session's bracket by path and digest, or why the second is missing."""
    folder = results / EVIDENCE / session_id

    def half(name: str) -> dict[str, str] | None:
        file = folder / name / "summary.json"
        if not file.exists():
            return None
        described = describe_files(results, [file])[0]
        return {"path": described["path"], "sha256": described["sha256"]}

    before, after = half(FRONT[Stage.GATE_BEFORE]), half(FRONT[Stage.GATE_AFTER])
    why_open = None
    if before is None or after is None:
        try:
            why = read_json(folder / "session.json").get("why_stopped")
        except Incomplete as error:
            why = str(error)
        missing = "before" if before is None else "after"
        why_open = f"no gates {missing} the load in this session; it ended: {why or 'it has not ended'}"
    return {"before": before, "after": after, "why_open": why_open}


def stop_server(bench: Bench, spec: dict[str, Any], receipt: Path) -> dict[str, Any]:
    """End the leg's session and pin the evidence of every ended session of the leg."""
    bench.check_spec(spec)
    live = live_session(bench)
    stop(live, "released")
    closed = close_sessions(bench.results, bench.campaign.name, bench.leg.name)
    attempt = Attempt(spec, None, None, bench.results)
    if closed:
        newest = read_json(closed[-1].parent / "session.json")
        attempt.record |= {"session_id": newest["session_id"], "run_id": newest["run_id"]}
    measured = {"n_sessions": len(closed), "released": live is not None}
    record = attempt.finish(StageState.COMPLETED, [], None, measured, closed)
    write_receipt(receipt, record, None, bench.results)
    return record


def close_sessions(results: Path, campaign: str, leg: str) -> list[Path]:
    """Write the manifest of each ended session of a leg that has none yet; give all the leg's manifests."""
    manifests = []
    for record_file in sorted((results / EVIDENCE).glob("*/session.json")):
        record = read_json(record_file)
        if (record["campaign"], record["leg"]) != (campaign, leg):
            continue
        if is_alive(ProcessId.from_record(record["supervisor"])):
            continue
        manifest = record_file.parent / MANIFEST
        if not manifest.exists():
            write_manifest(record_file.parent)
        manifests.append(manifest)
    return manifests


def write_manifest(folder: Path) -> None:
    """`sha256  path` of every file of a session, in the form that sha256sum reads."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST)
    lines = [f"{sha256_of_file(file)}  {file.relative_to(folder).as_posix()}\n" for file in files]
    write_text(folder / MANIFEST, "".join(lines))
