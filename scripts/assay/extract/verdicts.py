"""verdicts.json: rows counted by flag, each run with its findings, each leg, the campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.extract.loads import Reader, window_numbers
from assay.extract.rows import Row, build_rows, row_id
from assay.records.campaign import Campaign, Fault, Receipt, open_campaign
from assay.records.files import write_json
from assay.records.pins import Pins
from assay.verdict.findings import combine
from assay.verdict.record import WHENS
from assay.verdict.runs import judge_leg, judge_run, judge_stage
from assay.verdict.server_screens import score
from assay.vocab import AROUND_LOAD, GateKind, Screen, Stage, Verdict


def due_gates(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which kinds of gate each side owes, by the campaign's gate policy."""
    gates = ((plan.get("gates") or {}).get("object") or {}).get("gates") or {}
    kinds = [kind for kind in map(str, GateKind) if kind in gates]
    return {when: [kind for kind in kinds if when in (gates[kind].get("when") or WHENS)] for when in WHENS}


def planned_rows(campaign: Campaign, leg: str) -> list[str]:
    """Row ids of every repeat and window that the plan asks of a leg."""
    ids = []
    starts = {
        receipt.body["point_id"]: window_numbers(
            receipt, campaign.plan["points"].get(receipt.body["point_id"], {})
        )
        for receipt in campaign.of_stage(Stage.RUN_SUSTAINED)
        if receipt.leg == leg
    }
    for point_id, point in campaign.plan["points"].items():
        if point["kind"] == "sustained":
            numbers = starts.get(point_id) or range(1, int(point["windows"]) + 1)
            ids += [row_id(leg, point_id, None, number) for number in numbers]
        else:
            ids += [row_id(leg, point_id, number, None) for number in range(1, int(point["repeats"]) + 1)]
    return ids


