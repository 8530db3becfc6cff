"""rows.csv and rows.parquet: one row per repeat and per window, one pooled row per set of windows.

Nothing is dropped: a stage that failed, is invalid or was not run has its row, with the reasons.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.digest import canonical_json
from assay.errors import Incomplete
from assay.extract.columns import ARROW_SCHEMA, COLUMNS, FLAG, NAMES, TEXTS
from assay.extract.loads import Load, iterate_loads
from assay.extract.values import summarise
from assay.metrics.phase import Phase, read_phase
from assay.records.campaign import Campaign, open_campaign, resolve_inside
from assay.records.files import replacing, write_bytes
from assay.verdict.facts import RequestFacts
from assay.verdict.findings import Finding
from assay.verdict.publication import RowVerdict, judge_row, run_screens
from assay.verdict.server_screens import score
from assay.vocab import GateKind, Reason, Screen, ScreenResult, Stage, StageState, Verdict

_SERVER_WORDS = frozenset({Reason.SERVER_CRASHED, Reason.SERVER_STOPPED, Reason.SERVER_START_FAILED})


@dataclass(frozen=True)
class Row:
    """A row's values by column, and the findings behind its flags."""

    values: dict[str, Any]
    findings: tuple[Finding, ...]
    load: Load | None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def window_of(load: Load) -> tuple[int, int] | None:
    """The issuing window in monotonic nanoseconds: from the client's own record, else from the first send."""
    issue_s = load.record.point.get("issue_s")
    if load.window is None or issue_s is None or load.record.facts is None:
        return None
    phase = (load.record.client or {}).get("phase") or {}
    start_ns = phase.get("t_start_ns") or load.record.facts.t_first_send_ns
    return None if start_ns is None else (int(start_ns), int(start_ns) + round(issue_s * 1e9))


def read_load_phase(campaign: Campaign, load: Load) -> Phase | None:
    """The reduced table of requests of a load, None when it has none that can be trusted."""
    if load.record.facts is None or load.requests_path is None:
        return None
    try:
        return read_phase(resolve_inside(campaign.results, load.requests_path), window_of(load))
    except Incomplete:
        return None  # read_facts has already told the fault of the same file


def row_id(leg: str, point_id: str, repeat: int | None, window: int | None, pooled: bool = False) -> str:
    tail = "pooled" if pooled else (f"w{window}" if window is not None else f"r{repeat}")
    return f"{leg}/{point_id}/{tail}"


def _stage_of(load: Load) -> tuple[str, tuple[str, ...]]:
    """(state, reasons) that count for this row. Of an invalid set of windows, only what its own window
    shows."""
    state, reasons = (
        str(load.receipt.body.get("state")),
        tuple(map(str, load.receipt.body.get("reasons") or ())),
    )
    if load.window is None or load.record.client is None:
        return state, reasons
    own = tuple(map(str, load.record.client.get("reasons") or ()))
    facts = load.record.facts
    if facts is not None and facts.ok < facts.issued:
        own += (Reason.REQUESTS_FAILED,)
    kept = tuple(word for word in reasons if word in own or word in _SERVER_WORDS)
    if state == StageState.INVALID and not load.record.client.get("reasons"):
        state = StageState.COMPLETED
    return state, tuple(dict.fromkeys((*kept, *own)))


def _common(campaign: Campaign, load: Load, policy: Mapping[str, Any]) -> dict[str, Any]:
    plan, body, point, arm = campaign.plan, load.receipt.body, load.record.point, load.record.arm
    publication, gates = plan.get("publication") or {}, plan.get("gates") or {}
    spec = body.get("spec") or {}
    measured = body.get("measured") or {}
    return {
        "campaign": plan["name"],
        "run_id": body.get("run_id"),
        "session_id": load.record.session_id,
        "attempt_id": body.get("attempt_id"),
        "leg": load.leg,
        "leg_rank": plan["legs"][load.leg].get("rank"),
        "arm": load.arm_name,
        "point_id": load.point_id,
        "repeat": load.repeat,
        "window": load.window,
        "t_start_utc": body.get("t_start_utc"),
        "t_end_utc": body.get("t_end_utc"),
        "engine": arm.get("engine"),
        "image": arm.get("image"),
        "model": arm.get("model"),
        "suite": plan.get("suite"),
        "context_tokens": plan.get("context_tokens"),
        "gpus": arm.get("gpus"),
        "workload": point.get("workload"),
        "workload_kind": point.get("workload_kind"),
        "concurrency": point.get("concurrency"),
        "requests_planned": point.get("requests"),
        "issue_s": point.get("issue_s"),
        "drain_limit_s": point.get("drain_limit_s"),
        "max_tokens": point.get("max_tokens"),
        "ignore_eos": point.get("ignore_eos"),
        "planned_prompt_tokens": point.get("planned_prompt_tokens"),
        "prompts_sha256": measured.get("prompts_sha256") or spec.get("prompts_sha256"),
        "stand_in_prompts": bool(point.get("stand_in_prompts")),
        "rehearsal": bool(plan.get("rehearsal")),
        "receipt_path": load.receipt.path,
        "receipt_sha256": load.receipt.sha256,
        "readback_path": load.record.evidence.get("readback"),
        "publication_policy": policy.get("name"),
        "publication_sha256": publication.get("sha256"),
        "gates_policy": gates.get("policy"),
        "gates_sha256": gates.get("sha256"),
        "package_sha256": body.get("package_sha256"),
        "commit": body.get("commit"),
    }


