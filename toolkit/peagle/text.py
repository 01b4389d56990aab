"""Text that every message formats alike: money, durations, sizes and counts."""

from __future__ import annotations

import math
import re

import click


def dollars(usd: float) -> str:
    """To the cent, with thousands apart: ``$1,519.10``."""
    return f"${usd:,.2f}"


def rate(usd: float) -> str:
    """A unit price as it is listed, with all of its digits: ``$0.023``."""
    return f"${usd:,.10g}"


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WRITTEN = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhd])")


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A click callback: the option's value as seconds, or a usage error."""
    if value is None:
        return None
    found = _WRITTEN.fullmatch(value)
    if not found:
        raise click.BadParameter(f"{value!r} is not a duration such as 90s, 10m, 12h or 2d")
    return int(found["number"]) * _UNITS[found["unit"]]


def written(seconds: float) -> str:
    """The shortest duration that ``duration`` reads and that is not shorter: ``200`` -> ``4m``."""
    for unit, size in reversed(_UNITS.items()):
        if seconds > size:
            return f"{math.ceil(seconds / size)}{unit}"
    return "1s"


def in_words(seconds: float) -> str:
    """``75`` -> ``1m 15s``."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


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


def requests(number: float) -> str:
    """``1 request``, ``8 requests``, ``100,000 requests``, ``4.5 requests``."""
    return f"{number:,.10g} request{'' if number == 1 else 's'}"


def at_a_time(load: float) -> str:
    """``8 requests at a time``."""
    return f"{requests(load)} at a time"


def size_text(size: int) -> str:
    """``13.8 GB``, ``14 MB``."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def sanitize(text: object, longest: int | None = None) -> str:
    """``text`` without what a terminal would obey, and at most ``longest`` characters of it."""
    return "".join(c for c in str(text) if c.isprintable())[:longest]
