"""The walk of an audit: from a figure to its entry, its rows, their receipts, the raw records and the
sessions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import matplotlib

from assay.audit.files import SUMS, check_files
from assay.audit.gates import judge_again
from assay.audit.outcome import AuditReport, Check
from assay.audit.recompute import (
    compare_json,
    compare_points,
    compare_rows,
    compare_text,
    doubtful_rows,
    read_rows_csv,
    same,
)
from assay.chart.render import draw_bytes, identity, read_identity
from assay.digest import sha256_of_bytes, sha256_of_file, sha256_of_value
from assay.errors import AssayError, BadInput, Incomplete
from assay.extract import attempts
from assay.extract.cards import make_cards
from assay.extract.chart_data import make_chart_data
from assay.extract.comparisons import format_csv as format_comparison
from assay.extract.comparisons import make_comparisons
from assay.extract.rows import Row, build_rows
from assay.extract.summary import make_findings, make_summary
from assay.extract.verdicts import make_verdicts
from assay.records.campaign import Campaign, Fault, open_campaign
from assay.records.files import read_json
from assay.records.pins import Pins
from assay.vocab import AuditResult

CHART_FORMS = (".svg", ".png")


class Audit:
    """One campaign, opened for an audit; what several targets share is done once."""

    def __init__(self, campaign_dir: Path, target: str, *, require_sums: bool = True):
        self.folder = campaign_dir.resolve()
        self.report = AuditReport(target, self.folder.name)
        self.campaign: Campaign | None = None
        self._shared: dict[Any, Any] = {}
        """What was computed once for all targets of this campaign."""
        pins = None
        try:
            self.campaign = open_campaign(self.folder)
            pins = Pins(self.campaign)
        except (AssayError, KeyError, TypeError, ValueError, AttributeError) as error:
            self.campaign = None
            gone = not (self.folder / "plan.json").is_file()
            kind, path = ("missing" if gone else "unreadable"), f"{self.folder.name}/plan.json"
            self.report.blame([Fault(path, "missing" if kind == "missing" else "unreadable", str(error))])
        check_files(self.report, self.folder, self.campaign, pins, require_sums=require_sums)
        self._opening = copy.deepcopy(self.report)

    def another(self, target: str) -> Audit:
        """The audit of a further target of the same campaign: the files are hashed and the rows built once."""
        twin = copy.copy(self)
        twin.report = copy.deepcopy(self._opening)
        twin.report.target = target
        return twin

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    @property
    def damaged(self) -> bool:
        """A file that every row rests on is at fault: the plan or a receipt."""
        own = (f"{self.folder.name}/plan.json", f"{self.folder.name}/receipts/")
        return any(fault.path.startswith(own) for fault in self.report.faults)

    def rows(self) -> list[Row]:
        assert self.campaign is not None
        campaign = self.campaign
        return cast("list[Row]", self._once("rows", lambda: build_rows(campaign)))

    def chart_data(self) -> Mapping[str, Any]:
        """chart_data.json, recomputed."""
        assert self.campaign is not None
        campaign, rows = self.campaign, self.rows()
        return cast(
            "Mapping[str, Any]",
            self._once(
                "chart_data", lambda: make_chart_data(campaign, rows, make_comparisons(campaign, rows))
            ),
        )

    def doubtful(self) -> set[str]:
        """Rows that cannot be recomputed."""
        return {row["row_id"] for row in self.rows()} if self.damaged else doubtful_rows(self.rows())

    def usable(self) -> bool:
        """Can anything be recomputed? If not, that is said."""
        if self.campaign is None:
            self.report.say("evidence", AuditResult.INCOMPLETE, "without its plan nothing can be recomputed")
            return False
        try:
            self.rows()
        except (AssayError, KeyError, TypeError, ValueError, AttributeError) as error:
            detail = f"the records cannot be read as evidence: {type(error).__name__}: {error}"
            self.report.say("evidence", AuditResult.INCOMPLETE, detail)
            return False
        return True

    # what can be audited -------------------------------------------------------------------------------

    def chart(self, path: Path) -> None:
        """chart -> chart_data entry -> rows -> receipts -> raw records -> sessions."""
        relative = f"{self.folder.name}/charts/{path.name}"
        try:
            mark = read_identity(path)
        except Incomplete as error:
            kind = AuditResult.MISMATCH if path.exists() else AuditResult.INCOMPLETE
            self.report.say("chart", kind, str(error), relative)
            return
        data_path = f"{self.folder.name}/extracts/chart_data.json"
        entry = self._entry(mark, data_path)
        if entry is None:
            return
        if sha256_of_value(entry) != mark["entry_sha256"]:
            detail = "the chart was made from another entry than chart_data.json has"
            self.report.say("chart", AuditResult.MISMATCH, detail, relative)
        self._drawn_again(path, entry, mark, relative)
        if not self.usable() or self.campaign is None:
            return
        fresh = self.chart_data()
        again = fresh["charts"].get(entry["id"])
        if again is None:
            self.report.say(
                "points", AuditResult.MISMATCH, f"the evidence has no chart {entry['id']!r}", data_path
            )
            return
        compare_points(self.report, entry, again, self.doubtful(), data_path)
        if not self.doubtful() & set(again["row_ids"]) and sha256_of_value(again) != sha256_of_value(entry):
            compare_json(self.report, self.folder / "extracts" / "chart_data.json", data_path, fresh, False)
        self._extract("rows.csv")
        self._behind([row for row in self.rows() if row["row_id"] in set(entry["row_ids"])])

    def _entry(self, mark: Mapping[str, str], data_path: str) -> dict[str, Any] | None:
        try:
            charts = read_json(self.folder / "extracts" / "chart_data.json")["charts"]
            return dict(charts[mark["chart_id"]])
        except Incomplete as error:
            gone = not (self.folder / "extracts" / "chart_data.json").exists()
            result = AuditResult.INCOMPLETE if gone else AuditResult.MISMATCH
            self.report.say("chart", result, str(error), data_path)
        except (KeyError, TypeError):
            self.report.say("chart", AuditResult.MISMATCH, f"has no chart {mark['chart_id']!r}", data_path)
        return None

    def _drawn_again(self, path: Path, entry: dict[str, Any], mark: Mapping[str, str], relative: str) -> None:
        """Draw the entry again and compare the bytes; with another matplotlib the digest in SHA256SUMS
        decides."""
        try:
            fresh = draw_bytes(entry, path.suffix.removeprefix("."))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            detail = f"the entry cannot be drawn: {type(error).__name__}"
            self.report.say(
                "chart", AuditResult.MISMATCH, detail, f"{self.folder.name}/extracts/chart_data.json"
            )
            return
        if sha256_of_bytes(fresh) == sha256_of_file(path):
            self.report.say(
                "chart", AuditResult.VERIFIED, f"{path.name}: drawn again from its entry, the same bytes"
            )
        elif mark.get("matplotlib") == matplotlib.__version__:
            detail = f"{path.name} is not what its entry draws"
            if sha256_of_value(entry) == mark["entry_sha256"]:
                self.report.say("chart", AuditResult.MISMATCH, detail, relative)
        elif (self.folder / SUMS).exists():
            here = path.resolve().parent == self.folder / "charts"
            result = AuditResult.VERIFIED if here else AuditResult.INCOMPLETE
            other = f"drawn with matplotlib {mark.get('matplotlib')}, here is {matplotlib.__version__}"
            self.report.say("chart", result, f"{other}: compared by its digest in SHA256SUMS alone")
        else:
            self.report.say(
                "chart",
                AuditResult.INCOMPLETE,
                "neither its digest nor its drawing can be compared",
                relative,
            )

    def extract(self, name: str, row_id: str | None = None) -> None:
        """One extract, or one row of rows.csv or rows.parquet, recomputed."""
        if not self.usable():
            return
        self._extract(name, row_id)
        behind = [row for row in self.rows() if row_id is None or row["row_id"] == row_id]
        if row_id is not None and behind:
            self._row_point(behind[0])
        self._behind(behind)

    def _extract(self, name: str, row_id: str | None = None) -> None:
        assert self.campaign is not None
        path, relative = self.folder / "extracts" / name, f"{self.folder.name}/extracts/{name}"
        doubtful = bool(self.report.faults)
        if name in ("rows.csv", "rows.parquet"):
            if self.damaged:
                self.report.say(
                    "rows",
                    AuditResult.INCOMPLETE,
                    f"{name}: not recomputed: the plan or a receipt is at fault",
                )
            else:
                compare_rows(self.report, path, relative, self.rows(), row_id)
        elif name == "attempts.csv":
            fresh = attempts.format_csv(attempts.collect_attempts(self.campaign))
            compare_text(self.report, path, relative, fresh, doubtful)
        elif name == "comparison.csv":
            fresh = format_comparison(make_comparisons(self.campaign, self.rows()))
            compare_text(self.report, path, relative, fresh, doubtful)
        else:
            compare_json(self.report, path, relative, self._make(name), doubtful)

    def _make(self, name: str) -> Mapping[str, Any]:
        campaign, rows = self.campaign, self.rows()
        assert campaign is not None
        if name == "comparisons.json":
            return make_comparisons(campaign, rows)
        if name == "chart_data.json":
            return self.chart_data()
        if name == "cards.json":
            return make_cards(campaign, rows)
        verdicts = make_verdicts(campaign, rows)
        makers = {"summary.json": make_summary, "findings.json": make_findings}
        if name == "verdicts.json":
            return verdicts
        if name not in makers:
            raise BadInput(f"no extract {name!r}", where=self.folder / "extracts")
        return makers[name](campaign, rows, verdicts)

    def receipt(self, relative: str) -> None:
        """One receipt: its files, and the rows and gates that rest on it."""
        if not self.usable() or self.campaign is None:
            return
        found = [receipt for receipt in self.campaign.receipts if receipt.path == relative]
        if not found:
            self.report.say("receipt", AuditResult.INCOMPLETE, "not there, or cannot be read", relative)
            return
        behind = [row for row in self.rows() if row["receipt_path"] == relative]
        for row in behind:
            self._row_point(row)
        if behind:
            self._extract("rows.csv")
        else:
            behind = [row for row in self.rows() if row["session_id"] == found[0].session_id]
        self._behind(behind)
        self.report.say(
            "receipt", AuditResult.VERIFIED, f"{found[0].stage}: {found[0].body.get('state', 'written')}"
        )

    def everything(self) -> None:
        """Every extract, every chart, every gate of the campaign."""
        if not self.usable():
            return
        for path in sorted((self.folder / "extracts").glob("*")):
            if path.suffix in (".csv", ".json", ".parquet"):
                self._extract(path.name)
        for path in sorted((self.folder / "charts").glob("*")):
            if path.suffix in CHART_FORMS:
                self._chart_alone(path)
        self._behind(self.rows())

    def _chart_alone(self, path: Path) -> None:
        relative = f"{self.folder.name}/charts/{path.name}"
        try:
            mark = read_identity(path)
        except Incomplete as error:
            self.report.say("chart", AuditResult.MISMATCH, str(error), relative)
            return
        entry = self._entry(mark, f"{self.folder.name}/extracts/chart_data.json")
        if entry is not None:
            if identity(entry)["entry_sha256"] != mark["entry_sha256"]:
                self.report.say(
                    "chart", AuditResult.MISMATCH, f"{path.name}: made from another entry", relative
                )
            self._drawn_again(path, entry, mark, relative)

    # what every target ends with -----------------------------------------------------------------------

    def _row_point(self, row: Row) -> None:
        """A row's rate as a point of the report: stored and recomputed, with population and reasons."""
        doubted = row["row_id"] in self.doubtful()
        stored: Any = None
        try:
            held = read_rows_csv(self.folder / "extracts" / "rows.csv")
            stored = next((one["output_tok_s"] for one in held if one["row_id"] == row["row_id"]), None)
        except (Incomplete, KeyError):
            pass  # that rows.csv is not there or broken is told by its own check
        fresh = None if doubted else row["output_tok_s"]
        self.report.points.append(
            {
                "arm": row["arm"],
                "point_id": row["point_id"],
                "x": row["concurrency"],
                "metric": "output_tok_s",
                "shown": stored,
                "recomputed": fresh,
                "agrees": None if doubted else same(stored, fresh),
                "statistic": row["kind"],
                "n": row["n_ok"],
                "population": row["population"],
                "rows": [row["row_id"]],
                "excluded": {row["row_id"]: row["reasons"]} if row["invalid"] else {},
                "flagged": {row["row_id"]: row["reasons"]} if row["reasons"] and not row["invalid"] else {},
            }
        )

    def _behind(self, rows: list[Row]) -> None:
        """The sessions behind rows: what served, from which image and model, asked what; and the gates
        again."""
        assert self.campaign is not None
        sessions = sorted({row["session_id"] for row in rows if row["session_id"]})
        plan = self.campaign.plan
        for session_id in sessions:
            mine = [row for row in rows if row["session_id"] == session_id]
            arm = plan["arms"][mine[0]["arm"]]
            self.report.origin.append(
                {
                    "session_id": session_id,
                    "run_id": mine[0]["run_id"],
                    "engine": arm.get("engine"),
                    "image": f"{arm.get('image')}@{str(arm.get('image_digest'))[:12]}",
                    "model": f"{arm.get('model')}@{str(arm.get('model_sha256'))[:12]}",
                    "commit": mine[0]["commit"],
                    "prompts": sorted({row["prompts_sha256"] for row in mine if row["prompts_sha256"]}),
                    "readback": mine[0]["readback_path"],
                }
            )
        self._check_prompts(rows)
        self._check_asked(rows)
        self.report.checks += self._once(("gates", *sessions), lambda: self._judge(sessions))

    def _judge(self, sessions: list[str]) -> list[Check]:
        assert self.campaign is not None
        scratch = AuditReport(self.report.target)
        judge_again(scratch, self.campaign, sessions, {fault.path for fault in self.report.faults})
        return scratch.checks

    def _check_prompts(self, rows: list[Row]) -> None:
        """The prompts of a point, where their file is kept, are the ones its receipts name."""
        for point_id in dict.fromkeys(row["point_id"] for row in rows):
            path = self.folder / "prompts" / f"{point_id}.jsonl"
            named = {
                row["prompts_sha256"] for row in rows if row["point_id"] == point_id and row["prompts_sha256"]
            }
            if path.is_file() and named and named != {sha256_of_file(path)}:
                detail = f"{point_id}: a receipt names other prompts than are kept"
                self.report.say(
                    "prompts", AuditResult.MISMATCH, detail, f"{self.folder.name}/prompts/{path.name}"
                )

    def _check_asked(self, rows: list[Row]) -> None:
        """Each receipt was asked the point and the server that the plan has."""
        assert self.campaign is not None
        wrong = set()
        for row in rows:
            body = row.load.receipt.body if row.load is not None else {}
            asked = (body.get("spec") or {}).get("server") or {}
            arm = self.campaign.plan["arms"][row["arm"]]
            for key in ("engine", "image_digest", "model_sha256", "flags"):
                if key in asked and key in arm and asked[key] != arm[key]:
                    wrong.add((row["receipt_path"], key))
            point = (body.get("spec") or {}).get("point") or {}
            planned = self.campaign.plan["points"][row["point_id"]]
            for key in ("workload", "concurrency", "requests", "max_tokens", "ignore_eos", "issue_s"):
                if key in point and key in planned and point[key] != planned[key]:
                    wrong.add((row["receipt_path"], key))
        for path, key in sorted(wrong):
            self.report.say("plan", AuditResult.MISMATCH, f"was asked another {key} than the plan has", path)
