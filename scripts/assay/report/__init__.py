"""Reports: SHA256SUMS, the RO-Crate, in-toto statements and the page of evidence cards."""
