"""Variables of a server's processes: declared, refused where they may not be, read back from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.errors import BadInput
from assay.session.engines import ReadBack
from assay.session.engines.arm import check_arm
from assay.session.processes import ProcessId, identify
from assay.stage.launch import with_environment


def arm(**environment: str) -> dict[str, Any]:
    return {"engine": "vllm", "engine_version": "0.31.0", "flags": {}, "environment": environment}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("VLLM_LOGGING_LEVEL", "the harness sets it"),
        ("CUDA_VISIBLE_DEVICES", "placement"),
        ("VLLM_API_KEY", "looks like a secret"),
        ("NCCL_AUTH_TOKEN", "looks like a secret"),
    ],
)
def test_a_variable_that_may_not_be_set(name: str, complaint: str) -> None:
    """What the harness or the placement decides, or a secret, is refused by its key before anything starts."""
    with pytest.raises(BadInput, match=complaint) as told:
        check_arm(arm(**{name: "1"}), Path("c.yaml"), "arms.a", 0)
    assert f"arms.a.environment.{name}" in str(told.value)
    check_arm(arm(VLLM_CPU_KVCACHE_SPACE="1"), Path("c.yaml"), "arms.a", 0)


def start(**environment: str) -> tuple[subprocess.Popen[bytes], ProcessId]:
    """A process that says when it runs: before its exec it would show our own environment."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    found = identify(process.pid)
    assert found is not None
    return process, found


def test_what_the_processes_have_is_what_is_told() -> None:
    """A variable is told when every process has it with one value; otherwise it is left unread."""
    one, first = start(OMP_NUM_THREADS="1", VLLM_A="x")
    two, second = start(OMP_NUM_THREADS="1", VLLM_A="y")
    try:
        wanted = {"OMP_NUM_THREADS": "4", "VLLM_A": "x", "VLLM_B": "z"}
        told = with_environment(ReadBack({}, {}), wanted, [first, second])
        assert told.values == {"environment.OMP_NUM_THREADS": "1"}, "as it is, not as it was asked"
        alone = with_environment(ReadBack({}, {}), wanted, [first])
        assert alone.values == {"environment.OMP_NUM_THREADS": "1", "environment.VLLM_A": "x"}
        assert with_environment(ReadBack({}, {}), wanted, []).values == {}
    finally:
        for process in (one, two):
            process.communicate()
