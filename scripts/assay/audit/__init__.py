"""Audit: walk from a figure back to its raw records, re-hash and recompute on the way."""
