"""Writes docs/cli.md and docs/errors.md from the code: ``python -m tools.docs``."""
