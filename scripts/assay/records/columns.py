"""Arrow columns from Python lists and back to numpy, by their buffers.

``pyarrow.array`` and ``to_numpy`` would import pandas for it: 60 MB of memory and half a second that a load
client has better use for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Integers, booleans or strings, None for null. Text that is not valid Unicode gets replacement marks."""
    n = len(values)
    valid = np.fromiter((value is not None for value in values), dtype=bool, count=n)
    validity = None if valid.all() else _buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_string(kind):
        encoded = [b"" if value is None else value.encode("utf-8", "replace") for value in values]
        ends = np.cumsum([len(one) for one in encoded], dtype=np.int64) if n else np.zeros(0, dtype=np.int64)
        offsets = np.concatenate(([0], ends)).astype(np.int32)
        return pa.Array.from_buffers(kind, n, [validity, _buffer(offsets), pa.py_buffer(b"".join(encoded))])
    if pa.types.is_boolean(kind):
        flags = np.fromiter((bool(value) for value in values), dtype=bool, count=n)
        return pa.Array.from_buffers(kind, n, [validity, _buffer(np.packbits(flags, bitorder="little"))])
    if not pa.types.is_integer(kind):
        raise TypeError(f"no column of {kind} from a list")
    numbers = np.fromiter(
        (0 if value is None else value for value in values), dtype=f"int{kind.bit_width}", count=n
    )
    return pa.Array.from_buffers(kind, n, [validity, _buffer(numbers)])


def list_array_of(values: NDArray[np.int64], bounds: NDArray[np.int64]) -> pa.Array:
    """Lists of int64: those of row i are ``values[bounds[i]:bounds[i + 1]]``; bounds has shape rows + 1."""
    child = pa.Array.from_buffers(pa.int64(), len(values), [None, _buffer(np.ascontiguousarray(values))])
    offsets = _buffer(bounds.astype(np.int32))
    return pa.Array.from_buffers(pa.list_(pa.int64()), len(bounds) - 1, [None, offsets], children=[child])


def numbers_of(array: pa.Array | pa.ChunkedArray) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """(values, which are not null) of an integer column; a null's value is 0."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    n, start = len(array), array.offset
    validity, data = array.buffers()
    dtype = f"int{array.type.bit_width}"
    values = np.frombuffer(data, dtype=dtype)[start : start + n] if n else np.zeros(0, dtype=dtype)
    if validity is None or not n:
        return values, np.ones(n, dtype=bool)
    bits = np.unpackbits(np.frombuffer(validity, dtype=np.uint8), bitorder="little")
    valid = bits[start : start + n].astype(bool)
    return np.where(valid, values, 0), valid


def extreme_of(
    array: pa.Array | pa.ChunkedArray, pick: Callable[[Iterable[int]], int], old: int | None = None
) -> int | None:
    """The ``min`` or ``max`` of the known values of an integer column and of ``old``; None without any."""
    values, valid = numbers_of(array)
    known = values[valid].tolist() + ([] if old is None else [old])
    return pick(known) if known else None


def lists_of(array: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(values of all lists, bounds of shape rows + 1) of a column of lists of int64 without null lists."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not len(array):
        return np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    bounds, _ = numbers_of(array.offsets)
    values, _ = numbers_of(array.values)
    bounds = bounds.astype(np.int64)
    return values[bounds[0] : bounds[-1]], bounds - bounds[0]


def _buffer(array: NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(array.tobytes())
