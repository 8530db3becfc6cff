"""GPUs as the driver's management library (NVML) tells them, through ``nvidia-ml-py``.

Two readings: ``read_gpus`` has what a GPU is and how it is set (stable), ``read_now`` what it does at this
moment (clocks, temperature, free memory, processes). A call that fails gives null and the driver's words.
Nothing is set, locked or reset here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from assay.probe.cpulist import format_cpulist

BYTES_PER_MIB = 1 << 20
MOST_NVLINKS = 36
"""More than any GPU has; asking for a link that is not there is answered with an error."""
_MASK_WORDS = 32
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def load_library() -> Any:
    """The ``pynvml`` module of nvidia-ml-py. Raises ImportError where it is not installed."""
    import pynvml

    return pynvml


@contextmanager
def opened(library: Any) -> Iterator[str | None]:
    """Initialise NVML; yields None, or why it could not be."""
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        yield f"NVML: {error}"
        return
    try:
        yield None
    finally:
        library.nvmlShutdown()


class Asker:
    """Calls NVML for one device and notes under which name a call failed, with the reason."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.reasons: dict[str, str] = {}

    def ask(self, name: str, function: str, *arguments: Any, then: Callable[[Any], Any] | None = None) -> Any:
        """The answer of ``function`` through ``then``.

        Null with a reason when the driver or this binding lacks it.
        """
        try:
            answer = getattr(self.library, function)(*arguments)
            return answer if then is None else then(answer)
        except self.library.NVMLError as error:
            self.reasons[name] = f"NVML {function}: {error}"
        except (AttributeError, TypeError, ValueError) as error:
            self.reasons[name] = f"{function}: {type(error).__name__}: {error}"
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _mib(value: Any) -> int:
    return int(value) // BYTES_PER_MIB


def _watts(milliwatts: Any) -> float:
    return int(milliwatts) / 1000


def _node(number: Any) -> int:
    if int(number) < 0:
        raise ValueError(f"node {number}")
    return int(number)


def _bits(words: Any) -> list[int]:
    """The numbers of the bits that are set in NVML's array of 64-bit words."""
    numbers = []
    for place, word in enumerate(words):
        numbers += [place * 64 + bit for bit in range(64) if int(word) >> bit & 1]
    return numbers


def _bus_id(info: Any) -> str:
    """PCI address as ``/sys`` spells it: four digits of domain (or more), lower case."""
    domain, _, rest = _text(info.busId).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def throttle_names(mask: int) -> list[str]:
    """The names of the bits of NVML's clock-event (throttle) reasons; unknown bits by their value."""
    names = [name for bit, name in _THROTTLE_REASONS.items() if mask & bit]
    unknown = mask & ~sum(_THROTTLE_REASONS)
    return [*names, f"bit_{unknown:#x}"] if unknown else names


