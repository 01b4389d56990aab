"""Words that anybody who may write to the bucket has put there."""

from __future__ import annotations


def printable(text: object, longest: int | None = None) -> str:
    """``text`` without what a terminal would obey, and at most ``longest`` characters of it."""
    return "".join(c for c in str(text) if c.isprintable())[:longest]
