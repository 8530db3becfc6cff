"""What the verbs read of a campaign's folder. A file of another shape is told by name, and ends in exit 3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.audit.recompute import read_rows_csv
from assay.errors import Incomplete
from assay.records.campaign import check_shape
from assay.records.files import read_json


@contextmanager
def of_shape(path: Path) -> Iterator[None]:
    """Inside, what ``path`` held is used: a key that it lacks or a value of another kind is Incomplete."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        fault = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise Incomplete(f"{path}: not of the shape it should have: {fault}") from error


def read_record(path: Path, schema: str) -> dict[str, Any]:
    """A JSON record of an extract. Raises Incomplete when it is none of this schema."""
    record = read_json(path)
    if not isinstance(record, dict) or record.get("schema") != schema:
        raise Incomplete(f"{path}: not an {schema}")
    return record


def read_rows(campaign_dir: Path) -> list[dict[str, Any]]:
    """The rows of a campaign, typed. Raises Incomplete for a rows.csv without rows, or with other columns."""
    path = campaign_dir / "extracts" / "rows.csv"
    if not path.is_file():
        raise Incomplete(f"{path}: no such file; has the campaign run?")
    rows = read_rows_csv(path)
    if not rows:
        raise Incomplete(f"{path}: has no row")
    return rows


def read_receipt(path: Path) -> dict[str, Any]:
    """Raises Incomplete for what is no receipt, so that its stage is run again. Prompts and topology have no state."""
    record = read_json(path)
    if not isinstance(record, dict) or not isinstance(record.get("stage"), str):
        raise Incomplete(f"{path}: not a receipt")
    if "state" in record and not (
        isinstance(record["state"], str) and isinstance(record.get("reasons"), list)
    ):
        raise Incomplete(f"{path}: not a receipt: state or reasons are of another kind")
    check_shape(record, str(path))
    return record
