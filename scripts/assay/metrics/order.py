"""Order statistics of more values than fit in memory: exact, by reading them a few times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

BINS = 1 << 16

Integers = NDArray[np.int64]


def order_statistics(
    read: Callable[[], Iterable[Integers]], low: int, high: int, ranks: Iterable[int]
) -> Mapping[int, int]:
    """The value at each of ``ranks`` (0 is the smallest) of all arrays that ``read`` gives, taken together.

    ``low`` and ``high`` are the smallest and the largest value. Each reading counts the values in BINS equal
    parts of an interval that holds the rank, and goes on with the part it falls into: two readings for ns
    within a second, three within three days. A rank that is not there raises ValueError.
    """
    found: dict[int, int] = {}
    # (low, high, how many values are below low) of the interval that each rank is known to be in
    left = {rank: (low, high, 0) for rank in ranks}
    while left:
        counts = {interval: np.zeros(BINS, dtype=np.int64) for interval in set(left.values())}
        for values in read():
            for (start, end, _), count in counts.items():
                inside = values[(values >= start) & (values <= end)]
                count += np.bincount((inside - start) // _width(start, end), minlength=BINS)
        for rank, (start, end, n_below) in list(left.items()):
            up_to = n_below + np.cumsum(counts[start, end, n_below])
            part = int(np.searchsorted(up_to, rank, side="right"))
            if rank < 0 or part == BINS:
                raise ValueError(f"no value of rank {rank} among {up_to[-1]}")
            width = _width(start, end)
            start += part * width
            if width == 1:
                found[rank] = start
                del left[rank]
            else:
                left[rank] = start, min(end, start + width - 1), int(up_to[part - 1]) if part else n_below
    return found


def _width(start: int, end: int) -> int:
    return -(-(end - start + 1) // BINS)
