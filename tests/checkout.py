"""A checkout in a scratch folder: the real Snakefile, rules, scripts and package, a small campaign, and an
image whose engine is scripted (tests/engines/fake_llama_cpp). Everything between is the product unchanged.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

PROJECT = Path(__file__).resolve().parent.parent
FAKE_SOURCE = PROJECT / "tests" / "engines" / "fake_llama_cpp" / "src" / "xllamacpp.py"
MODEL_BYTES = b"no weights, only a name\n"
COPIED = (
    "Snakefile",
    "envs/harness.yaml",
    "workflow",
    "profiles",
    "scripts",
    "config/gates",
    "config/publication",
    "config/workloads",
)

CAMPAIGN: dict[str, Any] = {
    "schema": "assay/campaign/1",
    "name": "campaign_tiny",
    "title": "two scripted arms",
    "suite": "tiny",
    "context_tokens": 4096,
    "needs": {"gpus": 0},
    "order": ["a", "b"],
    "arms": {
        name: {
            "engine": "llama_cpp",
            "image": "fake_llama_cpp",
            "model": "fake_model",
            "flags": {"ctx_size": 4096, "parallel": 4, "threads": 1, "cache_prompt": False, "spec_type": kind},
        }
        for name, kind in (("a", "none"), ("b", "ngram_mod"))
    },
    "gates": {"policy": "tiny"},
    "warm_up": {"workload": "chat_warm_up", "requests_per_slot": 1},
    "points": {
        "p1": {"kind": "finite", "workload": "chat", "concurrency": 1, "requests": 3, "repeats": 1, "max_tokens": 8},
        "p2": {"kind": "finite", "workload": "chat", "concurrency": 2, "requests": 6, "repeats": 2, "max_tokens": 8},
        "w1": {
            "kind": "sustained", "workload": "chat", "concurrency": 2, "windows": 2, "issue_s": 0.5,
            "drain_limit_s": 5, "max_tokens": 8,
        },
    },
    "comparisons": [
        {"name": "b_over_a", "numerator": "b", "denominator": "a", "declared_factor": ["flags.spec_type"]}
    ],
    "publication": "default",
}  # fmt: skip


def build_fake_wheel(folder: Path) -> tuple[Path, str]:
    """A wheel with the scripted engine and a file that stands for a model; the same bytes each time."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fake_llama_cpp-1.0-py3-none-any.whl"
    files = {
        "xllamacpp.py": FAKE_SOURCE.read_bytes(),
        "fake_model/model.gguf": MODEL_BYTES,
        "fake_llama_cpp-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: fake-llama-cpp\nVersion: 1.0\n",
        "fake_llama_cpp-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    record = "fake_llama_cpp-1.0.dist-info/RECORD"
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    temporary = folder / f".{os.getpid()}.whl"  # another worker may be reading the wheel
    with zipfile.ZipFile(temporary, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
    temporary.replace(path)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Checkout:
    """A scratch checkout; ``shared`` holds what the checkouts of one test session share (the built image)."""

    root: Path
    shared: Path
    image_store: Path
    target: str = "campaign_tiny"
    campaign: dict[str, Any] = field(default_factory=lambda: json.loads(json.dumps(CAMPAIGN)))

    @staticmethod
    def make(
        root: Path, shared: Path, image_store: Path | None = None, wheels: Path | None = None
    ) -> Checkout:
        """A new checkout. One place of the ``wheels`` gives all checkouts images of one address."""
        for name in COPIED:
            source, target = PROJECT / name, root / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        for folder in ("config/campaigns", "config/images", "config/models", "envs"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        shared.mkdir(parents=True, exist_ok=True)
        wheel, digest = build_fake_wheel(wheels or shared)
        (root / "envs/fake_llama_cpp.lock.txt").write_text(
            f"fake-llama-cpp @ {wheel.resolve().as_uri()} --hash=sha256:{digest}\n"
        )
        checkout = Checkout(root, shared, image_store or shared / "images")
        model_sha256 = hashlib.sha256(MODEL_BYTES).hexdigest()
        checkout.write(
            "config/images/fake_llama_cpp.yaml",
            {
                "name": "fake_llama_cpp",
                "kind": "venv",
                "lock": "envs/fake_llama_cpp.lock.txt",
                "checks": [{"name": "imports", "code": "import xllamacpp"}],
                "models": {
                    "fake_model": {
                        "path": "fake_model/model.gguf",
                        "sha256": model_sha256,
                        "license": "CC0-1.0",
                    }
                },
            },
        )
        checkout.write(
            "config/models/fake_model.yaml",
            {
                "schema": "assay/model/1",
                "name": "fake_model",
                "source": {"image_file": "fake_model"},
                "sha256": model_sha256,
                "license": "CC0-1.0",
                "vocab_size": 1000,
                "first_plain_token": 10,
            },
        )
        (root / "config/gates/tiny.yaml").write_text((PROJECT / "tests/data/gates_tiny.yaml").read_text())
        checkout.write_campaign()
        return checkout

    def write(self, name: str, value: Any, sort_keys: bool = False) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(value, sort_keys=sort_keys))

    def write_campaign(self, sort_keys: bool = False) -> None:
        self.write("config/campaigns/campaign_tiny.yaml", self.campaign, sort_keys)

    @property
    def environment(self) -> dict[str, str]:
        # Stages of one checkout share what the first of them compiled.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return kept | {
            "PYTHONPATH": str(self.root / "scripts"),
            "ASSAY_LOCK_DIR": str(self.root / "locks"),
            "ASSAY_IMAGE_STORE": str(self.image_store),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "400",
        }

    @property
    def prefix(self) -> Path:
        """The image's environment: where the scripted engine reads its script and writes its log."""
        found = [path for path in self.image_store.glob("fake_llama_cpp-*") if path.is_dir()]
        assert len(found) == 1, found
        return found[0]

    def build_image(self) -> None:
        """Have the image of the scripted engine, so that it can be scripted before the first server starts."""
        if not any(path.is_dir() for path in self.image_store.glob("fake_llama_cpp-*")):
            run = self.snakemake("results/campaign_tiny/receipts/images/fake_llama_cpp.json")
            assert run.returncode == 0, run.stdout + run.stderr

    def script(self, **settings: Any) -> None:
        """Script the engine of the next server starts."""
        (self.prefix / "control.json").write_text(json.dumps(settings))

    def forget_events(self) -> None:
        (self.prefix / "events.jsonl").unlink(missing_ok=True)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        try:
            lines = (self.prefix / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["event"])]

    def snakemake(
        self, *arguments: str, cores: int = 2, timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        command = ["snakemake", "--cores", str(cores), *arguments]
        if not any(
            argument.startswith("campaign") or argument.startswith("results") for argument in arguments
        ):
            command.append(self.target)
        return subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=timeout_s
        )

    def start_snakemake(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it as a shell at a terminal would: a group of its own, signals at their defaults."""

        def defaults() -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)

        with (self.root / "snakemake.log").open("a") as log:
            return subprocess.Popen(
                ["snakemake", "--cores", "2", *(arguments or (self.target,))],
                cwd=self.root,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                preexec_fn=defaults,
            )

    def assay(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "assay", *arguments],
            cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def plan(self, name: str = "campaign_tiny") -> dict[str, str]:
        """What `snakemake -n` would run: "rule leg point r1" -> reason."""
        run = self.snakemake("-n", self.target)
        assert run.returncode == 0, run.stdout + run.stderr
        jobs = re.findall(r"Job \d+: (\w+): (\w+) ?(.*)\n\s*Reason: (.*)", run.stdout + run.stderr)
        return {f"{rule} {rest}".strip(): reason for rule, campaign, rest, reason in jobs if campaign == name}

    def receipt(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.receipts / name).read_text())
        return found

    @property
    def receipts(self) -> Path:
        return self.root / "results" / "campaign_tiny" / "receipts"

    def sessions(self) -> list[dict[str, Any]]:
        files = sorted((self.root / "results/evidence").glob("*/session.json"))
        return [json.loads(file.read_text()) for file in files]

    def processes(self) -> list[psutil.Process]:
        """Servers and supervisors of this checkout that still live."""
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = " ".join(process.info["cmdline"] or [])
            ours = (process.info["environ"] or {}).get("ASSAY_LOCK_DIR") == str(self.root / "locks")
            if ("assay.session.supervisor" in words and ours) or (
                "llama_cpp_serve.py" in words and str(self.root) in words
            ):
                found.append(process)
        return found

    def receipt_digests(self) -> dict[str, str]:
        return {
            path.relative_to(self.receipts).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.receipts.rglob("*.json")
        }
