"""Reports: SHA256SUMS, the RO-Crate, in-toto statements and the page of evidence cards."""

from assay.report.evidence import write_evidence

__all__ = ["write_evidence"]
