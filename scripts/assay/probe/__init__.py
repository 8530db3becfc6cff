"""Read the machine: what it is (stable, decides reruns) apart from what it does now (volatile)."""

from assay.probe.captured import read_captured
from assay.probe.machine import capture_machine, probe_topology, read_volatile

__all__ = ["capture_machine", "probe_topology", "read_captured", "read_volatile"]
