"""The load records behind the rows: one per repeat of a finite point and per window of a sustained set.

Every file is checked against the digest that was recorded for it before it is used; one that is missing or
changed is a fault of the row, and its content is not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import Incomplete
from assay.records.asked import asked_otherwise
from assay.records.campaign import Campaign, Fault, Receipt, resolve_inside
from assay.records.files import read_json
from assay.records.gates import AT_LOAD, MIXED, merge_summaries
from assay.records.pins import MANIFEST, Pins
from assay.verdict.facts import read_facts
from assay.verdict.record import WHENS, LoadRecord
from assay.vocab import Reason, Stage


@dataclass(frozen=True)
class Load:
    """One repeat or window: where it stands in the plan, its record, and what is wrong with its files."""

    receipt: Receipt
    leg: str
    arm_name: str
    point_id: str
    repeat: int | None
    window: int | None
    record: LoadRecord
    requests_path: str | None
    requests_sha256: str | None
    faults: tuple[Fault, ...] = ()
    why_open: str | None = None
    otherwise: tuple[str, ...] = ()
    """Keys at which it was asked something else than the plan has."""

    @property
    def fault_reasons(self) -> tuple[str, ...]:
        words = {
            Reason.EVIDENCE_MISSING if fault.kind in ("missing", "unpinned") else Reason.EVIDENCE_CHANGED
            for fault in self.faults
        }
        words |= {Reason.NOT_AS_PLANNED} if self.otherwise else set()
        return tuple(sorted(words))


@dataclass
class Reader:
    """Opens evidence of one campaign; sessions' files are read once."""

    campaign: Campaign
    pins: Pins
    _gates: dict[str, Any] = field(default_factory=dict)
    _brackets: dict[str, Any] | None = None

    def json(self, path: str | None, faults: list[Fault]) -> dict[str, Any] | None:
        """The object in a file, None when it is not named, not there or not what was recorded (then a
        fault)."""
        if path is None:
            return None
        fault = self.pins.check(path)
        if fault is not None and not (fault.kind == "unpinned" and self.is_open(path)):
            faults.append(fault)
            return None
        try:
            body = read_json(resolve_inside(self.campaign.results, path))
        except Incomplete as error:
            faults.append(Fault(path, "unreadable", str(error)))
            return None
        if not isinstance(body, dict):
            faults.append(Fault(path, "unreadable", "not a JSON object"))
            return None
        return body

    def is_open(self, path: str) -> bool:
        """Does the file belong to a session that is not closed yet? Nobody has pinned its own files then."""
        parts = path.split("/")
        manifest = "/".join([*parts[:2], MANIFEST])
        return parts[0] == "evidence" and manifest not in self.pins.sources and not self.has(manifest)

    def has(self, path: str) -> bool:
        return resolve_inside(self.campaign.results, path).exists()

    def brackets(self) -> dict[str, Any]:
        """session_id -> {before, after, why_open}, from every gate_after receipt."""
        if self._brackets is None:
            self._brackets = {}
            for receipt in self.campaign.of_stage(Stage.GATE_AFTER):
                self._brackets.update((receipt.body.get("measured") or {}).get("brackets") or {})
        return self._brackets

    def merged(self, summary: dict[str, Any] | None, path: str, faults: list[Fault]) -> dict[str, Any] | None:
        """``summary`` and the one at ``path`` as one; None when either is missing."""
        other = self.json(path, faults)
        return None if summary is None or other is None else merge_summaries(summary, other)

    def gates(
        self, session_id: str | None, faults: list[Fault]
    ) -> tuple[dict[str, Any], dict[str, str], str | None]:
        """(summary per side, path per side, why the bracket is open or None) of a session."""
        if session_id is None:
            return {}, {}, "no session"
        bracket = self.brackets().get(session_id)
        if bracket is None:
            return {}, {}, "no gates after the load name this session"
        summaries: dict[str, Any] = {}
        paths: dict[str, str] = {}
        why_open = bracket.get("why_open")
        for when in WHENS:
            entry = bracket.get(when)
            if entry is None:
                why_open = why_open or f"the session has no gates {when} the load"
                continue
            # The bracket names the stage record or the summary; both stand in one folder of the session.
            folder = entry["path"].rsplit("/", 1)[0]
            if not folder.startswith(f"evidence/{session_id}/"):
                why_open = f"the gates {when} the load are another session's"
                continue
            fault = self.pins.check(entry["path"])
            if fault is not None:
                faults.append(fault)
            paths[when] = f"{folder}/summary.json"
            summaries[when] = self.json(paths[when], faults)
            if (self.campaign.plan.get("gates") or {}).get("at_load"):
                # Asked for: without its record the side is unknown, not as good as the half that is there.
                summaries[when] = self.merged(summaries[when], f"{folder}/{AT_LOAD}/summary.json", faults)
            if summaries[when] is None:
                why_open = why_open or f"the gates {when} the load cannot be read"
        return summaries, paths, why_open


