"""Reports: SHA256SUMS, the RO-Crate, in-toto statements and the pages of evidence cards."""
