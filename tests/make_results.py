"""A small results folder with hand-known times, laid out as docs/evidence.md says. No server is involved.

Every request of a phase takes ``ttft_ms`` to its first token and one token each ``gap_ms`` after it; a
worker sends its next request when the last ended. So a phase of R requests at concurrency C (C divides R)
lasts exactly R / C * (ttft_ms + (n_output - 1) * gap_ms), and its throughput follows by hand.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from assay.digest import canonical_json, sha256_of_file, sha256_of_value
from make_gates import GATE_SPEC, policy, write_gates
from make_plan import ARM, POINTS
from make_requests import T0_NS, Shape, client_record, request_rows, write_table

ROOT = Path(__file__).resolve().parent.parent


class Scene:
    """A campaign to be written. Change the attributes, then ``build()``."""

    def __init__(self, root: Path, name: str = "campaign_test"):
        self.results = root / "results"
        self.name = name
        self.arms: dict[str, dict[str, Any]] = {"base": copy.deepcopy(ARM), "fast": copy.deepcopy(ARM)}
        self.arms["fast"]["flags"]["parallel"] = 4
        self.order = ["base", "fast"]
        self.points = copy.deepcopy(POINTS)
        self.comparisons = [
            {
                "name": "fast_over_base",
                "numerator": "fast",
                "denominator": "base",
                "declared_factor": ["flags.parallel"],
            }
        ]
        self.shapes: dict[str, Shape] = {}
        """row id, `<leg>/<point>` or `<leg>` -> the load; default Shape()."""
        self.clients: dict[str, dict[str, Any]] = {}
        """row id -> changes to client.json."""
        self.counters: dict[str, Any] = {}
        self.gates: dict[tuple[str, str], dict[str, int]] = {}
        """(leg, when) -> outcome -> how many of the 24 JSON tasks end so; the rest pass."""
        self.readbacks: dict[str, dict[str, Any]] = {}
        """leg -> what the server says of its flags; default: what was asked."""
        self.states: dict[str, tuple[str, list[str]]] = {}
        """row id (finite) or `<leg>/<point>` -> (stage state, reasons)."""
        self.why_open: dict[str, str] = {}
        self.why_stopped: dict[str, str] = {}
        self.rehearsal = False
        self.policy = yaml.safe_load((ROOT / "config/publication/default.yaml").read_text())
        # The gates here are the JSON tasks alone.
        self.policy["required"] = [
            one for one in self.policy["required"] if one["screen"] not in ("needle_gate", "tool_gate")
        ]
        self.requests_override: dict[str, list[dict[str, Any]]] = {}

    # small helpers -------------------------------------------------------------------------------------
    @property
    def folder(self) -> Path:
        return self.results / self.name

    def legs(self) -> dict[str, dict[str, Any]]:
        seen: dict[str, int] = {}
        legs = {}
        for rank, arm in enumerate(self.order):
            seen[arm] = seen.get(arm, 0) + 1
            legs[f"{arm}.{seen[arm]}" if self.order.count(arm) > 1 else arm] = {"arm": arm, "rank": rank}
        return legs

    def session_id(self, leg: str) -> str:
        rank = self.legs()[leg]["rank"]
        return f"20261129T1{rank}0000Z-{hashlib.sha256(leg.encode()).hexdigest()[:6]}"

    def run_id(self, leg: str) -> str:
        rank = self.legs()[leg]["rank"]
        return f"tiny__{self.legs()[leg]['arm']}__4k__llama_cpp__test__1129-1{rank}0000"

    def utc(self, leg: str, minute: int) -> str:
        return f"2026-11-29T1{self.legs()[leg]['rank']}:{minute:02d}:00.000Z"

    def shape(self, row: str) -> Shape:
        leg, point, _ = row.split("/")
        for key in (row, f"{leg}/{point}", leg):
            if key in self.shapes:
                return self.shapes[key]
        return Shape()

    def put(self, path: Path, value: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
        return path

    def describe(self, path: Path) -> dict[str, Any]:
        return {
            "path": path.relative_to(self.results).as_posix(),
            "sha256": sha256_of_file(path),
            "bytes": path.stat().st_size,
        }

    def stage(
        self,
        stage: str,
        leg: str,
        folder: str | None,
        files: list[Path],
        minute: int,
        receipt: str,
        state: str = "completed",
        reasons: list[str] | None = None,
        measured: dict[str, Any] | None = None,
        point: str | None = None,
        repeat: int | None = None,
    ) -> None:
        """Write stage.json (when ``folder`` is given) and the receipt."""
        spec: dict[str, Any] = {
            "stage": stage,
            "campaign": self.name,
            "leg": leg,
            "arm": self.legs()[leg]["arm"],
        }
        if point:
            spec["point"] = dict(self.points[point])
            words = ("title", "factors", "unspecified")
            spec["server"] = {k: v for k, v in self.arms[spec["arm"]].items() if k not in words}
        record: dict[str, Any] = {
            "schema": "assay/stage/1",
            "stage": stage,
            "campaign": self.name,
            "leg": leg,
            "arm": self.legs()[leg]["arm"],
            "point_id": point,
            "repeat": repeat,
            "window": None,
            "attempt_id": f"{self.session_id(leg)}/{folder}" if folder else None,
            "session_id": self.session_id(leg),
            "run_id": self.run_id(leg),
            "state": state,
            "reasons": reasons or [],
            "detail": None,
            "spec": spec,
            "spec_sha256": hashlib.sha256(canonical_json(spec).encode()).hexdigest(),
            "evidence": [self.describe(file) for file in files],
            "measured": measured or {},
            "package_sha256": "a" * 64,
            "commit": "c" * 40,
            "t_start_utc": self.utc(leg, minute),
            "t_end_utc": self.utc(leg, minute + 1),
        }
        pinned = None
        if folder:
            # The brackets stand in the receipt alone: they are drawn after the gates have ended.
            own = {key: value for key, value in record["measured"].items() if key != "brackets"}
            place = self.results / "evidence" / self.session_id(leg) / folder / "stage.json"
            self.put(place, record | {"measured": own})
            described = self.describe(place)
            pinned = {"path": described["path"], "sha256": described["sha256"]}
        self.put(self.folder / "receipts" / leg / f"{receipt}.json", record | {"stage_record": pinned})

    # the pieces ----------------------------------------------------------------------------------------
    def plan(self) -> dict[str, Any]:
        return {
            "schema": "assay/plan/1",
            "name": self.name,
            "title": "A small campaign",
            "question": None,
            "suite": "test",
            "context_tokens": 4096,
            "order": list(self.legs()),
            "legs": self.legs(),
            "arms": self.arms,
            "images": {arm["image"]: {"digest": arm["image_digest"]} for arm in self.arms.values()},
            "points": self.points,
            "comparisons": self.comparisons,
            "gates": {
                "policy": "test",
                "object": GATE_SPEC,
                "sha256": policy().sha256,
                "tasks_sha256": policy().tasks_sha256,
            },
            "publication": {
                "policy": "default",
                "object": self.policy,
                "sha256": sha256_of_value(self.policy),
            },
            "rehearsal": self.rehearsal,
        }

    def phase(self, row: str, folder: Path, t0_ns: int) -> list[Path]:
        leg, point, _ = row.split("/")
        shape = self.shape(row)
        if self.points[point]["concurrency"] != shape.concurrency:
            shape = replace(shape, concurrency=self.points[point]["concurrency"])
        rows = self.requests_override.get(row) or request_rows(shape, self.session_id(leg), point, t0_ns)
        write_table(folder / "requests.parquet", rows)
        client = client_record(shape, phase={"t_start_ns": t0_ns}) | self.clients.get(row, {})
        counters = self.counters.get(
            row, {"delta": {"prompt_tokens": shape.requests * shape.n_prompt, "cached_prompt_tokens": 0}}
        )
        return [
            folder / "requests.parquet",
            self.put(folder / "client.json", client),
            self.put(folder / "counters.json", counters),
        ]

    def gate(self, leg: str, when: str) -> list[Path]:
        folder = self.results / "evidence" / self.session_id(leg) / f"gates_{when}"
        return write_gates(folder, when, self.gates.get((leg, when), {}))

    def session(self, leg: str) -> None:
        base = self.results / "evidence" / self.session_id(leg)
        self.put(
            base / "session.json",
            {
                "schema": "assay/session/1",
                "session_id": self.session_id(leg),
                "run_id": self.run_id(leg),
                "campaign": self.name,
                "leg": leg,
                "arm": self.legs()[leg]["arm"],
                "devices": ["host"],
                "state": "stopped",
                "why_stopped": self.why_stopped.get(leg, "released"),
                "returncode": 0,
            },
        )
        (base / "server.log").write_text("listening\n")
        flags = self.arms[self.legs()[leg]["arm"]]["flags"]
        read = self.readbacks.get(leg, dict(flags))
        mismatches = [
            {"key": k, "asked": v, "read": read[k]}
            for k, v in flags.items()
            if read.get(k) is not None and read[k] != v
        ]
        self.put(
            base / "config_readback.json",
            {
                "schema": "assay/readback/1",
                "asked": flags,
                "read": read,
                "sources": {},
                "mismatches": mismatches,
                "unread": [k for k in flags if read.get(k) is None],
                "capacity": {"kv_tokens": 8192},
            },
        )
        self.stage(
            "start_server",
            leg,
            "started",
            [base / "config_readback.json"],
            0,
            "start_server",
            reasons=["config_mismatch"] if mismatches else [],
        )
        self.stage("gate_before", leg, "gates_before", self.gate(leg, "before"), 1, "gate_before")
        write_table(
            base / "warmup" / "requests.parquet", request_rows(Shape(), self.session_id(leg), "warm_up")
        )
        self.stage("warm_up", leg, "warmup", [base / "warmup" / "requests.parquet"], 2, "warm_up")
        minute = 3
        for point, config in self.points.items():
            sustained = config["kind"] == "sustained"
            if sustained:
                files = []
                for window in range(1, config["windows"] + 1):
                    place = base / "sustained" / point / f"w{window}"
                    files += self.phase(f"{leg}/{point}/w{window}", place, T0_NS + window * 60 * 10**9)
                state, reasons = self.states.get(f"{leg}/{point}", ("completed", []))
                self.stage(
                    "run_sustained",
                    leg,
                    f"sustained/{point}",
                    files,
                    minute,
                    f"sustained/{point}",
                    state,
                    reasons,
                    {"prompts_sha256": "b" * 64},
                    point,
                )
                minute += 1
                continue
            for repeat in range(1, config["repeats"] + 1):
                row = f"{leg}/{point}/r{repeat}"
                files = self.phase(row, base / "finite" / point / f"r{repeat}", T0_NS + repeat * 10**10)
                state, reasons = self.states.get(row, ("completed", []))
                self.stage(
                    "run_finite",
                    leg,
                    f"finite/{point}/r{repeat}",
                    files,
                    minute,
                    f"finite/{point}/r{repeat}",
                    state,
                    reasons,
                    {"prompts_sha256": "b" * 64},
                    point,
                    repeat,
                )
                minute += 1
        after = self.gate(leg, "after")
        halves = {
            when: {
                k: v
                for k, v in self.describe(base / f"gates_{when}" / "summary.json").items()
                if k != "bytes"
            }
            for when in ("before", "after")
        }
        why = self.why_open.get(leg)
        bracket = {"before": halves["before"], "after": None if why else halves["after"], "why_open": why}
        self.stage(
            "gate_after",
            leg,
            "gates_after",
            after,
            minute,
            "gate_after",
            measured={"brackets": {self.session_id(leg): bracket}},
        )
        self.close(leg)
        self.stage("stop_server", leg, None, [base / "MANIFEST.sha256"], minute + 1, "stop_server")

    def close(self, leg: str) -> None:
        base = self.results / "evidence" / self.session_id(leg)
        files = sorted(file for file in base.rglob("*") if file.is_file() and file.name != "MANIFEST.sha256")
        lines = [f"{sha256_of_file(file)}  {file.relative_to(base).as_posix()}\n" for file in files]
        (base / "MANIFEST.sha256").write_text("".join(lines))

    def build(self) -> Path:
        """Write everything; returns results/<campaign>."""
        self.put(self.folder / "plan.json", self.plan())
        topology = {
            "cpu": {"model": "Test CPU", "threads": 2},
            "memory_mib": 4096,
            "gpus": [],
            "gpu_reason": "no driver",
        }
        self.put(
            self.folder / "receipts" / "probe_topology.json",
            {
                "schema": "assay/topology/1",
                "stage": "probe_topology",
                "campaign": self.name,
                "topology": topology,
            },
        )
        self.put(
            self.folder / "receipts" / "images" / "img.json",
            {"schema": "assay/image/1", "stage": "build_image", "image": {"name": "img", "digest": "d" * 64}},
        )
        for leg in self.legs():
            self.session(leg)
        return self.folder
