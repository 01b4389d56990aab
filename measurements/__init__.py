"""Benchmarks: the numbers in docs/architecture.md, measured here. See ``benchmarks/README.md``."""
