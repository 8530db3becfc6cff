"""A rehearsal server as its own process, for tests that talk to it over a socket."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

SMALL = {
    "step_fixed_s": 0.01,
    "token_s": 0.0002,
    "prefill_token_s": 0.00002,
    "http_s": 0.004,
    "ready_s": 1.0,
    "acceptance_text": [0.8, 0.7, 0.6],
    "acceptance_random": [0.2],
    "kv_tokens_per_gib": 10_000.0,
}
SERVED_NAME = "rehearsed"


def write_profile(folder: Path, **values: Any) -> Path:
    """A profile file for tests, whose numbers come from nowhere and say so."""
    parameters = {name: {"value": value, "assumed": "for a test"} for name, value in (SMALL | values).items()}
    path = folder / "profile.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "schema": "assay/rehearsal_profile/1",
                "name": "small",
                "title": "small",
                "parameters": parameters,
            }
        )
    )
    return path


@dataclass
class RehearsalProcess:
    """``with RehearsalProcess(folder, flags={...}, faults=[...]) as server: server.url``"""

    folder: Path
    flags: dict[str, Any] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    time_scale: int = 20
    log_events: bool = False
    port: int = 0

    def __enter__(self) -> RehearsalProcess:
        config = {
            "profile": str(write_profile(self.folder, **self.values)),
            "served_name": SERVED_NAME,
            "flags": self.flags,
            "faults": self.faults,
            "time_scale": self.time_scale,
        }
        if self.log_events:
            config["event_log"] = str(self.folder / "events.jsonl")
        self.log_path = self.folder / "server.log"
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "assay.rehearsal.server",
                    "--config",
                    json.dumps(config),
                    "--port",
                    "0",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ,
            )
        deadline = time.monotonic() + 30
        while (found := re.search(r"listening on 127\.0\.0\.1:(\d+)", self.log)) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self.port = int(found.group(1)) if found else 0
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()]

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 20.0) -> httpx.Response:
        with httpx.Client(timeout=timeout_s, trust_env=False) as client:
            return client.post(self.url + path, json=body)

    def get(self, path: str) -> httpx.Response:
        with httpx.Client(timeout=20.0, trust_env=False) as client:
            return client.get(self.url + path)

    def chat(self, text: str, **keys: Any) -> httpx.Response:
        body = {"model": SERVED_NAME, "messages": [{"role": "user", "content": text}], **keys}
        return self.post("/v1/chat/completions", body)
