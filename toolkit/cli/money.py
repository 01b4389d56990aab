"""Prices in words."""

from __future__ import annotations

HOURS_PER_DAY = 24


def price_words(usd_per_hour: float | None, sandbox: bool = False) -> str:
    """Per hour and per day; in the sandbox what it would cost on AWS."""
    if usd_per_hour is None:
        words = "not known"
    else:
        words = f"${usd_per_hour:.2f} per hour, ${usd_per_hour * HOURS_PER_DAY:.2f} per day"
    return f"{words} on AWS (nothing in the sandbox)" if sandbox else words
