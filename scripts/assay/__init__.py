"""Assay: LLM-serving benchmark campaigns as one reproducible DAG.

The rooms import downward only:
``cli, stage`` -> ``audit, report, chart`` -> ``extract, verdict, gates`` ->
``load, session, rehearsal, probe, image`` -> ``metrics`` -> ``records, config, digest, vocab, errors``.
"""

__version__ = "0.1.0"
