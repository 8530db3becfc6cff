"""A stand-in for the ``pynvml`` module: a scripted machine, answering the calls that the probe makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """What the real library raises, with the driver's words."""


class ScriptedNvml:
    """``gpus``: facts by GPU; ``direct``: NVLinks between pairs; ``switched``: NVLinks to switches by GPU.

    A fact that is missing, or is an exception, makes its call fail as on a driver that does not support it.
    """

    NVMLError = NVMLError

    def __init__(
        self,
        gpus: list[dict[str, Any]],
        *,
        direct: dict[tuple[int, int], int] | None = None,
        switched: dict[int, int] | None = None,
        reachable: set[tuple[int, int]] | None = None,
        ancestors: dict[tuple[int, int], int] | None = None,
        init_error: str | None = None,
    ) -> None:
        self.gpus, self.init_error = gpus, init_error
        self.direct, self.switched = direct or {}, switched or {}
        self.reachable, self.ancestors = reachable or set(), ancestors or {}
        self.opened = 0

    def nvmlInit(self) -> None:
        if self.init_error:
            raise NVMLError(self.init_error)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def _fact(self, index: int, name: str) -> Any:
        value = self.gpus[index].get(name, NVMLError("Not Supported"))
        if isinstance(value, Exception):
            raise value
        return value

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self._fact(handle, "uuid")

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self._fact(handle, "name")

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"0000{handle:04X}:1B:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=self._fact(handle, "memory"), used=self._fact(handle, "used"))

    def nvmlDeviceGetCpuAffinity(self, handle: int, words: int) -> list[int]:
        cpus = self._fact(handle, "cpus")
        return [sum(1 << (cpu % 64) for cpu in cpus if cpu // 64 == word) for word in range(words)]

    def nvmlDeviceGetMemoryAffinity(self, handle: int, words: int, scope: int) -> list[int]:
        nodes = self._fact(handle, "nodes")
        return [sum(1 << node for node in nodes)] + [0] * (words - 1)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self._fact(handle, "mig")), 0]

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return int(self._fact(handle, "power_cap_mw"))

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return int(self._fact(handle, "clock"))

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return 1980

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return int(self._fact(handle, "throttle"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in self._fact(handle, "pids")]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:
        return []

    def _links(self, handle: int) -> list[int | None]:
        """The far ends of a GPU's links in order: a GPU's index, or None for a switch."""
        ends: list[int | None] = []
        for (a, b), count in sorted(self.direct.items()):
            if handle in (a, b):
                ends += [b if handle == a else a] * count
        return ends + [None] * self.switched.get(handle, 0)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= len(self._links(handle)):
            raise NVMLError("Invalid Argument")
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        return 2 if self._links(handle)[link] is None else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=f"0000{self._links(handle)[link]:04X}:1B:00.0")

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return self.ancestors.get((min(one, other), max(one, other)), 50)

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, kind: int) -> int:
        return 0 if (min(one, other), max(one, other)) in self.reachable else 5


def plain_gpu(index: int, **facts: Any) -> dict[str, Any]:
    """An ordinary GPU: four are on NUMA node 0 with CPUs 0-7, the others on node 1 with CPUs 8-15."""
    node = index // 4
    return {
        "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
        "name": "NVIDIA H200",
        "memory": 141 << 30,
        "used": 1 << 30,
        "cpus": range(8 * node, 8 * node + 8),
        "nodes": [node],
        "mig": False,
        "power_cap_mw": 700_000,
        "clock": 1980,
        "throttle": 0,
        "pids": [],
        **facts,
    }
