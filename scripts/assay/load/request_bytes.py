"""The bytes of requests in a client process: heads from the plan, bodies from a mapped file, TLS settings."""

from __future__ import annotations

import mmap
import ssl

from assay.load.plan import WorkerPlan

CACHED_BODY_BYTES = 64 << 10
CACHED_BODIES = 4_096


class RequestBytes:
    """(head, body) of each prompt. Small ones are kept; large ones are copied out of the map each time."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._entries = {True: plan.bodies, False: plan.opening_bodies}
        self._heads = {name: head.encode() for name, head in plan.heads.items()}
        with open(plan.bodies_path, "rb") as stream:
            self._bodies = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
        self._cache: dict[tuple[bool, int], tuple[bytes, bytes]] = {}

    def of(self, measured: bool, prompt: int) -> tuple[bytes, bytes]:
        """Head (it holds the key: for the socket only) and body of one request."""
        request = self._cache.get((measured, prompt))
        if request is None:
            entry = self._entries[measured][prompt]
            head = self._heads[entry.endpoint] + b"%d\r\n\r\n" % entry.length
            request = head, self._bodies[entry.offset : entry.offset + entry.length]
            if entry.length <= CACHED_BODY_BYTES and len(self._cache) < CACHED_BODIES:
                self._cache[measured, prompt] = request
        return request


def tls_context(plan: WorkerPlan) -> ssl.SSLContext:
    """Verified TLS, HTTP/1.1 only; ``ca_file`` instead of the system's authorities when it is given."""
    context = ssl.create_default_context(cafile=plan.ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
