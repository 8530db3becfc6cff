"""Samples of the host, the server and the GPUs over a session's life.

Samples go to a JSON-lines journal as they are taken, and become telemetry.parquet when the session ends; a
killed supervisor leaves the journal. A value that cannot be read is null.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

PERIOD_S = 1.0


def read_pressure(resource: str) -> dict[str, float | None]:
    """Pressure-stall share of the last 10 s in percent, and stalled microseconds so far, from /proc/pressure."""
    try:
        line = Path(f"/proc/pressure/{resource}").read_text().splitlines()[0]
        fields = dict(part.split("=") for part in line.split()[1:])
        return {"avg10_percent": float(fields["avg10"]), "total_us": float(fields["total"])}
    except (OSError, IndexError, KeyError, ValueError):
        return {"avg10_percent": None, "total_us": None}  # a kernel without PSI


class GpuReader:
    """NVML readings per GPU; ``reason`` says why there are none."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        self.reason: str | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self.nvml = pynvml
            self.handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except Exception as error:  # noqa: BLE001 - NVML raises its own classes, and none of them may end a session
            self.reason = f"{type(error).__name__}: {error}"

    def _read(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self.nvml, function)(*arguments)
        except self.nvml.NVMLError:
            return None

    def sample(self) -> list[dict[str, Any]]:
        rows = []
        for handle in self.handles:
            memory = self._read("nvmlDeviceGetMemoryInfo", handle)
            power_mw = self._read("nvmlDeviceGetPowerUsage", handle)
            rows.append(
                {
                    "uuid": self._read("nvmlDeviceGetUUID", handle),
                    "sm_clock_mhz": self._read("nvmlDeviceGetClockInfo", handle, self.nvml.NVML_CLOCK_SM),
                    "memory_used_bytes": memory.used if memory else None,
                    "temperature_c": self._read(
                        "nvmlDeviceGetTemperature", handle, self.nvml.NVML_TEMPERATURE_GPU
                    ),
                    "power_w": power_mw / 1000 if power_mw is not None else None,
                    "throttle_reasons": self._read("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
                }
            )
        return rows


class Telemetry:
    """Writes one sample a PERIOD_S while it is called often enough."""

    def __init__(self, journal: Path, server_pid: int):
        self.journal = journal
        self.stream = journal.open("a")
        self.gpus = GpuReader()
        self.due_s = 0.0
        psutil.cpu_percent(percpu=False)  # the first reading has no reference and is thrown away
        try:
            self.server: psutil.Process | None = psutil.Process(server_pid)
        except psutil.NoSuchProcess:
            self.server = None  # it died at once; the host is still sampled

    def sample_if_due(self) -> None:
        now_s = time.monotonic()
        if now_s < self.due_s:
            return
        self.due_s = now_s + PERIOD_S
        self.stream.write(json.dumps(self.sample()) + "\n")
        self.stream.flush()

    def sample(self) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        row: dict[str, Any] = {
            "t_ns": time.monotonic_ns(),
            "cpu_percent": psutil.cpu_percent(percpu=False),
            "load_1m": os.getloadavg()[0],
            "memory_available_bytes": memory.available,
            "swap_used_bytes": psutil.swap_memory().used,
        }
        for resource in ("cpu", "memory", "io"):
            for name, value in read_pressure(resource).items():
                row[f"psi_{resource}_{name}"] = value
        row |= self._server()
        row["gpus"] = json.dumps(self.gpus.sample()) if self.gpus.handles else None
        return row

    def _server(self) -> dict[str, float | None]:
        """CPU time and resident memory of the server and all below it that live now: workers, replicas, router."""
        cpu_s, rss_bytes, n_read = 0.0, 0, 0
        try:
            family = [] if self.server is None else [self.server, *self.server.children(recursive=True)]
        except psutil.Error:
            family, self.server = [], None
        for process in family:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss_bytes += process.memory_info().rss
                    cpu_s += times.user + times.system
                    n_read += 1
            except psutil.Error:
                continue  # it ended between the list and the reading
        if n_read == 0:
            return {"server_cpu_s": None, "server_rss_bytes": None}
        return {"server_cpu_s": cpu_s, "server_rss_bytes": rss_bytes}

    def close(self) -> None:
        """Turn the journal into telemetry.parquet; without a sample there is no file."""
        self.stream.close()
        rows = [json.loads(line) for line in self.journal.read_text().splitlines()]
        if not rows:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        from assay.records.files import replacing

        with replacing(self.journal.with_suffix(".parquet")) as temporary:
            pq.write_table(pa.Table.from_pylist(rows), temporary)
        self.journal.unlink()
