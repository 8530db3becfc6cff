"""Gates: does the server answer correctly, before, after and beside a load; every exchange kept on disk."""

from __future__ import annotations

from assay.gates.judge import judge, read_tasks
from assay.gates.policy import Policy, Threshold, load_policy, make_policy
from assay.gates.reasons import GateReason
from assay.gates.run import run_gates, run_mixed
from assay.session.chat_tokens import Endpoint

__all__ = [
    "Endpoint",
    "GateReason",
    "Policy",
    "Threshold",
    "judge",
    "load_policy",
    "make_policy",
    "read_tasks",
    "run_gates",
    "run_mixed",
]
