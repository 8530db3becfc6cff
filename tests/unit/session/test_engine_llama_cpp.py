"""llama.cpp: its flags are checked before a server starts, and its configuration is compared after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.errors import BadInput
from assay.session.engines import EngineFiles, ReadBack, engine
from assay.session.engines.base import check_flags
from assay.session.engines.llama_cpp import resolved_line
from assay.session.readback import compare_config

FILES = EngineFiles("image/bin/python", "image/model.gguf", "small")


def test_argv_is_a_pure_function_of_the_flags() -> None:
    """Key order does not matter, and every flag reaches the launcher."""
    llama = engine("llama_cpp")
    one = llama.argv({"ctx_size": 64, "parallel": 2}, FILES)
    assert one == llama.argv({"parallel": 2, "ctx_size": 64}, FILES)
    assert json.loads(one[one.index("--flags") + 1]) == {"ctx_size": 64, "parallel": 2}
    assert "{port}" in one


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"paralel": 4}, ["arms.a.flags.paralel", "did you mean 'parallel'"]),
        ({"parallel": "4"}, ["arms.a.flags.parallel", "wrong type", "int"]),
        ({"parallel": True}, ["arms.a.flags.parallel", "wrong type"]),
        ({"parallel": 0}, ["too small", "at least 1"]),
        ({"spec_type": "ngram"}, ["not a choice", "ngram_mod"]),
    ],
)
def test_a_bad_flag_is_named(flags: dict[str, object], words: list[str]) -> None:
    """An unknown flag, a wrong type and a wrong choice each give file, key and what would be right."""
    with pytest.raises(BadInput) as caught:
        check_flags(engine("llama_cpp"), flags, Path("c.yaml"), "arms.a.flags")
    assert all(word in str(caught.value) for word in ["c.yaml", *words])


def test_read_back_tells_mismatch_from_silence() -> None:
    """A different value is a mismatch, a value the server does not tell is unread, and neither is agreement."""
    record = compare_config(
        {"parallel": 4, "threads": 2, "ctx_size": 64},
        ReadBack({"parallel": 1, "ctx_size": 64, "extra": 7}, {}),
    )
    assert record["mismatches"] == [{"key": "parallel", "asked": 4, "read": 1}]
    assert record["unread"] == ["threads"]
    assert record["read"]["extra"] == 7, "what was not asked is read back too"


def test_the_resolved_line_is_found_among_noise(tmp_path: Path) -> None:
    """Parameters are read from the launcher's own line; a torn or missing line gives nothing."""
    log = tmp_path / "server.log"
    log.write_bytes(b"noise \xff\n" + b'assay-resolved {"threads": 2}\n')
    assert resolved_line(log) == {"threads": 2}
    log.write_text('assay-resolved {"threads": ')
    assert resolved_line(log) == {}
