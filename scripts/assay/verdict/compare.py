"""Two arms side by side: which settings differ, computed; what the ratio is; what it may be called.

Differences come from the resolved configuration (plan) and from what the servers said they run
(read-back), never from a declaration. Both operands, their populations and the differences stand in one
record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from assay.verdict.spread import bootstrap_ratio, drift, ranges_overlap, summarise_repeats
from assay.vocab import ComparisonKind, RunOrder

NOT_SEPARATED = "not separated by the data"
SEPARATED = "ranges of the repeats do not overlap"
LABELS = ("title", "factors", "unspecified")
"""Keys of an arm that are for people and no settings."""
ADDRESS_KEYS = frozenset({"host", "hostname", "hostnames", "port", "pid", "url", "base_url", "log_file"})
"""Where a server stands, not what it is: every start may change these."""
METRICS = {
    "output_tok_s": "output throughput, tokens/s, drain included",
    "output_tok_s_per_gpu": "output throughput per GPU of the arm, tokens/s",
    "window_tok_s": "tokens inside the issuing window over its length, tokens/s",
    "ttft_ms_p50": "time to first token, p50, ms",
    "ttft_ms_p99": "time to first token, p99, ms",
    "tpot_ms_p50": "time per output token, p50, ms",
    "e2e_ms_p50": "request latency to the last token, p50, ms",
    "e2e_ms_p99": "request latency to the last token, p99, ms",
}


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as {dotted key: leaf}; a list is a leaf, and so is an empty mapping."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, Any] = {}
        for key in value:
            flat |= flatten(value[key], f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: value}


def resolved_settings(arm: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a plan's arm by dotted key; the flags without their prefix, as servers name them.

    Image and model each stand as one setting, name and digest together.
    """
    plain = {key: value for key, value in arm.items() if key not in (*LABELS, "flags")}
    for name, digest in (("image", "image_digest"), ("model", "model_sha256")):
        if isinstance(plain.get(name), str) and plain.get(digest):
            plain[name] = f"{plain[name]}@{plain.pop(digest)}"
    return _without_address(flatten(plain) | flatten(arm.get("flags") or {}))


