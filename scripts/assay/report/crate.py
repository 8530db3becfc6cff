"""ro-crate-metadata.json: a Workflow Run Crate (0.5) of a campaign, made with the `rocrate` library.

Every file has its sha256; every attempt is an action, the failed ones included.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping, Sequence
from typing import Any

from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from assay.records.campaign import Campaign, resolve_inside
from assay.records.files import read_json
from assay.vocab import AttemptState, Stage

CRATE = "ro-crate-metadata.json"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
TERMS = "https://w3id.org/ro/terms/workflow-run/context"
"""The context that defines sha256 for files."""
LICENSE = "https://spdx.org/licenses/Apache-2.0"
_ACTION = "http://schema.org/"


def crate_id(campaign: Campaign, path: str) -> str:
    """A path relative to results as the crate names it: relative to the campaign's folder."""
    own = f"{campaign.folder.name}/"
    return path.removeprefix(own) if path.startswith(own) else f"../{path}"


def _kind(path: str) -> str:
    special = {
        ".parquet": "application/vnd.apache.parquet",
        ".jsonl": "application/jsonl",
        ".log": "text/plain",
        ".sha256": "text/plain",
        ".svg": "image/svg+xml",
        ".json": "application/json",
    }
    suffix = "." + path.rsplit(".", 1)[-1]
    return special.get(suffix) or mimetypes.guess_type(path)[0] or "application/octet-stream"


def _context(crate: ROCrate, identifier: str, properties: Mapping[str, Any]) -> ContextEntity:
    entity: ContextEntity = crate.add(ContextEntity(crate, identifier, properties=dict(properties)))
    return entity


def _last_time(attempts: Sequence[Mapping[str, Any]]) -> str:
    """The crate's date is that of the newest record in it, so that the same evidence gives the same crate."""
    return (
        max((one["t_end_utc"] or one["t_start_utc"] or "" for one in attempts), default="")
        or "1970-01-01T00:00:00Z"
    )


def _produced(campaign: Campaign, attempt: Mapping[str, Any], files: Mapping[str, Any]) -> list[Any]:
    """The files of an attempt: what its record names, and the record itself."""
    try:
        body = read_json(resolve_inside(campaign.results, attempt["record_path"]))
    except Exception as error:  # noqa: BLE001 - an unreadable record is listed in attempts.csv; it has no results
        body = {"evidence": [], "detail": str(error)}
    named = [entry["path"] for entry in body.get("evidence") or ()] + [attempt["record_path"]]
    return [files[path] for path in named if path in files]


def build_crate(
    campaign: Campaign, sums: Mapping[str, str], attempts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The crate's JSON-LD. ``sums`` are all files by path relative to results, the crate and SHA256SUMS
    left out."""
    crate = ROCrate(version="1.1")
    crate.metadata.extra_contexts.append(TERMS)
    plan, own = campaign.plan, f"{campaign.folder.name}/"
    crate.name = f"{plan.get('title') or plan['name']}"
    crate.description = (
        f"Evidence of the serving campaign {plan['name']}: receipts, raw records, extracts, charts."
    )
    crate.root_dataset["datePublished"] = _last_time(attempts)
    crate.root_dataset["license"] = _context(
        crate, LICENSE, {"@type": "CreativeWork", "name": "Apache License 2.0"}
    )
    profiles = [
        _context(crate, url, {"@type": "CreativeWork", "name": name, "version": url.rsplit("/", 1)[-1]})
        for url, name in PROFILES.items()
    ]
    crate.root_dataset["conformsTo"] = profiles
    language = _context(
        crate,
        "https://w3id.org/workflowhub/workflow-ro-crate#snakemake",
        {
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "identifier": "https://snakemake.readthedocs.io",
            "url": "https://snakemake.readthedocs.io",
        },
    )
    assay = _context(
        crate,
        "#assay",
        {"@type": "SoftwareApplication", "name": "assay", "softwareVersion": _versions(attempts)},
    )
    files: dict[str, Any] = {}
    for path, sha256 in sorted(sums.items()):
        size = resolve_inside(campaign.results, path).stat().st_size
        properties: dict[str, Any] = {
            "name": path,
            "sha256": sha256,
            "contentSize": str(size),
            "encodingFormat": _kind(path),
        }
        if path == f"{own}plan.json":
            properties |= {
                "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
                "name": "the resolved campaign: which stages run with which settings",
            }
        files[path] = crate.add_file(None, crate_id(campaign, path), properties=properties)
    workflow = files[f"{own}plan.json"]
    workflow["programmingLanguage"] = language
    crate.root_dataset["mainEntity"] = workflow
    tools = {
        str(stage): _context(
            crate,
            f"#stage-{stage}",
            {
                "@type": "SoftwareApplication",
                "name": f"assay stage {stage}",
                "isPartOf": {"@id": "#assay"},
            },
        )
        for stage in Stage
    }
    actions = [_attempt_action(crate, campaign, one, files, tools) for one in attempts]
    fed = (f"{own}prompts/", f"{own}receipts/prompts", f"{own}receipts/images")
    singles = (f"{own}plan.json", f"{own}receipts/probe_topology.json")
    inputs = [files[path] for path in files if path.startswith(fed) or path in singles]
    outputs = [files[p] for p in files if p.startswith(own) and files[p] not in inputs]
    run = _context(
        crate,
        "#campaign",
        {
            "@type": "CreateAction",
            "name": f"run of {plan['name']}",
            "startTime": min((one["t_start_utc"] for one in attempts if one["t_start_utc"]), default=None),
            "endTime": _last_time(attempts),
            "actionStatus": f"{_ACTION}CompletedActionStatus",
        },
    )
    run["instrument"] = workflow
    run["object"], run["result"] = inputs, outputs
    run["agent"] = assay
    crate.root_dataset["mentions"] = [run, *actions]
    return json.loads(json.dumps(crate.metadata.generate()))  # type: ignore[no-any-return]


def _versions(attempts: Sequence[Mapping[str, Any]]) -> str:
    commits = sorted({str(one["commit"]) for one in attempts if one["commit"]})
    return ", ".join(commits) or "unknown commit"


def _attempt_action(
    crate: ROCrate,
    campaign: Campaign,
    attempt: Mapping[str, Any],
    files: Mapping[str, Any],
    tools: Mapping[str, Any],
) -> ContextEntity:
    """One attempt as a CreateAction; failed and invalid ones say why."""
    good = attempt["state"] in (AttemptState.CURRENT, AttemptState.SUPERSEDED)
    properties: dict[str, Any] = {
        "@type": "CreateAction",
        "name": " ".join(
            [*(str(attempt[k]) for k in ("stage", "leg", "point_id") if attempt[k]), f"({attempt['state']})"]
        ),
        "identifier": attempt["attempt_id"] or attempt["record_path"],
        "actionStatus": f"{_ACTION}{'Completed' if good else 'Failed'}ActionStatus",
    }
    for key, name in (("t_start_utc", "startTime"), ("t_end_utc", "endTime")):
        if attempt[key]:
            properties[name] = attempt[key]
    if not good:
        why = json.loads(attempt["reasons"]) or [attempt["stage_state"]]
        properties["error"] = "; ".join([*map(str, why), *([attempt["detail"]] if attempt["detail"] else [])])
    action = _context(crate, f"#attempt/{attempt['record_path']}", properties)
    if attempt["stage"] in tools:
        action["instrument"] = tools[attempt["stage"]]
    plan = files.get(f"{campaign.folder.name}/plan.json")
    action["object"] = [plan] if plan is not None else []
    action["result"] = _produced(campaign, attempt, files)
    return action
