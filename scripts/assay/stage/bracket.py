"""The way to a live, bracketed session: lease -> read-back -> gates before -> warm-up.

Every stage that talks to a server comes through here. A stage that finds itself in a new session first runs
the front of the bracket; one that finds the session of an earlier stage just uses it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.config.campaign import REHEARSAL_SUFFIX, Campaign, load_campaign, local_path
from assay.digest import PACKAGE_ROOT, sha256_of_value
from assay.errors import BadInput, Incomplete
from assay.gates import Endpoint, run_gates
from assay.image import find_model, image_python
from assay.load import LoadSpec, Prompt, run_load
from assay.load.spec import with_endpoint
from assay.records.files import read_json, write_json
from assay.records.gates import AT_LOAD
from assay.session import replicas
from assay.session.devices import HOST_DEVICE
from assay.session.engines import EngineFiles
from assay.session.lease import LeaseRequest, ServerFailed, Session, ensure, leased, stop
from assay.stage import simulated
from assay.stage.attempt import Attempt, new_folder
from assay.stage.conversation import draw_conversations
from assay.stage.launch import Launch, check_placement, launch, launch_one, place, read_configuration
from assay.stage.prompts import draw_synthetic, read_pool
from assay.stage.rehearse import as_rehearsal, engine_of
from assay.stage.specs import DEFAULT_TIMEOUT_S, Specs
from assay.vocab import Reason, Stage, StageState

EVIDENCE = "evidence"
FRONT = {Stage.GATE_BEFORE: "gates_before", Stage.WARM_UP: "warmup", Stage.GATE_AFTER: "gates_after"}
REHEARSAL_START_S = 300.0
WARM_UP_SEED_OFFSET = 7_919  # synthetic warm-up prompts must not be the measured ones


def image_store(root: Path) -> Path:
    """Where built images lie: `$ASSAY_IMAGE_STORE`, else .images in the checkout."""
    return Path(os.environ.get("ASSAY_IMAGE_STORE") or root / ".images").resolve()


class Bench:
    """One leg of one campaign, and its results folder."""

    def __init__(
        self,
        root: Path,
        campaign_name: str,
        leg_name: str,
        results: Path,
        rehearsal: dict[str, Any] | None = None,
    ):
        file_name = campaign_name if rehearsal is None else campaign_name.removesuffix(REHEARSAL_SUFFIX)
        self.campaign: Campaign = load_campaign(root / "config" / "campaigns" / f"{file_name}.yaml", root)
        if rehearsal is not None:
            self.campaign = as_rehearsal(self.campaign, rehearsal)
        self.specs = Specs(self.campaign)
        self.leg = self.campaign.leg(leg_name)
        self.results = results
        self.folder = results / campaign_name
        self.server = self.specs.server(self.leg.arm)
        self.engine = engine_of(self.server)
        self.time_scale: int = self.server.get("rehearsal", {}).get("time_scale", 1)

    @property
    def receipts(self) -> Path:
        return self.folder / "receipts" / self.leg.name

    def check_spec(self, spec: dict[str, Any]) -> None:
        """The spec that Snakemake decided on must be the one the files still say."""
        if spec.get("server") != self.server:
            raise BadInput(
                "the arm was changed after snakemake had read it",
                where=self.campaign.path,
                key=f"arms.{self.leg.arm}",
                hint="run snakemake again",
            )

    def devices(self) -> list[str]:
        """The GPUs of the campaign by UUID, or the host where it needs none."""
        n_gpus = self.server["gpus"]
        if n_gpus == 0 or "rehearsal" in self.server:
            return [HOST_DEVICE]
        topology = read_json(self.folder / "receipts" / "probe_topology.json")["topology"]
        uuids = [gpu["uuid"] for gpu in topology["gpus"]]
        if len(uuids) < n_gpus:
            raise Incomplete(f"the campaign needs {n_gpus} GPUs, the probe found {len(uuids)}")
        return uuids[:n_gpus]

    def image(self, name: str) -> dict[str, Any]:
        """The record of a built image. Raises ServerFailed when it could not be built."""
        receipt = read_json(self.folder / "receipts" / "images" / f"{name}.json")
        image: dict[str, Any] = receipt["image"]
        if receipt["state"] != StageState.COMPLETED:
            raise ServerFailed(f"image {image['name']}: {receipt['detail']}", None, Reason.IMAGE_FAILED)
        return image

    def command(self, files: EngineFiles, store: Path) -> Launch:
        """The command of this leg's server, or of its replicas and their router."""
        router_python = None
        timeout_s = self.campaign.arms[self.leg.arm].get("ready_timeout_s")
        if "rehearsal" in self.server:
            # One process plays all replicas; its start takes simulated time, and the machine's own.
            return launch_one(self.engine, self.server, files, REHEARSAL_START_S + (timeout_s or 0))
        if "router" in self.server:
            router_python = str(image_python(self.image(self.server["router"]["image"]), store))
        return launch(self.engine, self.server, files, router_python, self.planned(), timeout_s)

    def planned(self) -> list[dict[str, Any]]:
        """Where the members of this leg's server go, by the arm's placement; empty when it asks for none."""
        if "placement" not in self.server or "rehearsal" in self.server:
            return []  # simulated GPUs lie nowhere
        topology = read_json(self.folder / "receipts" / "probe_topology.json")["topology"]
        return place(self.server, topology)

    def lease_request(self) -> LeaseRequest:
        """What `lease.ensure` is asked for this leg."""
        store = image_store(self.campaign.root)
        python, model_path = self.python_and_model(store)
        files = EngineFiles(python, str(model_path), self.server["served_name"])
        arm = self.campaign.arms[self.leg.arm]
        started = self.command(files, store)
        context = f"{self.campaign.config['context_tokens'] // 1024}k"
        stem = "__".join(
            [
                self.server["model"],
                self.leg.name,
                context,
                self.server["engine"],
                self.campaign.config["suite"],
            ]
        )
        return LeaseRequest(
            campaign=self.campaign.name,
            leg=self.leg.name,
            arm=self.leg.arm,
            digest=sha256_of_value({"leg": self.leg.name, "server": self.server}),
            argv=started.argv,
            run_id_stem=stem,
            devices=self.devices(),
            evidence_root=str(self.results / EVIDENCE),
            ready_path=started.ready_path,
            ready_timeout_s=started.ready_timeout_s,
            port=arm.get("port"),
            path_names={
                str(store): "{images}",
                str(PACKAGE_ROOT): "{assay}",
                str(self.campaign.root.resolve()): "{project}",
                str(model_path.parent): "{model}",
            },
            environment=started.environment,
            identity={
                "engine": self.server["engine"],
                "image": {"name": self.server["image"], "digest": self.server["image_digest"]},
                "model": {"name": self.server["model"], "sha256": self.server["model_sha256"]},
                "served_name": self.server["served_name"],
                "context_tokens": self.campaign.config["context_tokens"],
            },
            device_wait_s=self.campaign.config.get("device_wait_s", 86_400.0),
        )

    def python_and_model(self, store: Path) -> tuple[str, Path]:
        """The image's interpreter and the model's file or folder; of a rehearsal our own, and the profile."""
        if "profile" in self.server.get("rehearsal", {}):
            return sys.executable, self.campaign.root.resolve() / self.server["rehearsal"]["profile"]
        image = self.image(self.server["image"])
        source = self.campaign.models[self.server["model"]]["source"]
        if "image_file" in source:
            model_path = find_model(image, source["image_file"], store)
        else:
            model_path = local_path(source["path"])
        return str(image_python(image, store)), model_path

    @contextmanager
    def session(self, upto: Stage | None) -> Iterator[Session]:
        """A live session whose bracket's front is done as far as ``upto``. Raises ServerFailed."""
        request = self.lease_request()
        with leased(request, tell) as session:
            if broken_front(session) or lost_members(session):
                stop(session, "evicted")
                session = ensure(request, tell)
            self.read_back(session)
            check_placement(session, self.planned())
            for stage in (Stage.GATE_BEFORE, Stage.WARM_UP):
                if upto in (Stage.START_SERVER, None) or (
                    upto is Stage.GATE_BEFORE and stage is Stage.WARM_UP
                ):
                    break
                if not (session.folder / FRONT[stage] / "stage.json").exists():
                    run = self.run_gate if stage is Stage.GATE_BEFORE else self.run_warm_up
                    record = run(session, stage)
                    if record["state"] != StageState.COMPLETED:
                        raise ServerFailed(
                            f"{stage}: {record['detail']}", session.folder, Reason.SERVER_CRASHED
                        )
            yield session

    def read_back(self, session: Session) -> dict[str, Any]:
        """`config_readback.json` of the session, written once."""
        path = session.folder / "config_readback.json"
        if path.exists():
            found: dict[str, Any] = read_json(path)
            return found
        record = read_configuration(self.engine, self.server, session)
        write_json(path, record)
        return record

    def endpoint(self, session: Session) -> Endpoint:
        return Endpoint(url=session.url, model=self.server["served_name"])

    def run_gate(self, session: Session, stage: Stage) -> dict[str, Any]:
        """Run the gate tasks against the session; the record lies in gates_before/ or gates_after/.

        Where the campaign asks for it they are asked a second time, at the load's own concurrency; that
        record lies in at_load/ beside the first, and both must pass.
        """
        folder = session.folder / FRONT[stage]
        folder.mkdir(parents=True, exist_ok=True)
        spec = self.specs.stage(stage, self.leg.name)
        attempt = Attempt(spec, session, folder, self.results)
        when = "before" if stage is Stage.GATE_BEFORE else "after"
        endpoint, policy = self.endpoint(session), self.specs.gate_policy
        with attempt.told_if_interrupted():
            summaries = [run_gates(endpoint, policy, folder, when=when)]
            if "at_load" in spec:
                at_load = folder / AT_LOAD
                summaries.append(run_gates(endpoint, policy, at_load, when=when, concurrency=spec["at_load"]))
        summary = summaries[0]
        state, reasons, detail = self.outcome(session)
        if any(one["verdict"] != "pass" for one in summaries):
            reasons.append(Reason.GATE_FAILED)
        measured = {
            key: summary[key] for key in ("verdict", "kinds", "policy", "policy_sha256", "tasks_sha256")
        }
        if len(summaries) > 1:
            measured[AT_LOAD] = {key: summaries[1][key] for key in ("verdict", "kinds", "concurrency")}
        return attempt.finish(state, reasons, detail, measured)

    def run_warm_up(self, session: Session, stage: Stage) -> dict[str, Any]:
        """Every shape of the session once, with the warm-up's own prompts and full generation."""
        folder = session.folder / FRONT[stage]
        folder.mkdir(parents=True, exist_ok=True)
        spec = self.specs.stage(stage, self.leg.name)
        attempt = Attempt(spec, session, folder, self.results)
        pool = read_pool(self.campaign.root, spec["warm_up"]["workload"])
        with attempt.told_if_interrupted():
            clients = [
                self.warm_shape(session, number, shape, pool, folder / f"shape_{number}")
                for number, shape in enumerate(spec["warm_up"]["shapes"], 1)
            ]
        spoilt = any(client["requests"]["ok"] != client["requests"]["issued"] for client in clients)
        reasons = [Reason.WARM_UP_FAILED] if spoilt else []
        state, more, detail = self.outcome(session)
        return attempt.finish(state, reasons + more, detail, {"n_shapes": len(spec["warm_up"]["shapes"])})

    def warm_shape(
        self, session: Session, number: int, shape: dict[str, Any], pool: list[Prompt], folder: Path
    ) -> dict[str, Any]:
        """One shape of load, full generation; gives the client's record."""
        prompts, n_tokens = pool, shape["planned_prompt_tokens"]
        if "conversation" in shape:
            lines = draw_conversations(f"warm_up_{number}", shape["conversation"], WARM_UP_SEED_OFFSET)
            prompts = [Prompt(id=line["id"], messages=line["messages"]) for line in lines]
        if n_tokens is not None:
            model = self.campaign.models[self.server["model"]]
            prompts = draw_synthetic(
                f"warm_up_{number}",
                shape["concurrency"],
                n_tokens,
                model.get("first_plain_token", 0),
                model["vocab_size"],
                WARM_UP_SEED_OFFSET + number,
            )
        load = LoadSpec(
            url=session.url,
            model=self.server["served_name"],
            concurrency=shape["concurrency"],
            requests=shape["concurrency"] * self.campaign.config["warm_up"]["requests_per_slot"],
            max_tokens=shape["max_tokens"],
            ignore_eos=shape["ignore_eos"],
            extra_body=shape["extra_body"],
            timeout_s=DEFAULT_TIMEOUT_S,
            point_id=f"warm_up_{number}",
            session_id=session.session_id,
            reuse_connections=self.engine.keeps_connections,
        )
        return self.run_load(load, prompts, folder)

    def run_load(self, load: LoadSpec, prompts: list[Prompt], folder: Path) -> dict[str, Any]:
        """One phase of load; in a rehearsal it is asked in wall time and recorded in simulated time."""
        load = with_endpoint(load, prompts)
        if "profile" not in self.server.get("rehearsal", {}):
            return run_load(load, prompts, folder)
        client = run_load(simulated.ask(load, self.time_scale), prompts, folder)
        return simulated.to_simulated(folder, client, self.time_scale)

    def outcome(self, session: Session) -> tuple[StageState, list[Reason], str | None]:
        """How the server came through a stage: completed, crashed, or stopped from outside."""
        now = settled(session)
        if now.server_alive() and now.state == "ready":
            if lost := lost_members(session):
                detail = f"replica {', '.join(lost)} died; the others served on"
                return StageState.FAILED, [Reason.REPLICA_LOST], detail
            return StageState.COMPLETED, [], None
        why, status = now.record.get("why_stopped"), now.record.get("returncode")
        detail = f"the server ended during the stage: {why} (exit status {status})"
        stopped = why in ("released", "interrupted", "evicted", "owner gone")
        return StageState.FAILED, [Reason.SERVER_STOPPED if stopped else Reason.SERVER_CRASHED], detail


def tell(text: str) -> None:
    """Into the stage's log, at once."""
    print(text, flush=True)


def broken_front(session: Session) -> bool:
    """Was a stage of the bracket's front cut short in this session? Then it can never be whole."""
    for stage in (Stage.GATE_BEFORE, Stage.WARM_UP):
        record_file = session.folder / FRONT[stage] / "stage.json"
        if record_file.exists() and read_json(record_file)["state"] != StageState.COMPLETED:
            return True
    return False


def lost_members(session: Session) -> list[str]:
    """Replicas of a session that live no more: it is not the server that was asked for any longer."""
    group = replicas.read_group(session.folder)
    return [] if group is None else group.lost()


def settled(session: Session, timeout_s: float = 20.0) -> Session:
    """The session's record once it agrees with the processes: a dying server is given time to be reaped."""
    deadline = time.monotonic() + timeout_s
    while True:
        now = session.refreshed()
        if now.state == "stopped" or (now.state == "ready" and now.server_alive()):
            return now
        if time.monotonic() > deadline:
            return now
        time.sleep(0.1)


def stage_folder(session: Session, *parts: str) -> Path:
    """A new folder of the session for one attempt at a stage."""
    return new_folder(session.folder.joinpath(*parts))
