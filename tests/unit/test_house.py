"""The house keeps its walls: rooms import downward only, modules stay small, every verb is documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = PROJECT / "scripts" / "assay"
LEVELS = [
    {"cli", "stage", "__main__"},
    {"audit", "report", "chart"},
    {"extract", "verdict", "gates"},
    {"load", "session", "probe", "image", "rehearsal"},
    {"metrics"},
    {"records", "config", "answer", "digest", "vocab", "errors"},
]
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
MAX_LINES = 400


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of the package that a module imports, wherever in it the import stands."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "assay" and len(parts) > 1 and parts[1] in LEVEL_OF:
                rooms.add(parts[1])
    return rooms


def test_every_room_has_its_place() -> None:
    """No folder or module of the package stands outside the plan."""
    rooms = {room_of(path) for path in modules()} - {"__init__"}
    assert rooms <= set(LEVEL_OF), rooms - set(LEVEL_OF)


def test_rooms_import_downward_only() -> None:
    """A module imports its own room, or rooms of the same or a lower level."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {room}"
        for path in modules()
        if room_of(path) != "__init__"
        for room in imported_rooms(path)
        if LEVEL_OF[room] < LEVEL_OF[room_of(path)]
    ]
    assert not wrong, wrong


def test_modules_are_small() -> None:
    """A module that outgrows 400 lines wants a wall."""
    long = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in modules()}
    assert {name: n for name, n in long.items() if n > MAX_LINES} == {}


def test_one_rule_one_script_one_name() -> None:
    """Every rule but the targets has its script, and every script its rule."""
    text = "".join(path.read_text() for path in (PROJECT / "workflow" / "rules").glob("*.smk"))
    rules = {
        line.split()[1].rstrip(":") for line in text.splitlines() if line.startswith(("rule ", "checkpoint "))
    }
    scripts = {path.stem for path in (PROJECT / "scripts").glob("*.py")}
    assert rules == scripts


def test_rules_have_log_and_message_and_no_run_block() -> None:
    """Rule files are wiring: log, message and shell in each rule, functions only in common.smk."""
    for path in (PROJECT / "workflow" / "rules").glob("*.smk"):
        text = path.read_text()
        if path.name == "common.smk":
            continue
        n_rules = text.count("\nrule ") + text.count("checkpoint ") + text.startswith("rule ")
        assert n_rules == text.count("    log:") == text.count("    message:") == text.count("    shell:"), (
            path
        )
        assert "def " not in text
        assert "run:" not in text


def test_scripts_are_import_safe() -> None:
    """Importing a rule's script does nothing."""
    code = "import runpy, sys\nfor name in sys.argv[1:]: runpy.run_path(name, run_name='imported')"
    scripts = [str(path) for path in sorted((PROJECT / "scripts").glob("*.py"))]
    run = subprocess.run([sys.executable, "-c", code, *scripts], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def verbs() -> list[str]:
    from assay.cli import VERBS

    return sorted(VERBS)


def test_the_promised_verbs_exist() -> None:
    """The verbs that users were promised are all there."""
    assert {
        "validate",
        "probe",
        "load",
        "gates",
        "audit",
        "verify",
        "retry",
        "list",
        "export",
        "recover",
    } <= set(verbs())


@pytest.mark.parametrize(
    "verb", ["validate", "probe", "load", "gates", "audit", "verify", "retry", "list", "export", "recover"]
)
def test_help_of_each_verb(verb: str) -> None:
    """`--help` of a verb exits 0 and says what it does."""
    run = subprocess.run(
        [sys.executable, "-m", "assay", verb, "--help"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0
    assert len(run.stdout) > 300


def test_every_verb_is_in_the_readme() -> None:
    """No verb is undocumented."""
    text = (PROJECT / "README.md").read_text()
    assert [verb for verb in verbs() if f"assay {verb}" not in text] == []


def test_every_page_of_the_docs_is_in_the_readme() -> None:
    """No page of docs/ is without a link to it."""
    text = (PROJECT / "README.md").read_text()
    pages = sorted(path.name for path in (PROJECT / "docs").glob("*.md"))
    assert [name for name in pages if f"(docs/{name})" not in text] == []


def test_the_project_speaks_of_itself_alone() -> None:
    """No tracked file names a home folder or another place of the machine that it was made on."""
    files = subprocess.run(
        ["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout.split()
    needles = ["/ro" + "ot/", "/wo" + "rk/", "/ho" + "me/"]
    found = [
        name
        for name in files
        if not name.endswith((".lock.txt", ".png", ".whl")) and (PROJECT / name).is_file()
        for needle in needles
        if needle in (PROJECT / name).read_text(errors="replace")
    ]
    assert found == []
