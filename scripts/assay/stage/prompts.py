"""The prompts of a point: drawn once, seeded, and used by every arm and repeat."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from assay.digest import sha256_of_file, sha256_of_value
from assay.errors import BadInput
from assay.load import Prompt
from assay.records.files import write_json, write_text
from assay.stage.conversation import draw_conversations
from assay.stage.local_prompts import read_local


def read_pool(root: Path, workload: dict[str, Any]) -> list[Prompt]:
    """The chat prompts of a workload, in the file's order. BadInput names file and line."""
    return [Prompt(id=line["id"], messages=line["messages"]) for line in _lines(root, workload)]


def _lines(root: Path, workload: dict[str, Any]) -> list[dict[str, Any]]:
    if "local" in workload:
        return read_local(workload, root / "config" / "workloads" / f"{workload['name']}.yaml")
    path = root / "config" / "workloads" / workload["file"]
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            if not isinstance(line["id"], str) or not isinstance(line["messages"], list):
                raise TypeError("id must be a string, messages a list")
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"not a prompt: {error!r}", where=path, key=f"line {number}") from error
        if workload.get("use") in (None, line.get("use")):
            lines.append(line)
    if not lines:
        raise BadInput(
            "no prompt is left", where=path, key="use", hint=f"lines with use {workload.get('use')!r}"
        )
    return lines


def draw_synthetic(
    name: str, count: int, n_tokens: int, first_id: int, below_id: int, seed: int
) -> list[Prompt]:
    """``count`` prompts of exactly ``n_tokens`` random token ids in [first_id, below_id)."""
    source = random.Random(f"{name}/{seed}")
    return [
        Prompt(
            id=f"{name}-{i:05d}", token_ids=[source.randrange(first_id, below_id) for _ in range(n_tokens)]
        )
        for i in range(count)
    ]


def draw_prompts(root: Path, spec: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of a point's prompt file and facts about the draw.

    Chat: a seeded shuffle of the pool, cut at ``count``; a pool smaller than ``count`` is cycled in that
    order and the facts say so. Synthetic: random token ids. Conversation: generated, and sent in its order.
    """
    workload, count = spec["workload"], spec["count"]
    if workload["kind"] == "synthetic":
        prompts = draw_synthetic(
            spec["point_id"],
            count or 256,
            workload["prompt_tokens"],
            spec["token_ids_from"],
            spec["token_ids_below"],
            spec["seed"],
        )
        lines = [{"id": prompt.id, "token_ids": prompt.token_ids} for prompt in prompts]
        return lines, {"n_pool": None, "n_distinct": len(lines), "cycled": False}
    if workload["kind"] == "conversation":
        lines = draw_conversations(spec["point_id"], workload, spec["seed"])
        n_lines = count or len(lines)
        return lines[:n_lines], {
            "n_pool": len(lines),
            "n_distinct": min(n_lines, len(lines)),
            "cycled": n_lines > len(lines),
        }
    pool = _lines(root, workload)
    random.Random(f"{spec['point_id']}/{spec['seed']}").shuffle(pool)
    n_lines = count or len(pool)
    lines = [{key: line[key] for key in ("id", "messages")} for line in pool[:n_lines]]
    return lines, {"n_pool": len(pool), "n_distinct": len(lines), "cycled": n_lines > len(pool)}


def prepare_prompts(root: Path, spec: dict[str, Any], prompts_file: Path, receipt: Path) -> None:
    """Write a point's prompts and their receipt."""
    lines, facts = draw_prompts(root, spec["prompts"])
    write_text(prompts_file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    # No time and no commit: the receipt of the same draw is the same file, so nothing after it reruns.
    write_json(
        receipt,
        {
            "schema": "assay/prompts/1",
            "stage": spec["stage"],
            "campaign": spec["campaign"],
            "point_id": spec["prompts"]["point_id"],
            "spec_sha256": sha256_of_value(spec),
            "path": f"{spec['campaign']}/prompts/{prompts_file.name}",
            "sha256": sha256_of_file(prompts_file),
            "n_prompts": len(lines),
            **facts,
        },
    )