def _read_one(library: Any, index: int, handle: Any) -> dict[str, Any]:
    asker = Asker(library)
    ask = asker.ask
    gpu: dict[str, Any] = {
        "index": index,
        "uuid": ask("uuid", "nvmlDeviceGetUUID", handle, then=_text),
        "name": ask("name", "nvmlDeviceGetName", handle, then=_text),
        "pci_bus_id": ask("pci_bus_id", "nvmlDeviceGetPciInfo", handle, then=_bus_id),
        "memory_mib": ask(
            "memory_mib", "nvmlDeviceGetMemoryInfo", handle, then=lambda info: _mib(info.total)
        ),
        "cpus": ask(
            "cpus",
            "nvmlDeviceGetCpuAffinity",
            handle,
            _MASK_WORDS,
            then=lambda words: format_cpulist(_bits(words)) or None,
        ),
        "numa_nodes": ask("numa_nodes", "nvmlDeviceGetMemoryAffinity", handle, _MASK_WORDS, 0, then=_bits),
        "gpu_numa_id": ask("gpu_numa_id", "nvmlDeviceGetNumaNodeId", handle, then=_node),
        "compute_capability": ask(
            "compute_capability",
            "nvmlDeviceGetCudaComputeCapability",
            handle,
            then=lambda pair: f"{pair[0]}.{pair[1]}",
        ),
        "pcie_gen_max": ask("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", handle, then=int),
        "pcie_width_max": ask("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", handle, then=int),
        "mig": ask("mig", "nvmlDeviceGetMigMode", handle, then=lambda pair: bool(pair[0])),
        "ecc": ask("ecc", "nvmlDeviceGetEccMode", handle, then=lambda pair: bool(pair[0])),
        "persistence": ask("persistence", "nvmlDeviceGetPersistenceMode", handle, then=bool),
        "power_cap_w": ask("power_cap_w", "nvmlDeviceGetEnforcedPowerLimit", handle, then=_watts),
        "power_cap_default_w": ask(
            "power_cap_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", handle, then=_watts
        ),
        "clock_sm_max_mhz": ask("clock_sm_max_mhz", "nvmlDeviceGetMaxClockInfo", handle, 1, then=int),
        "clock_mem_max_mhz": ask("clock_mem_max_mhz", "nvmlDeviceGetMaxClockInfo", handle, 2, then=int),
        "vbios": ask("vbios", "nvmlDeviceGetVbiosVersion", handle, then=_text),
    }
    for name in ("cpus", "numa_nodes"):
        if not gpu[name]:
            gpu[name] = None
            asker.reasons.setdefault(name, "NVML answered an empty set")
    return {**gpu, "reasons": asker.reasons}


