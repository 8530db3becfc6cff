"""KV memory of one replica in blocks, and the prefix cache that lives in the blocks nobody uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Items


class KvPool:
    """Counts blocks; with ``caching`` it also remembers which full prompt blocks it holds, by their hash.

    A block that was published stays readable after its last user went, until its place is needed: least
    recently used first.
    """

    __slots__ = ("_free", "_idle", "_users", "caching", "n_blocks")

    def __init__(self, n_blocks: int, caching: bool) -> None:
        self.n_blocks, self.caching = n_blocks, caching
        self._free = n_blocks
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def n_free(self) -> int:
        """Blocks that could be had now."""
        return self._free + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the blocks that are in use."""
        return 1.0 - self.n_free / self.n_blocks if self.n_blocks else 1.0

    def take(self, count: int) -> bool:
        """Take ``count`` blocks, or none of them."""
        if count > self._free + len(self._idle):
            return False
        self._free -= count
        while self._free < 0:
            self._idle.popitem(last=False)
            self._free += 1
        return True

    def give(self, count: int) -> None:
        """Give back blocks that were never published."""
        self._free += count

    def match(self, hashes: Items[int], limit: int) -> int:
        """How many leading blocks of a prompt are held, at most ``limit``; they count as used from now on."""
        if not self.caching:
            return 0
        found = 0
        for block in hashes[:limit]:
            users = self._users.get(block, 0)
            if not users and block not in self._idle:
                break
            if not users:
                del self._idle[block]
            self._users[block] = users + 1
            found += 1
        return found

    def publish(self, block: int) -> bool:
        """Make a full block readable for others; False when one with that content is there already."""
        if not self.caching or block in self._users or block in self._idle:
            return False
        self._users[block] = 1
        return True

    def release(self, blocks: Items[int]) -> None:
        """One user of each published block goes. The end of a prompt is forgotten before its beginning."""
        for block in reversed(blocks):
            left = self._users[block] - 1
            if left:
                self._users[block] = left
            else:
                del self._users[block]
                self._idle[block] = None
