"""The walk of an audit: from a figure to its entry, its rows, their receipts, raw records and sessions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import matplotlib

from assay.audit.behind import add_row_point, check_asked, check_prompts, origin
from assay.audit.files import CRATE, SUMS, check_files, read_sums
from assay.audit.gates import judge_again
from assay.audit.outcome import AuditReport, Check
from assay.audit.published import (
    PAGE,
    all_charts,
    compare_crate,
    compare_gate_statements,
    compare_page,
    compare_statement,
    compare_statement_names,
)
from assay.audit.recompute import (
    compare_json,
    compare_points,
    compare_rows,
    compare_text,
    doubtful_rows,
    make_extract,
)
from assay.audit.sessions import compare_session
from assay.chart.render import draw_bytes, identity, read_identity
from assay.digest import sha256_of_bytes, sha256_of_file, sha256_of_value
from assay.errors import AssayError, Incomplete
from assay.extract import attempts
from assay.extract.chart_data import make_chart_data
from assay.extract.comparisons import format_csv as format_comparison
from assay.extract.comparisons import make_comparisons
from assay.extract.everything import FILES
from assay.extract.rows import Row, build_rows
from assay.records.campaign import Campaign, Fault, open_campaign
from assay.records.files import read_json
from assay.records.pins import Pins
from assay.report.statements import audit_statement
from assay.vocab import AuditResult


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, AssayError) else f"{type(error).__name__}: {error}"


def _identity_of(path: Path) -> dict[str, str]:
    """As read_identity, and Incomplete for what is no regular file, which might never end."""
    if path.exists() and not path.is_file():
        raise Incomplete(f"{path.name}: not a regular file")
    return read_identity(path)


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
        except Exception as error:  # noqa: BLE001 - whatever a doctored plan makes of the reader is its fault
            self.campaign = None
            gone = not (self.folder / "plan.json").is_file()
            kind, path = ("missing" if gone else "unreadable"), f"{self.folder.name}/plan.json"
            self.report.blame([Fault(path, "missing" if kind == "missing" else "unreadable", _told(error))])
        self.pins = pins
        own = f"{self.folder.name}/{SUMS}"
        look = functools.partial(check_files, require_sums=require_sums)
        self.guarded("files", own, lambda: look(self.report, self.folder, self.campaign, pins))
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
        except Exception as error:  # noqa: BLE001 - see guarded
            detail = f"the records cannot be read as evidence: {_told(error)}"
            self.report.say("evidence", AuditResult.INCOMPLETE, detail, f"{self.folder.name}/plan.json")
            return False
        return True

    def guarded(self, name: str, relative: str, look: Callable[[], object]) -> None:
        """Look at one thing. A formula that fails on what it is given is a finding about the file: whoever
        doctors evidence may give it anything."""
        try:
            look()
        except AssayError as error:
            self.report.say(name, AuditResult.INCOMPLETE, str(error), relative)
        except Exception as error:  # noqa: BLE001 - told with its type and its file
            self.report.say(name, AuditResult.MISMATCH, f"cannot be judged: {_told(error)}", relative)

    # what can be audited -------------------------------------------------------------------------------

    def chart(self, path: Path) -> None:
        """chart -> chart_data entry -> rows -> receipts -> raw records -> sessions."""
        relative = f"{self.folder.name}/charts/{path.name}"
        self.guarded("chart", relative, lambda: self._chart(path, relative))

    def _chart(self, path: Path, relative: str) -> None:
        try:
            mark = _identity_of(path)
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
        """The entry drawn again, byte by byte; with another matplotlib its digest in SHA256SUMS decides."""
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
        path, relative = self.folder / "extracts" / name, f"{self.folder.name}/extracts/{name}"
        if path.exists() and not path.is_file():
            self.report.say(name, AuditResult.MISMATCH, "not a regular file", relative)
            return
        self.guarded(name, relative, lambda: self._compare_extract(path, relative, row_id))

    def _compare_extract(self, path: Path, relative: str, row_id: str | None) -> None:
        assert self.campaign is not None
        name = path.name
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
            fresh_json = (
                self.chart_data()
                if name == "chart_data.json"
                else make_extract(name, self.campaign, self.rows())
            )
            compare_json(self.report, path, relative, fresh_json, doubtful)

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
        if not self.usable() or self.campaign is None:
            return
        held = (self.folder / "extracts").glob("*")
        extra = {path.name for path in held if path.suffix in (".csv", ".json", ".parquet")}
        for name in sorted({*FILES, *extra}):
            self._extract(name)
        for path in all_charts(self.campaign):
            relative = f"{self.folder.name}/charts/{path.name}"
            self.guarded("chart", relative, functools.partial(self._chart_alone, path))
        self._behind(self.rows())
        if (self.folder / SUMS).is_file():
            self._published()

    def _published(self) -> None:
        """What was written last from all this: page, statements, crate. With evidence at fault they cannot be
        told."""
        campaign, report, own = self.campaign, self.report, self.folder.name
        assert campaign is not None
        charts = all_charts(campaign)
        self.guarded(PAGE, f"{own}/{PAGE}", lambda: compare_page(report, self.folder))
        if report.faults:
            return
        named = f"{own}/statements"
        self.guarded("statements", named, lambda: compare_statement_names(report, campaign, charts))
        self.guarded("statements", named, lambda: compare_gate_statements(report, campaign))
        if report.result == AuditResult.VERIFIED:  # else they would tell of what has just been told
            self.guarded("statements", named, lambda: self._audits_again(charts))
        sums = read_sums(self.folder)[0] or {}
        self.guarded("crate", f"{own}/{CRATE}", lambda: compare_crate(report, campaign, sums))

    def _audits_again(self, charts: list[Path]) -> None:
        """Each chart's statement, made as it was: before SHA256SUMS was written."""
        assert self.campaign is not None
        opening = AuditReport("", self.folder.name)
        check_files(opening, self.folder, self.campaign, self.pins, require_sums=False, use_sums=False)
        good = 0
        for chart in charts:
            twin = copy.copy(self)
            twin.report = copy.deepcopy(opening)
            twin.report.target = str(chart)
            twin.chart(chart)
            fresh = audit_statement(twin.report, chart, self.campaign.results)
            words = read_identity(chart).get("matplotlib") == matplotlib.__version__
            name = f"audit.{chart.name}.json"
            good += compare_statement(self.report, self.campaign, name, fresh, words=words)
        if good and good == len(charts):
            self.report.say("statements", AuditResult.VERIFIED, f"{good} of charts made again, the same")

    def _chart_alone(self, path: Path) -> None:
        relative = f"{self.folder.name}/charts/{path.name}"
        try:
            mark = _identity_of(path)
        except Incomplete as error:
            kind = AuditResult.MISMATCH if path.exists() else AuditResult.INCOMPLETE
            self.report.say("chart", kind, str(error), relative)
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
        add_row_point(self.report, self.folder, row, row["row_id"] in self.doubtful())

    def _behind(self, rows: list[Row]) -> None:
        plan_path = f"{self.folder.name}/plan.json"
        self.guarded("evidence", plan_path, lambda: self._look_behind(rows, plan_path))

    def _look_behind(self, rows: list[Row], plan_path: str) -> None:
        """The sessions behind rows: what served, from which image and model, asked what; the gates again."""
        campaign = self.campaign
        assert campaign is not None
        sessions = sorted({row["session_id"] for row in rows if row["session_id"]})
        plan = campaign.plan
        for session_id in sessions:
            mine = [row for row in rows if row["session_id"] == session_id]
            self.report.origin.append(origin(session_id, mine, plan))
            self.guarded(
                "session",
                f"evidence/{session_id}/session.json",
                functools.partial(self._compare_session, session_id, mine[0]["arm"]),
            )
        self.guarded("prompts", plan_path, lambda: check_prompts(self.report, campaign, rows))
        self.guarded("plan", plan_path, lambda: check_asked(self.report, campaign, rows))
        self.report.checks += self._once(("gates", *sessions), lambda: self._judge(sessions))

    def _compare_session(self, session_id: str, arm: str) -> None:
        assert self.campaign is not None
        if f"evidence/{session_id}/session.json" not in {fault.path for fault in self.report.faults}:
            compare_session(self.report, self.campaign.results, session_id, arm, self.campaign.plan)

    def _judge(self, sessions: list[str]) -> list[Check]:
        assert self.campaign is not None
        scratch = AuditReport(self.report.target)
        campaign, doubtful = self.campaign, {fault.path for fault in self.report.faults}
        try:
            judge_again(scratch, campaign, sessions, doubtful)
        except Exception as error:  # noqa: BLE001 - see guarded
            detail = f"cannot be judged: {_told(error)}"
            scratch.say("gates", AuditResult.MISMATCH, detail, f"{self.folder.name}/plan.json")
        return scratch.checks
