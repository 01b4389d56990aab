"""Warm starts: what an engine compiled, collected once and restored at later starts."""
