"""Amounts of money in words, in one way everywhere."""

from __future__ import annotations


def dollars(usd: float) -> str:
    """To the cent, with thousands apart: ``$1,519.10``."""
    return f"${usd:,.2f}"


def rate(usd: float) -> str:
    """A unit price as it is listed, with all of its digits: ``$0.023``."""
    return f"${usd:,.10g}"
