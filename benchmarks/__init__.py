"""Benchmarks: the numbers in the README, measured on this machine. See ``benchmarks/README.md``."""