def _counts(facts: Sequence[RequestFacts]) -> dict[str, Any]:
    if not facts:
        return dict.fromkeys(
            (
                "n_issued",
                "n_ok",
                "n_failed",
                "n_incomplete",
                "error_classes",
                "prompts_distinct",
                "prompts_cycled",
            )
        )
    errors: dict[str, int] = {}
    for one in facts:
        for word, count in one.error_classes.items():
            errors[word] = errors.get(word, 0) + count
    issued = sum(one.issued for one in facts)
    distinct = len(set().union(*(one.prompt_ids for one in facts)))
    return {
        "n_issued": issued,
        "n_ok": sum(one.ok for one in facts),
        "n_failed": sum(one.failed for one in facts),
        "n_incomplete": sum(one.incomplete for one in facts),
        "error_classes": canonical_json(errors),
        "prompts_distinct": distinct,
        "prompts_cycled": issued > distinct,
    }


def _counters(loads: Sequence[Load]) -> dict[str, Any]:
    deltas = [(load.record.counters or {}).get("delta") or {} for load in loads]

    def total(name: str) -> int | None:
        known = [delta[name] for delta in deltas if delta.get(name) is not None]
        return round(sum(known)) if known and len(known) == len(deltas) else None

    drafted, accepted = total("draft_tokens"), total("accepted_tokens")
    return {
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_rate": accepted / drafted if drafted and accepted is not None else None,
        "cached_prompt_tokens": total("cached_prompt_tokens"),
    }


def _gate_columns(load: Load) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in GateKind:
        for when in ("before", "after"):
            scored = score((load.record.gates.get(when) or {}).get("kinds", {}).get(kind))
            found[f"{kind}_{when}_pass"] = scored["pass"] if scored else None
            found[f"{kind}_{when}_n"] = scored["n"] if scored else None
            found[f"{kind}_{when}_outcomes"] = canonical_json(scored["outcomes"]) if scored else None
    return found


def _finished(values: dict[str, Any], findings: Sequence[Finding], verdict: RowVerdict) -> dict[str, Any]:
    for finding in findings:
        values[str(finding.name)] = str(finding.verdict)
        values[f"{finding.name}_measured"] = canonical_json(_jsonable(finding.measured))
        values[f"{finding.name}_threshold"] = canonical_json(_jsonable(finding.threshold))
    values |= {
        "publishable": verdict.publishable,
        "invalid": verdict.invalid,
        "verdict": str(verdict.verdict),
        "reasons": list(verdict.reasons),
    }
    return {name: values.get(name) for name in NAMES}


