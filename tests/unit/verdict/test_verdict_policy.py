"""Publication policies: files with reasons and sources, checked before they judge."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from assay.errors import BadInput
from assay.verdict.publication import INVALIDATING, load_policy
from assay.vocab import Screen
from make_results import ROOT

SCHEMA = ROOT / "workflow/schemas/config/publication.schema.json"
FILES = sorted((ROOT / "config/publication").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_policies_are_valid(path: Path) -> None:
    """Every shipped policy meets its schema, names known screens once, and requires the screens of trust."""
    policy = load_policy(path, SCHEMA)
    named = [entry["screen"] for entry in policy["required"]]
    assert len(named) == len(set(named))
    assert set(named) <= set(Screen)
    assert {"failure_rate", "json_gate", "mixed_session", "config_readback"} <= set(named)
    assert INVALIDATING - set(named) <= set()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"limits": {"cache_screen": {"prefill_tok_s_max": "fast"}}}, "limits.cache_screen"),
        ({"required": []}, "required"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_bad_policy_names_its_key(tmp_path: Path, change: dict[str, object], key: str) -> None:
    """A wrong type, an empty list of requirements or an unknown key is bad input that names the place."""
    policy = yaml.safe_load(FILES[0].read_text())
    for name, value in change.items():
        policy[name] = policy[name] | value if isinstance(value, dict) else value
    path = tmp_path / f"{policy['name']}.yaml"
    path.write_text(yaml.safe_dump(policy))
    with pytest.raises(BadInput, match=key):
        load_policy(path, SCHEMA)


def test_a_misspelt_limit_is_found(tmp_path: Path) -> None:
    """A key that no screen reads does not stand in a policy unnoticed."""
    policy = yaml.safe_load(FILES[0].read_text())
    policy["limits"]["client_bound"]["cpu_shar_max"] = 0.9
    path = tmp_path / f"{policy['name']}.yaml"
    path.write_text(yaml.safe_dump(policy))
    with pytest.raises(BadInput, match="cpu_shar_max"):
        load_policy(path, SCHEMA)
