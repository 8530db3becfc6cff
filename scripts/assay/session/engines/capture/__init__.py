"""Command-line parsers read out of released wheels, without installing or importing them.

`python -m assay.session.engines.capture vllm==0.33.0 sglang==0.5.23` writes parsers/<engine>-<version>.json.
"""
