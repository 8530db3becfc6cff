"""Audit: walk from a figure back to its raw records, re-hash and recompute on the way."""

from assay.audit.outcome import AuditReport
from assay.audit.target import audit_target, verify_campaign, verify_results

__all__ = ["AuditReport", "audit_target", "verify_campaign", "verify_results"]