def _load_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The load of a run in figures: requests summed over its rows, throughput per row."""

    def total(name: str) -> int | None:
        known = [row[name] for row in rows if row[name] is not None]
        return sum(known) if known else None

    return {
        "population": "all requests of the run's repeats and windows",
        "n_rows": len(rows),
        **{name: total(name) for name in ("n_issued", "n_ok", "n_failed", "n_incomplete", "output_tokens")},
        "rows": {
            row["row_id"]: {
                name: row[name]
                for name in (
                    "n_issued",
                    "n_ok",
                    "n_failed",
                    "n_incomplete",
                    "elapsed_s",
                    "output_tok_s",
                    "ttft_ms_p50",
                    "e2e_ms_p99",
                    "publishable",
                    "invalid",
                )
            }
            for row in rows
        },
    }


def _run(
    campaign: Campaign,
    reader: Reader,
    session_id: str,
    rows: Sequence[Row],
    due: Mapping[str, list[str]],
    start: Receipt | None,
) -> dict[str, Any]:
    faults: list[Fault] = []
    summaries, paths, why_open = reader.gates(session_id, faults)
    session_path = f"evidence/{session_id}/session.json"
    session = reader.json(session_path, faults)
    readback = next((f for row in rows for f in row.findings if f.name == Screen.CONFIG_READBACK), None)
    verdict, findings = judge_run(
        start=start.body if start is not None else None,
        readback=readback,
        summaries=summaries,
        due=due,
        gate_evidence=paths,
        session=session,
        session_evidence=(session_path,),
        rows=[row.values for row in rows],
        row_findings={row["row_id"]: row.findings for row in rows},
    )
    if faults:
        verdict = combine([verdict, Verdict.INVALID])
    gates = {
        when: {
            kind: {
                **(score(entry) or {}),
                "threshold": entry.get("threshold"),
                "verdict": entry.get("verdict"),
            }
            for kind, entry in ((summaries.get(when) or {}).get("kinds") or {}).items()
        }
        for when in WHENS
    }
    first = rows[0].values if rows else {}
    return {
        "session_id": session_id,
        "run_id": first.get("run_id") or (session or {}).get("run_id"),
        "leg": first.get("leg") or (session or {}).get("leg"),
        "arm": first.get("arm") or (session or {}).get("arm"),
        "verdict": str(verdict),
        "load": _load_summary(rows),
        "gates": gates,
        "bracket_open": why_open,
        "faults": [
            {"path": fault.path, "kind": fault.kind, "detail": fault.detail} for fault in sorted(set(faults))
        ],
        "findings": [finding.as_record() for finding in findings],
    }


def count_flags(rows: Sequence[Row]) -> dict[str, int]:
    """Flags counted separately; pooled rows are not counted, since their windows are."""
    counted = [row for row in rows if row["kind"] != "pooled"]
    return {
        "rows": len(counted),
        "publishable": sum(1 for row in counted if row["publishable"]),
        "invalid": sum(1 for row in counted if row["invalid"]),
        "neither": sum(1 for row in counted if not row["publishable"] and not row["invalid"]),
    }


def make_verdicts(campaign: Campaign, rows: Sequence[Row]) -> dict[str, Any]:
    """The whole of verdicts.json."""
    plan = campaign.plan
    reader = Reader(campaign, Pins(campaign))
    due = due_gates(plan)
    by_session: dict[str, list[Row]] = {}
    for row in rows:
        if row["kind"] != "pooled" and row["session_id"] is not None:
            by_session.setdefault(row["session_id"], []).append(row)
    starts = {
        receipt.session_id: receipt for receipt in campaign.of_stage(Stage.START_SERVER) if receipt.session_id
    }
    sessions = sorted({*by_session, *(name for name in starts if name)})
    runs = [
        _run(campaign, reader, name, by_session.get(name, []), due, starts.get(name)) for name in sessions
    ]
    # A session that a point was measured again in leaves the first one without load; its own run is no pass,
    # and it does not count against the leg: only the runs behind the leg's rows do.
    verdict_of = {run["session_id"]: Verdict(run["verdict"]) for run in runs}
    by_id = {row["row_id"]: row.values for row in rows}
    legs = []
    for leg in plan["order"]:
        planned = planned_rows(campaign, leg)
        stages = {
            str(stage): judge_stage(
                stage, receipt.body if (receipt := campaign.of_leg(leg, stage)) else None
            ).as_record()
            for stage in AROUND_LOAD
        }
        legs.append(
            {
                "leg": leg,
                "arm": plan["legs"][leg]["arm"],
                "verdict": str(judge_leg(planned, by_id, verdict_of)),
                "planned_rows": len(planned),
                "missing_rows": [name for name in planned if name not in by_id],
                "stages": stages,
                "run_ids": sorted(
                    {by_id[name]["run_id"] for name in planned if name in by_id and by_id[name]["run_id"]}
                ),
            }
        )
    campaign_verdict = combine(Verdict(str(leg["verdict"])) for leg in legs)
    if campaign.broken:
        campaign_verdict = combine([campaign_verdict, Verdict.INVALID])
    return {
        "schema": "assay/verdicts/1",
        "campaign": campaign.name,
        "verdict": str(campaign_verdict),
        "rehearsal": bool(plan.get("rehearsal")),
        "publication": {key: (plan.get("publication") or {}).get(key) for key in ("policy", "sha256")},
        "gates": {key: (plan.get("gates") or {}).get(key) for key in ("policy", "sha256", "tasks_sha256")},
        "counts": count_flags(rows),
        "broken_receipts": [{"path": fault.path, "detail": fault.detail} for fault in campaign.broken],
        "legs": legs,
        "runs": runs,
    }


def extract_verdicts(campaign_dir: Path) -> dict[str, Any]:
    """verdicts of a campaign's folder."""
    campaign = open_campaign(campaign_dir)
    return make_verdicts(campaign, build_rows(campaign))


def write(campaign_dir: Path, verdicts_json: Path) -> None:
    """Write verdicts.json."""
    write_json(verdicts_json, extract_verdicts(campaign_dir))
