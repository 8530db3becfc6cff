"""The rehearsal engine: an OpenAI-compatible server over a simulated node, seeded and deterministic.

``profile`` (what a model on some hardware costs) and ``recipe`` (how it is served) go into ``cost``;
``replica`` and ``node`` schedule requests in simulated time and know no clock, no text and no socket.
``server`` runs a node against the wall clock, ``offline`` runs one as fast as it goes. The simulated clock
may run faster than the wall: see docs/rehearsal.md.
"""

from __future__ import annotations
