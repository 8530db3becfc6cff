"""`python -m assay.rehearsal.server --config JSON --port P`: the rehearsal engine as a process.

The configuration: ``{"profile": path, "served_name", "engine", "flags", "recipe", "parameters", "faults",
"time_scale", "seed", "event_log"}``; all but ``profile`` have a default. What the server runs is printed when
it starts and told at ``/rehearsal/config``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from assay import __version__
from assay.errors import AssayError, BadInput
from assay.rehearsal.faults import FaultBook, read_faults
from assay.rehearsal.http import Api, Connection
from assay.rehearsal.live import LiveNode
from assay.rehearsal.profile import Profile, read_profile
from assay.rehearsal.recipe import Recipe, flags_of, recipe_of
from assay.rehearsal.request import Reader
from assay.vocab import RehearsalFault as Kind

LOAD_FAILURE_STATUS = 1
DEFAULT_SEED = 20261009
BACKLOG = 4096
_KEYS = {
    "profile": str,
    "served_name": str,
    "engine": str,
    "flags": dict,
    "recipe": dict,
    "parameters": dict,
    "faults": list,
    "time_scale": int,
    "seed": int,
    "event_log": str,
}

OPTIONS_TOLD = ("faults", "parameters", "recipe", "event_log")
"""Told as they were given; what became of the first three stands beside them in full."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything a server needs, checked."""

    profile: Profile
    recipe: Recipe
    book: FaultBook
    served_name: str
    time_scale: int
    seed: int
    event_log: str | None
    asked: Mapping[str, Any]


def read_setup(config: Mapping[str, Any], where: object = "--config") -> Setup:
    """Check a configuration and read its profile. BadInput names the key."""
    for key, value in config.items():
        wanted = _KEYS.get(key)
        if wanted is None:
            raise BadInput("unknown key", where=where, key=key, hint=", ".join(_KEYS))
        if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise BadInput(f"{value!r} is of the wrong type", where=where, key=key, hint=wanted.__name__)
    if not config.get("profile"):
        raise BadInput(
            "missing", where=where, key="profile", hint="path of a file in config/rehearsal/profiles"
        )
    scale = config.get("time_scale") or 1
    if scale < 1:
        raise BadInput("must be 1 or more", where=where, key="time_scale")
    profile = read_profile(Path(config["profile"])).with_values(config.get("parameters") or {}, where)
    book = FaultBook(read_faults(config.get("faults") or [], where))
    recipe = recipe_of(config.get("engine") or "rehearsal", config.get("flags") or {}, config.get("recipe"))
    return Setup(
        profile=profile,
        recipe=recipe,
        book=book,
        served_name=config.get("served_name") or profile.name,
        time_scale=scale,
        seed=DEFAULT_SEED if config.get("seed") is None else int(config["seed"]),
        event_log=config.get("event_log"),
        asked=dict(config),
    )


def told_config(setup: Setup, live: LiveNode) -> dict[str, Any]:
    """What `/rehearsal/config` says. ``flags`` are by the asked engine's names, as the scheduler holds them;
    ``not_simulated`` are those that were asked for and change nothing here."""
    engine = setup.asked.get("engine") or "rehearsal"
    recipe = dataclasses.asdict(setup.recipe)
    recipe.pop("flags")
    held = flags_of(engine, live.node.recipe)
    replicas = live.node.all_replicas
    return {
        "rehearsal": True,
        "engine": engine,
        "flags": held,
        "not_simulated": {key: value for key, value in setup.recipe.flags.items() if key not in held},
        "recipe": recipe,
        "options": {key: value for key, value in setup.asked.items() if key in OPTIONS_TOLD},
        "served_name": setup.served_name,
        "time_scale": setup.time_scale,
        "seed": setup.seed,
        "profile": dataclasses.asdict(setup.profile),
        "faults": [{"kind": fault.kind.value, **fault.values} for fault in setup.book.faults],
        "capacity": {
            "kv_tokens": sum(replica.kv_capacity_tokens for replica in live.node.replicas),
            "slots": sum(replica.recipe.max_num_seqs for replica in live.node.replicas),
            "context_tokens_per_slot": setup.recipe.max_model_len,
            "gpus": sum(replica.recipe.gpus_per_replica for replica in replicas),
        },
        "version": f"assay-rehearsal {__version__}",
    }


def load_model(setup: Setup) -> int:
    """Take the simulated time of a start; 0, or the exit status of a model that will not load."""
    ready_s = setup.profile.ready_s
    fault = setup.book.find(Kind.WILL_NOT_LOAD)
    if fault is not None:
        time.sleep(min(float(fault.values["after_s"]), ready_s) / setup.time_scale)
        print(f"ERROR {fault.values['message']}", flush=True)
        print("RuntimeError: Engine core initialization failed.", flush=True)
        return LOAD_FAILURE_STATUS
    time.sleep(ready_s / setup.time_scale)
    return 0


async def serve(setup: Setup, port: int) -> None:
    """Serve on the loopback until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(setup.event_log, "w")) if setup.event_log else None  # noqa: ASYNC230
        live = LiveNode(
            setup.profile,
            setup.recipe,
            setup.book,
            served_name=setup.served_name,
            scale=setup.time_scale,
            event_log=log,
        )
        if (
            min(replica.kv_capacity_tokens for replica in live.node.all_replicas)
            < setup.profile.kv_block_tokens
        ):
            raise BadInput("the weights leave no memory for a KV cache", where="recipe", key="memory_target")
        told = told_config(setup, live)
        reader = Reader(live.node.profile, setup.recipe, setup.served_name, setup.seed, setup.book)
        api = Api(live, reader, told, str(told["version"]))
        print(f"assay-rehearsal {json.dumps(told, sort_keys=True)}", flush=True)
        loop.add_reader(live.timer.fd, live.wake)
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        server = await loop.create_server(lambda: Connection(api), "127.0.0.1", port, backlog=BACKLOG)
        print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        gc.collect()
        gc.freeze()
        await stopped.wait()
        server.close()
        print(f"stopped {json.dumps(live.status(), sort_keys=True)}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=json.loads, required=True, help="JSON object")
    parser.add_argument("--port", type=int, required=True, help="loopback port; 0 for any that is free")
    options = parser.parse_args(argv)
    try:
        setup = read_setup(options.config)
        status = load_model(setup)
        if status:
            return status
        uvloop.run(serve(setup, options.port))
    except AssayError as error:
        print(f"error: {error}", flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
