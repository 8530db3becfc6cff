"""The regression checks of scale loading: right on a right loader, failing on each wrong one."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy
import pytest

PATCHES = Path(__file__).resolve().parents[2] / "envs" / "patches"


def load_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load_module(PATCHES / "check_e8m0_scales.py")
shipped = load_module(PATCHES / "e8m0_scales" / "assay_e8m0.py")
# These tests use numpy also where torch happens to be installed.
KINDS = ("dense", "experts", "draft_head")


@pytest.fixture(autouse=True)
def _numpy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)


def decoded(stored: Any) -> Any:
    values = numpy.ldexp(numpy.ones(stored.shape), stored.astype(int) - 127)
    values[stored == 255] = numpy.nan
    return values.astype(numpy.float32)


def right(parameter: Any, stored: Any) -> None:
    parameter[...] = stored if parameter.dtype == numpy.uint8 else decoded(stored)


def numeric(parameter: Any, stored: Any) -> None:
    """The fault of the reports: exponent bits treated as a number."""
    parameter[...] = stored.astype(parameter.dtype)


def always_decoded(parameter: Any, stored: Any) -> None:
    """Decodes for byte parameters as well, which cuts 2**-7 to 0."""
    values = decoded(stored)
    if parameter.dtype == numpy.uint8:
        values = numpy.nan_to_num(values).clip(0, 255)
    parameter[...] = values.astype(parameter.dtype)


def wrong_bias(parameter: Any, stored: Any) -> None:
    parameter[...] = stored if parameter.dtype == numpy.uint8 else decoded(stored) / 2


def does_nothing(parameter: Any, stored: Any) -> None:
    """A loader that skips names it does not know."""


def test_the_case_of_the_reports_byte_120() -> None:
    """Byte 120 decodes to 2**-7 = 0.0078125; a byte parameter keeps 120, a float parameter gets the value."""
    stored = numpy.array([120], dtype=numpy.uint8)
    kept, value = numpy.zeros(1, dtype=numpy.uint8), numpy.zeros(1, dtype=numpy.float32)
    shipped.load_scale(kept, stored)
    shipped.load_scale(value, stored)
    assert kept[0] == 120
    assert value[0] == 0.0078125 == 2.0**-7


def test_decoding_agrees_with_the_definition_for_every_byte() -> None:
    """All 256 bytes decode to 2 ** (byte - 127), and 255 to NaN."""
    values = shipped.decode_e8m0(numpy.arange(256, dtype=numpy.uint8))
    for byte in range(255):
        assert float(values[byte]) == math.ldexp(1.0, byte - 127)
    assert math.isnan(values[255])


@pytest.mark.parametrize("loader", [right, shipped.load_scale])
def test_a_right_loader_passes_both_checks(loader: Any) -> None:
    """No fault, and values were compared for dense scales, experts and the draft head."""
    for which in ("decoding", "destination", "both"):
        faults, compared = check.check_loader(loader, which)
        assert faults == []
        assert compared >= 8 * sum(len(check.SCALE_NAMES[kind]) for kind in KINDS)


@pytest.mark.parametrize("loader", [numeric, wrong_bias, does_nothing])
def test_a_wrong_loader_fails_for_every_kind_of_scale(loader: Any) -> None:
    """A loader that converts numerically fails the decoding check on dense, expert and draft scales."""
    faults, _ = check.check_loader(loader, "decoding")
    for kind in KINDS:
        assert any(fault.startswith(f"{kind}:") for fault in faults)


def test_the_numeric_loader_is_reported_with_120() -> None:
    """The report shows the wrong 120.0 beside the right 0.0078125."""
    faults, _ = check.check_loader(numeric, "decoding")
    assert "byte 120 became 120.0, it must be 0.0078125" in faults[0]


def test_decoding_for_a_byte_destination_fails_the_destination_check() -> None:
    """The destination rule is checked on its own: right values for floats do not excuse wrong bytes."""
    assert check.check_loader(always_decoded, "decoding")[0] == []
    faults, _ = check.check_loader(always_decoded, "destination")
    assert faults
    assert all("into uint8" in fault for fault in faults)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_that_forgets_one_kind_of_scale_fails(kind: str) -> None:
    """A repair of one loader does not hide the copy of the fault in another."""

    def forgetful(parameter: Any, stored: Any, name: str) -> None:
        (numeric if name in check.SCALE_NAMES[kind] else right)(parameter, stored)

    faults, _ = check.check_loader(forgetful, "both")
    assert faults
    assert all(fault.startswith(f"{kind}:") for fault in faults)


def test_a_loader_that_raises_is_a_fault_and_one_that_is_missing_could_not_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wrong and could-not-run are told apart by the exit code."""

    def raises(parameter: Any, stored: Any) -> None:
        raise KeyError("no such parameter")

    assert "raised KeyError" in check.check_loader(raises)[0][0]
    assert check.main(["--loader", "no_such_module:load"]) == 77
    assert check.main(["--loader", "math:no_such_function"]) == 77
    assert "could not run" in capsys.readouterr().out


def test_other_shapes_and_types_are_refused() -> None:
    """A shape that differs is never broadcast, an integer parameter is neither bytes nor floating."""
    stored = numpy.array([[120, 127]], dtype=numpy.uint8)
    with pytest.raises(ValueError, match="shape"):
        shipped.load_scale(numpy.zeros((2, 2), dtype=numpy.float32), stored)
    with pytest.raises(TypeError, match="neither bytes nor floating"):
        shipped.load_scale(numpy.zeros((1, 2), dtype=numpy.int32), stored)
