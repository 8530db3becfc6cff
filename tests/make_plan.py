"""An arm and two points as a plan has them."""

from __future__ import annotations

from typing import Any

ARM = {
    "title": "arm",
    "engine": "llama_cpp",
    "image": "img",
    "image_digest": "d" * 64,
    "model": "tiny",
    "model_sha256": "e" * 64,
    "served_name": "tiny",
    "flags": {"parallel": 2, "ctx_size": 4096},
    "gpus": 0,
    "factors": {},
    "unspecified": {},
}
POINTS: dict[str, dict[str, Any]] = {
    "chat_c2": {
        "point_id": "chat_c2",
        "extra_body": {},
        "kind": "finite",
        "workload": "chat",
        "workload_kind": "chat",
        "concurrency": 2,
        "requests": 8,
        "repeats": 3,
        "max_tokens": 32,
        "ignore_eos": False,
        "stand_in_prompts": False,
        "planned_prompt_tokens": None,
    },
    "soak_c2": {
        "point_id": "soak_c2",
        "extra_body": {},
        "kind": "sustained",
        "workload": "chat",
        "workload_kind": "chat",
        "concurrency": 2,
        "windows": 2,
        "issue_s": 0.7,
        "drain_limit_s": 5.0,
        "max_tokens": 32,
        "ignore_eos": False,
        "stand_in_prompts": False,
        "planned_prompt_tokens": None,
    },
}
