"""Reading a parser out of a wheel: what stands in the source is found, what is computed is said to be."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from assay.session.engines.capture.__main__ import as_text, main, parser_of

SOURCES = {
    "vllm/__init__.py": "",
    "vllm/config/__init__.py": "from vllm.config.cache import CacheConfig\nfrom vllm.config.spec import SpecConfig\n",
    "vllm/config/cache.py": '''
from typing import Literal
Kind = Literal["auto", "fp8"]
DEFAULT = 2 * 8
@config
class CacheConfig:
    block_size: int = Field(default=DEFAULT, ge=1)
    """Tokens of a block. More words."""
    kind: Kind = "auto"
    open_kind: Kind | str = "auto"
    sizes: list[int] | None = None
    caching: bool = True
    other: Literal["x", "y"] = "x"
    hidden: int = field(init=False, default=1)
    made: int = Field(default_factory=make)
''',
    "vllm/config/spec.py": """
from vllm.config.cache import CacheConfig
@config
class SpecConfig:
    method: str | None = None
    tokens: int = Field(default=None, gt=0)
    cache: CacheConfig | None = None
""",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
from vllm.config import CacheConfig, SpecConfig
DROPPED = "y"
class EngineArgs:
    def add_cli_args(parser):
        cache = get_kwargs(CacheConfig)
        spec = get_kwargs(VllmConfig)
        group.add_argument("--block-size", "-b", **cache["block_size"])
        group.add_argument("--cache-kind", **cache["kind"])
        cache["other"]["choices"].remove(DROPPED)
        group.add_argument("--other", **cache["other"])
        group.add_argument("--open-kind", **{**cache["open_kind"], "default": None})
        group.add_argument("--sizes", **cache["sizes"])
        group.add_argument("--caching", **cache["caching"])
        group.add_argument("--made", **cache["made"])
        group.add_argument("--spec-config", **spec["spec"])
        group.add_argument("--devices", type=lambda s: s.split(","), choices=[here()])
class AsyncEngineArgs(EngineArgs):
    def add_cli_args(parser):
        parser.add_argument("--quiet", action="store_true", default=False, help="Say less.")
class VllmConfig:
    spec: SpecConfig | None = None
""",
    "vllm/entrypoints/common/cli_args.py": """
@config
class FrontendArgs:
    tool_call_parser: str | None = None
    reasoning_parser: str = ""
    allowed_origins: list[str] = field(default_factory=lambda: ["*"])
def make_arg_parser(parser):
    parser.add_argument("model_tag")
    parser.add_argument("--headless", action="store_true")
""",
    "vllm/tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"b": ("m", "B"), "a": ("m", "A")}\n',
}


def make_wheel(folder: Path) -> Path:
    path = folder / "vllm-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in SOURCES.items():
            archive.writestr(name, text)
    return path


def test_flags_and_configs_are_read(tmp_path: Path) -> None:
    """Types, choices, limits, defaults and nested keys come out as they stand in the source."""
    found = parser_of(make_wheel(tmp_path))
    flags, configs = found["flags"], found["configs"]
    block = flags["block_size"]
    assert (block["types"], block["default"], block["minimum"], block["aliases"]) == (["int"], 16, 1, ["-b"])
    assert block["doc"] == "Tokens of a block"
    assert (flags["cache_kind"]["choices"], flags["cache_kind"]["open"]) == (["auto", "fp8"], False)
    assert (flags["open_kind"]["open"], flags["open_kind"]["default"]) == (True, None)
    assert (flags["sizes"]["form"], flags["sizes"]["types"]) == ("list", [{"list": ["int"]}, "null"])
    assert flags["other"]["choices"] == ["x"], "a choice that the parser takes away again"
    assert flags["caching"]["form"] == "on_off"
    assert flags["quiet"]["form"] == flags["headless"]["form"] == "switch"
    assert flags["spec_config"]["form"] == "json"
    assert set(configs["SpecConfig"]) == {"method", "tokens", "cache"}
    assert configs["SpecConfig"]["tokens"]["above"] == 0
    assert "hidden" not in configs["CacheConfig"], "a field that cannot be given is none"
    assert flags["allowed_origins"]["form"] == "json"
    assert flags["tool_call_parser"]["choices"] == ["a", "b"]
    assert "model_tag" not in flags


def test_what_is_computed_has_a_reason(tmp_path: Path) -> None:
    """A default or choice that exists only at run time is null with why, not guessed."""
    found = parser_of(make_wheel(tmp_path))
    assert found["flags"]["devices"]["choices"] is None
    assert set(found["not_captured"]) == {"devices", "made", "reasoning_parser"}
    assert "when it runs" in found["not_captured"]["made"]


def test_the_written_file_is_the_parser(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    """The file holds the same object, one line a flag, and the wheel's digest."""
    wheel = make_wheel(tmp_path)
    assert main([str(wheel), "--to", str(tmp_path)]) == 0
    text = (tmp_path / "vllm-1.2.3.json").read_text()
    assert json.loads(text) == parser_of(wheel)
    assert text == as_text(parser_of(wheel))
    assert "not in full" in capsys.readouterr().out
