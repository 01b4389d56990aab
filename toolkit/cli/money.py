"""Prices in words."""

from __future__ import annotations

from toolkit.money import dollars

HOURS_PER_DAY = 24
HOURS_PER_MONTH = 730
"""As AWS's own price calculator counts."""


def price_words(usd_per_hour: float | None, sandbox: bool = False, month: bool = False) -> str:
    """Per hour, per day, and with ``month`` per month of 730 hours; in the sandbox what it would
    cost on AWS."""
    if usd_per_hour is None:
        words = "not known"
    else:
        day, all_month = usd_per_hour * HOURS_PER_DAY, usd_per_hour * HOURS_PER_MONTH
        words = f"{dollars(usd_per_hour)} per hour, {dollars(day)} per day"
        words += f", {dollars(all_month)} per month" if month else ""
    return f"{words} on AWS (nothing in the sandbox)" if sandbox else words
