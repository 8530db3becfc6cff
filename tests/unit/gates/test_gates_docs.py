"""docs/gates.md keeps step with the code."""

from __future__ import annotations

import ast
from pathlib import Path

from assay.gates import reasons
from assay.gates.reasons import GateReason
from assay.vocab import GateKind, GateOutcome

ROOT = Path(__file__).resolve().parents[3]


def test_every_word_of_the_vocabularies_is_documented() -> None:
    """Each outcome, kind and shipped policy has its row, and each reason the very line it has in the code."""
    text = (ROOT / "docs" / "gates.md").read_text()
    names = [path.stem for path in (ROOT / "config" / "gates").glob("*.yaml")]
    for word in [*GateOutcome, *GateKind, *names]:
        assert f"| `{word}` |" in text, word
    body = next(
        node for node in ast.parse(Path(reasons.__file__).read_text()).body if isinstance(node, ast.ClassDef)
    )
    documented = [node.value.value for node in body.body if isinstance(node, ast.Expr)][1:]
    assert len(documented) == len(GateReason)
    for reason, line in zip(GateReason, documented, strict=True):
        assert f"| `{reason}` | {line} |" in text, reason