def _jsonable(value: Any) -> Any:
    """Numbers that JSON cannot carry become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return value


def make_row(campaign: Campaign, load: Load, phase: Phase | None) -> Row:
    """The row of one repeat or window."""
    policy = (campaign.plan.get("publication") or {}).get("object") or {}
    findings = run_screens(load.record, policy["limits"])
    state, reasons = _stage_of(load)
    verdict = judge_row(
        load.record,
        findings,
        policy,
        state=state,
        stage_reasons=reasons,
        faults=load.fault_reasons,
        why_open=load.why_open,
        rehearsal=bool(campaign.plan.get("rehearsal")),
    )
    kind = "repeat" if load.window is None else "window"
    facts = [load.record.facts] if load.record.facts else []
    details = [
        load.receipt.body.get("detail"),
        *(f"{fault.path}: {fault.detail}" for fault in load.faults),
        f"was asked another {', '.join(load.otherwise)} than the plan has" if load.otherwise else None,
        load.why_open,
    ]
    values = _common(campaign, load, policy) | {
        "row_id": row_id(load.leg, load.point_id, load.repeat, load.window),
        "kind": kind,
        "population": f"ok requests of one {kind}",
        **_counts(facts),
        **summarise([phase] if phase else [], load.record.arm.get("gpus")),
        **_counters([load]),
        **_gate_columns(load),
        "stage_state": state,
        "detail": "; ".join(text for text in details if text) or None,
        "requests_path": load.requests_path,
        "requests_sha256": load.requests_sha256,
    }
    return Row(_finished(values, findings, verdict), tuple(findings), load)


def pool_findings(rows: Sequence[Row]) -> list[Finding]:
    """One finding per screen over the windows of a set: failed when one failed, unchecked when one was
    not."""
    pooled = []
    for place, screen in enumerate(Screen):
        parts = [row.findings[place] for row in rows]
        verdicts = {part.verdict for part in parts}
        result = next(
            (word for word in (ScreenResult.FAIL, ScreenResult.NOT_CHECKED) if word in verdicts),
            ScreenResult.PASS,
        )
        evidence = tuple(dict.fromkeys(path for part in parts for path in part.evidence))
        measured = {f"w{row['window']}": part.measured for row, part in zip(rows, parts, strict=True)}
        pooled.append(Finding(screen, measured, parts[0].threshold, result, evidence))
    return pooled


def pool_rows(rows: Sequence[Row], phases: Sequence[Phase | None]) -> Row:
    """The pooled row of a set of windows. It is as good as its worst window, and needs all of them."""
    loads = [row.load for row in rows if row.load is not None]
    first = rows[0]
    findings = pool_findings(rows)
    ranking = [Verdict.NOT_RUN, Verdict.INVALID, Verdict.FAIL, Verdict.PASS]
    worst = min((Verdict(row["verdict"]) for row in rows), key=ranking.index)
    reasons = tuple(dict.fromkeys(word for row in rows for word in row["reasons"]))
    verdict = RowVerdict(
        all(row["publishable"] for row in rows), any(row["invalid"] for row in rows), worst, reasons
    )
    complete = [phase for phase in phases if phase is not None]
    whole = len(complete) == len(rows)
    facts = [load.record.facts for load in loads if load.record.facts]
    values = dict(first.values) | {
        "row_id": row_id(first["leg"], first["point_id"], None, None, pooled=True),
        "kind": "pooled",
        "window": None,
        "population": f"ok requests of {len(rows)} windows pooled",
        **_counts(facts if whole else []),
        **summarise(complete if whole else [], first["gpus"]),
        **_counters(loads),
        "stage_state": loads[0].receipt.body.get("state") if loads else None,
        "detail": None
        if whole
        else f"{len(rows) - len(complete)} of {len(rows)} windows have no requests to pool",
        "requests_path": " ".join(load.requests_path for load in loads if load.requests_path) or None,
        "requests_sha256": " ".join(load.requests_sha256 for load in loads if load.requests_sha256) or None,
    }
    return Row(_finished(values, findings, verdict), tuple(findings), None)


def build_rows(campaign: Campaign) -> list[Row]:
    """Every row, in the order of the plan; each set of windows is followed by its pooled row."""
    policy = (campaign.plan.get("publication") or {}).get("object")
    if not isinstance(policy, Mapping) or not isinstance(policy.get("limits"), Mapping):
        raise Incomplete(f"{campaign.folder.name}/plan.json: has no publication policy with limits")
    rows: list[Row] = []
    pending: list[tuple[Row, Phase | None]] = []

    def close() -> Iterator[Row]:
        if pending:
            yield pool_rows([row for row, _ in pending], [phase for _, phase in pending])
            pending.clear()

    for load in iterate_loads(campaign):
        if pending and pending[0][0]["receipt_path"] != load.receipt.path:
            rows.extend(close())
        phase = read_load_phase(campaign, load)
        row = make_row(campaign, load, phase)
        rows.append(row)
        if load.receipt.stage == Stage.RUN_SUSTAINED:
            pending.append((row, phase))
    rows.extend(close())
    return rows


def as_table(rows: Sequence[Row]) -> pa.Table:
    """The rows as an Arrow table with the published schema."""
    return pa.table({name: [row[name] for row in rows] for name in NAMES}, schema=ARROW_SCHEMA)


def extract_rows(campaign_dir: Path) -> pa.Table:
    """rows of a campaign's folder, one per repeat, window and pooled set."""
    return as_table(build_rows(open_campaign(campaign_dir)))


def _cell(value: Any, kind: pa.DataType) -> str:
    """Null is empty, floats are exact (shortest form that reads back the same), flags are true and false."""
    if value is None:
        return ""
    if kind == TEXTS:
        return json.dumps(value, ensure_ascii=False)
    if kind == FLAG:
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def format_csv(rows: Sequence[Mapping[str, Any] | Row]) -> str:
    """RFC 4180 with \\n line ends, header first."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(NAMES)
    for row in rows:
        writer.writerow([_cell(row[column.name], column.kind) for column in COLUMNS])
    return out.getvalue()


def write_rows(rows: Sequence[Row], csv_path: Path, parquet_path: Path) -> None:
    """Both forms of the same rows."""
    write_bytes(csv_path, format_csv(rows).encode())
    with replacing(parquet_path) as temporary:
        pq.write_table(as_table(rows), temporary, compression="zstd")


def write(campaign_dir: Path, rows_csv: Path, rows_parquet: Path) -> None:
    """Write rows.csv and rows.parquet."""
    write_rows(build_rows(open_campaign(campaign_dir)), rows_csv, rows_parquet)
