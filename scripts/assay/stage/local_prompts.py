"""Prompts out of a data set that the user keeps: the local copy is checked, and read into a pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.config.campaign import local_path
from assay.digest import sha256_of_file
from assay.errors import BadInput

HUMAN = ("human", "user")
STAND_IN = "or run with --config stand_in_prompts=true: shipped prompts stand in, and every row says so"


def check_local(workload: dict[str, Any], where: Path) -> Path:
    """The local copy of a workload's data set. BadInput when it is missing or another one, with what to do."""
    local = workload["local"]
    path = local_path(local["path"])
    if not path.is_file():
        raise BadInput(
            f"no local copy of {local['dataset']} at {path}",
            where=where,
            key="local.path",
            hint=f"{local['get']}; {STAND_IN}",
        )
    found = sha256_of_file(path)
    if found != workload["sha256"]:
        raise BadInput(
            f"{path} has sha256 {found}",
            where=where,
            key="sha256",
            hint=f"revision {local['revision']} of {local['dataset']} has {workload['sha256']}; {STAND_IN}",
        )
    return path


def read_local(workload: dict[str, Any], where: Path) -> list[dict[str, Any]]:
    """Pool lines ``{id, messages}`` of a local data set, in its own order.

    ``sharegpt``: the first turn of each conversation, if a person speaks it and it has text. BadInput when
    the file is not of that form or nothing is left.
    """
    path = check_local(workload, where)
    limit = workload["local"].get("characters_max")
    try:
        conversations = json.loads(path.read_bytes())
        pool = [
            {
                "id": str(entry["id"]),
                "messages": [{"role": "user", "content": entry["conversations"][0]["value"]}],
            }
            for entry in conversations
            if entry["conversations"]
            and entry["conversations"][0]["from"] in HUMAN
            and entry["conversations"][0]["value"].strip()
            and (limit is None or len(entry["conversations"][0]["value"]) <= limit)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"{path} is not of the form {workload['local']['format']}: {type(error).__name__}",
            where=where,
            key="local.format",
        ) from error
    lines = list(
        {line["id"]: line for line in pool}.values()
    )  # an id may stand twice: a prompt is named once
    if not lines:
        raise BadInput(f"{path} holds no first turn of a person", where=where, key="local.path")
    return lines