def _nvlink_peers(library: Any, handle: Any) -> tuple[dict[str, int], int]:
    """Active NVLinks of one GPU: how many lead straight to which PCI address, and how many to a switch."""
    direct: dict[str, int] = {}
    switched = 0
    for link in range(MOST_NVLINKS):
        try:
            if not library.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except library.NVMLError:
            continue  # no such link on this GPU
        try:
            kind = library.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
        except (library.NVMLError, AttributeError):
            kind = 0  # older drivers do not say; then the address decides
        if kind == 2:
            switched += 1
            continue
        try:
            peer = _bus_id(library.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
        except library.NVMLError:
            continue
        direct[peer] = direct.get(peer, 0) + 1
    return direct, switched


def _read_links(library: Any, handles: list[Any], gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    peers = [_nvlink_peers(library, handle) for handle in handles]
    links = []
    for a in range(len(handles)):
        for b in range(a + 1, len(handles)):
            asker = Asker(library)
            ancestor = asker.ask(
                "ancestor", "nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b], then=_ANCESTORS.get
            )
            count = peers[a][0].get(gpus[b]["pci_bus_id"], 0)
            if count == 0 and peers[a][1] and peers[b][1]:
                # Both hang on switches: joined only if the driver lets them reach each other over NVLink.
                p2p = asker.ask("p2p", "nvmlDeviceGetP2PStatus", handles[a], handles[b], 2, then=int)
                count = min(peers[a][1], peers[b][1]) if p2p == 0 else 0
            name = f"NV{count}" if count else ancestor
            links.append({"a": a, "b": b, "class": name, "nvlinks": count, "reasons": asker.reasons})
    return links


def read_gpus(library: Any | None = None) -> dict[str, Any]:
    """What NVML says of driver, GPUs and links: ``{state, reason, driver, cuda, gpus, links}``.

    ``state`` is ``ok`` or ``absent``; with ``absent`` the reason says why and the lists are empty.
    """
    absent: dict[str, Any] = {
        "state": "absent",
        "reason": None,
        "driver": None,
        "cuda": None,
        "gpus": [],
        "links": [],
    }
    if library is None:
        try:
            library = load_library()
        except ImportError as error:
            return {**absent, "reason": f"nvidia-ml-py is not installed: {error}"}
    with opened(library) as failure:
        if failure is not None:
            return {**absent, "reason": failure}
        asker = Asker(library)
        driver = asker.ask("driver", "nvmlSystemGetDriverVersion", then=_text)
        cuda = asker.ask(
            "cuda", "nvmlSystemGetCudaDriverVersion", then=lambda v: f"{v // 1000}.{v % 1000 // 10}"
        )
        count = asker.ask("count", "nvmlDeviceGetCount", then=int)
        handles, gpus = [], []
        for index in range(count or 0):
            handle = asker.ask(f"gpu{index}", "nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                handles.append(handle)
                gpus.append(_read_one(library, index, handle))
        links = _read_links(library, handles, gpus)
        # A GPU that could not be opened leaves a hole: links name GPUs by index, not by place.
        links = [{**link, "a": gpus[link["a"]]["index"], "b": gpus[link["b"]]["index"]} for link in links]
        reason = (
            None
            if gpus
            else f"NVML sees no GPU{': ' + asker.reasons['count'] if 'count' in asker.reasons else ''}"
        )
        return {
            "state": "ok" if gpus else "absent",
            "reason": reason,
            "driver": driver,
            "cuda": cuda,
            "gpus": gpus,
            "links": links,
            "reasons": asker.reasons,
        }


def _processes(ask: Callable[..., Any], handle: Any) -> list[dict[str, Any]] | None:
    found: dict[int, dict[str, Any]] = {}
    for kind in ("Compute", "Graphics"):
        running = ask(f"processes_{kind.lower()}", f"nvmlDeviceGet{kind}RunningProcesses", handle)
        if running is None and kind == "Compute":
            return None
        for process in running or []:
            used = None if process.usedGpuMemory is None else _mib(process.usedGpuMemory)
            found[int(process.pid)] = {"pid": int(process.pid), "memory_mib": used, "kind": kind.lower()}
    return [found[pid] for pid in sorted(found)]


def read_now(library: Any | None = None) -> list[dict[str, Any]]:
    """What each GPU does now: clocks, throttle reasons, temperature, power, memory, PCIe link, processes.

    Empty where there is no GPU. PCIe generation drops on an idle GPU to save power, so it is here and not in
    the stable part.
    """
    if library is None:
        try:
            library = load_library()
        except ImportError:
            return []
    readings: list[dict[str, Any]] = []
    with opened(library) as failure:
        if failure is not None:
            return []
        top = Asker(library)
        for index in range(top.ask("count", "nvmlDeviceGetCount", then=int) or 0):
            handle = top.ask(f"gpu{index}", "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                readings.append(
                    {"index": index, "uuid": None, "reasons": {"uuid": top.reasons[f"gpu{index}"]}}
                )
                continue
            asker = Asker(library)
            ask = asker.ask
            readings.append(
                {
                    "index": index,
                    "uuid": ask("uuid", "nvmlDeviceGetUUID", handle, then=_text),
                    "clock_sm_mhz": ask("clock_sm_mhz", "nvmlDeviceGetClockInfo", handle, 1, then=int),
                    "clock_mem_mhz": ask("clock_mem_mhz", "nvmlDeviceGetClockInfo", handle, 2, then=int),
                    "throttle": ask(
                        "throttle",
                        "nvmlDeviceGetCurrentClocksThrottleReasons",
                        handle,
                        then=lambda mask: throttle_names(int(mask)),
                    ),
                    "temperature_c": ask("temperature_c", "nvmlDeviceGetTemperature", handle, 0, then=int),
                    "power_w": ask("power_w", "nvmlDeviceGetPowerUsage", handle, then=_watts),
                    "memory_used_mib": ask(
                        "memory_used_mib",
                        "nvmlDeviceGetMemoryInfo",
                        handle,
                        then=lambda info: _mib(info.used),
                    ),
                    "utilization_pct": ask(
                        "utilization_pct",
                        "nvmlDeviceGetUtilizationRates",
                        handle,
                        then=lambda rates: int(rates.gpu),
                    ),
                    "pcie_gen": ask("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration", handle, then=int),
                    "pcie_width": ask("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", handle, then=int),
                    "ecc_uncorrected": ask(
                        "ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", handle, 1, 0, then=int
                    ),
                    "processes": _processes(ask, handle),
                    "reasons": asker.reasons,
                }
            )
    return readings