def read_settings(readback: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a server said it runs, by dotted key, without what it does not tell; None without a read-back."""
    if readback is None or not isinstance(readback.get("read"), Mapping):
        return None
    told = {key.removeprefix("flags."): value for key, value in readback["read"].items() if value is not None}
    return _without_address(flatten(told) if told else {})


def _without_address(flat: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flat.items() if key and key.rsplit(".", 1)[-1] not in ADDRESS_KEYS}


def _same(one: Any, other: Any) -> bool:
    """Equal values; 1 and 1.0 are equal, True and 1 are not."""
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool(one == other)


def compute_differences(
    numerator: Mapping[str, Any],
    denominator: Mapping[str, Any],
    numerator_read: Mapping[str, Any] | None,
    denominator_read: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Every key on which two arms differ, in what was asked or in what was read, with all four values.

    ``seen_in`` lists where: ``resolved``, ``readback``. A key that only one read-back tells is no
    difference, since silence of a server is not a value; one that only one arm asks for is. A setting that
    is null is not asked.
    """
    tops, bases = numerator_read or {}, denominator_read or {}
    found = []
    for key in sorted({*numerator, *denominator, *tops, *bases}):
        seen_in = []
        asked = (numerator.get(key), denominator.get(key))
        if not _same(*asked):
            seen_in.append("resolved")
        read = (tops.get(key), bases.get(key))
        if None not in read and not _same(*read):
            seen_in.append("readback")
        if seen_in:
            found.append(
                {
                    "key": key,
                    "seen_in": seen_in,
                    "numerator": {"asked": asked[0], "read": read[0]},
                    "denominator": {"asked": asked[1], "read": read[1]},
                }
            )
    return found


def classify(
    differences: Sequence[Mapping[str, Any]],
    declared_factor: str | Sequence[str] | None,
    *,
    read_back: bool,
    mismatches: Sequence[str] = (),
) -> tuple[ComparisonKind, list[str]]:
    """``matched`` when the declared factor differs, and nothing else, and both servers confirmed what they
    run.

    Several declared keys together are one factor. Two arms without any difference are matched when no
    factor was declared (A against A). Returns the kind and the reasons why it is not matched.
    """
    wanted = [declared_factor] if isinstance(declared_factor, str) else list(declared_factor or ())
    declared = [key.removeprefix("flags.") for key in wanted]
    keys = [str(difference["key"]) for difference in differences]
    own = [key for key in keys if any(key == one or key.startswith(one + ".") for one in declared)]
    others = [key for key in keys if key not in own]
    why = []
    if others:
        why.append(f"{len(others)} undeclared differences: {', '.join(others)}")
    if declared and not own:
        why.append(f"the declared factor {', '.join(wanted)} does not differ")
    if not read_back:
        why.append("a configuration was not read back")
    if mismatches:
        why.append(f"a server does not run what was asked: {', '.join(mismatches)}")
    return (ComparisonKind.RECIPE if why else ComparisonKind.MATCHED), why


def run_order(sequence: Iterable[str], one: str, other: str) -> RunOrder:
    """Which design the sessions of two arms followed; ``sequence`` is the arms in the order they ran."""
    arms = [arm for arm in sequence if arm in (one, other)]
    if len(arms) == 2 and len(set(arms)) == 2:
        return RunOrder.FIXED
    if len(arms) >= 4 and all(a != b for a, b in pairwise(arms)):
        return RunOrder.INTERLEAVED
    blocks = [arms[i : i + 4] for i in range(0, len(arms), 4)]
    if blocks and all(len(b) == 4 and b[0] == b[3] != b[1] == b[2] for b in blocks):
        return RunOrder.CROSSOVER
    return RunOrder.OTHER


def _operand(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[dict[str, Any], list[float]]:
    """Median and spread of a metric over an arm's rows at one point, with who is in and who is not, and
    why."""
    used = [row for row in rows if row.get(metric) is not None and not row["invalid"]]
    values = [float(row[metric]) for row in used]
    kind = "pooled" if used and used[0]["kind"] == "pooled" else "repeats"
    record = summarise_repeats(values) | {
        "statistic": _statistic(kind, len(values)),
        "population": used[0]["population"] if used else None,
        "values": values,
        "rows": [row["row_id"] for row in used],
        "run_ids": sorted({row["run_id"] for row in used if row["run_id"]}),
        "publishable": bool(used) and all(row["publishable"] for row in used),
        "unpublishable_rows": {row["row_id"]: row["reasons"] for row in used if not row["publishable"]},
        "excluded_rows": {
            row["row_id"]: row["reasons"] or ["no value"] for row in rows if not any(row is u for u in used)
        },
        "drift": drift(values) if kind == "repeats" else None,
    }
    return record, values


def _statistic(kind: str, n: int) -> str:
    if n == 0:
        return "none"
    name = "pooled over windows" if kind == "pooled" else "single run"
    return name if n == 1 else f"median of {n}"


def compare_point(
    numerator: Sequence[Mapping[str, Any]],
    denominator: Sequence[Mapping[str, Any]],
    metric: str,
    windows: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """One ratio with both operands. The rows are those of one point, in the order they ran.

    An invalid row is never an operand; it is listed with its reasons. The ratio is null where an operand
    is. For a sustained set the operands are pooled rows, and ``windows`` are the rows whose ranges are
    compared.
    """
    top, tops = _operand(numerator, metric)
    base, bases = _operand(denominator, metric)
    ratio = top["median"] / base["median"] if top["median"] is not None and base["median"] else None
    if windows is not None:
        (top["windows"], tops), (base["windows"], bases) = (_operand(rows, metric) for rows in windows)
    overlap = ranges_overlap(tops, bases)
    return {
        "metric": metric,
        "metric_name": METRICS[metric],
        "numerator": top,
        "denominator": base,
        "ratio": ratio,
        "publishable": bool(top["publishable"] and base["publishable"] and ratio is not None),
        "separated": None if overlap is None else not overlap,
        "separation": {True: NOT_SEPARATED, False: SEPARATED, None: None}[overlap],
        "interval": bootstrap_ratio(tops, bases),
    }