def _named(receipt: Receipt, name: str, under: str) -> tuple[str | None, str | None]:
    entry = receipt.evidence(name, under)
    return (entry["path"], entry.get("sha256")) if entry else (None, None)


def read_gpu_samples(
    path: Path, start_ns: int, end_ns: int, uuids: frozenset[str] | None
) -> list[Mapping[str, Any]] | None:
    """NVML samples inside [start_ns, end_ns] of the GPUs in ``uuids`` (None: all); None when there are
    none."""
    try:
        table = pq.read_table(path, columns=["t_ns", "gpus"])
    except (OSError, pa.ArrowException, KeyError) as error:
        raise Incomplete(f"{path}: cannot be read as telemetry: {type(error).__name__}") from error
    found: list[Mapping[str, Any]] = []
    for row in table.to_pylist():
        if row["gpus"] is not None and start_ns <= row["t_ns"] <= end_ns:
            for sample in json.loads(row["gpus"]):
                if uuids is None or sample.get("uuid") in uuids:
                    found.append({"t_ns": row["t_ns"], **sample})
    return found or None


def open_load(reader: Reader, receipt: Receipt, window: int | None) -> Load:
    """Read one repeat (``window`` None) or one window of a load receipt."""
    campaign, body, faults = reader.campaign, receipt.body, list[Fault]()
    point_id, leg = str(body["point_id"]), str(body["leg"])
    arm_name = str(body.get("arm") or campaign.plan["legs"][leg]["arm"])
    under = f"w{window}" if window is not None else ""
    session_id = body.get("session_id")
    evidence: dict[str, str] = {}
    requests_path, requests_sha256 = _named(receipt, "requests.parquet", under)
    facts = None
    if requests_path is not None:
        evidence["requests"] = requests_path
        fault = reader.pins.check(requests_path)
        if fault is not None:
            faults.append(fault)
        else:
            try:
                facts = read_facts([resolve_inside(campaign.results, requests_path)])
            except Incomplete as error:
                faults.append(Fault(requests_path, "unreadable", str(error)))
    opened: dict[str, Any] = {}
    for role, name in (("client", "client.json"), ("counters", "counters.json")):
        path, _ = _named(receipt, name, under)
        opened[role] = reader.json(path, faults)
        if path is not None:
            evidence[role] = path
    session = readback = None
    gpu_samples = None
    if session_id is not None:
        base = f"evidence/{session_id}"
        for role, name in (
            ("readback", "config_readback.json"),
            ("session", "session.json"),
            ("placement", "placement.json"),
        ):
            path = f"{base}/{name}"
            if path in reader.pins.sources or reader.has(path):
                opened[role] = reader.json(path, faults)
                evidence[role] = path
        session, readback = opened.get("session"), opened.get("readback")
        manifest = f"{base}/{MANIFEST}"
        if manifest in reader.pins.sources and (fault := reader.pins.check(manifest)) is not None:
            faults.append(fault)
        telemetry = f"{base}/telemetry.parquet"
        gpus = (campaign.plan["arms"][arm_name].get("gpus") or 0) > 0
        if gpus and facts and facts.t_first_send_ns is not None and telemetry in reader.pins.sources:
            evidence["telemetry"] = telemetry
            fault = reader.pins.check(telemetry)
            if fault is not None:
                faults.append(fault)
            else:
                held = {str(name) for name in (session or {}).get("devices") or ()}
                uuids = frozenset(name for name in held if name.startswith("GPU-")) or None
                end_ns = facts.t_last_end_ns or facts.t_first_send_ns
                gpu_samples = read_gpu_samples(
                    campaign.results / telemetry, facts.t_first_send_ns, end_ns, uuids
                )
    gates, gate_paths, why_open = reader.gates(session_id, faults)
    for when, path in gate_paths.items():
        evidence[f"gates_{when}"] = path
    if campaign.plan["points"][point_id].get("mixed_gates") and requests_path is not None:
        mixed = f"{requests_path.rsplit('/', 1)[0]}/{MIXED}/summary.json"
        # What was asked beside the load counts with what was asked after it.
        gates["after"] = reader.merged(gates.get("after"), mixed, faults)
        evidence["gates_mixed"] = mixed
    record = LoadRecord(
        facts=facts,
        point=campaign.plan["points"][point_id],
        arm=campaign.plan["arms"][arm_name],
        session_id=session_id,
        spec_point=(body.get("spec") or {}).get("point") or {},
        client=opened.get("client"),
        counters=opened.get("counters"),
        readback=readback,
        gates=gates,
        gate_policy=(campaign.plan.get("gates") or {}).get("object") or {},
        gpu_samples=gpu_samples,
        placement=opened.get("placement"),
        evidence=evidence,
    )
    return Load(
        receipt,
        leg,
        arm_name,
        point_id,
        body.get("repeat"),
        window,
        record,
        requests_path,
        requests_sha256,
        tuple(sorted(set(faults))),
        why_open,
        asked_otherwise(body, campaign.plan),
    )


