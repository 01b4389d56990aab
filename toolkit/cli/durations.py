"""Durations as people write them: ``90s``, ``10m``, ``12h``, ``2d``."""

from __future__ import annotations

import math
import re

import click

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