def load_order(campaign: Campaign) -> list[Receipt]:
    """The load receipts of what the plan has, in its order: leg, point, repeat."""
    legs = {leg: rank for rank, leg in enumerate(campaign.plan["order"])}
    points = {point: rank for rank, point in enumerate(campaign.plan["points"])}
    receipts = [
        receipt
        for receipt in campaign.of_stage(Stage.RUN_FINITE, Stage.RUN_SUSTAINED)
        if receipt.body.get("point_id") in points
        and receipt.leg in campaign.plan["legs"]
        and not _is_past_the_repeats(receipt, campaign.plan)
    ]
    return sorted(
        receipts,
        key=lambda r: (
            legs.get(str(r.leg), len(legs)),
            points[r.body["point_id"]],
            r.body.get("repeat") or 0,
        ),
    )


def _is_past_the_repeats(receipt: Receipt, plan: Mapping[str, Any]) -> bool:
    """A repeat of an earlier plan that had more of them: attempts.csv has it, a row would be counted."""
    repeats = plan["points"][receipt.body["point_id"]].get("repeats")
    return repeats is not None and (receipt.body.get("repeat") or 0) > repeats


def window_numbers(receipt: Receipt, point: Mapping[str, Any]) -> list[int]:
    """The windows of a set: those the plan asks for, and any further one in the evidence."""
    names = "\n".join(str(entry.get("path")) for entry in receipt.body.get("evidence") or ())
    found = {int(number) for number in re.findall(r"/w(\d+)/", names)}
    first = 0 if 0 in found else 1
    return sorted(found | set(range(first, first + int(point.get("windows") or 0))))


def iterate_loads(campaign: Campaign) -> Iterator[Load]:
    """Every planned repeat and window that has a receipt, measured or not."""
    reader = Reader(campaign, Pins(campaign))
    for receipt in load_order(campaign):
        if receipt.stage == Stage.RUN_FINITE:
            yield open_load(reader, receipt, None)
        else:
            for window in window_numbers(receipt, campaign.plan["points"][receipt.body["point_id"]]):
                yield open_load(reader, receipt, window)
