"""A service-level objective: the longest mean times of requests, ``ttft=0.5,itl=0.02``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peagle.errors import UserError
from peagle.text import format_decimal


@dataclass(frozen=True)
class Slo:
    """The longest mean time to the first token, and between two outputs of a request, in seconds.

    ``None`` is no limit.
    """

    ttft: float | None = None
    itl: float | None = None

    def excess(self, ttft: float | None, itl: float | None) -> float | None:
        """The larger ratio of a time to its limit: at most 1 where the objective is met; ``None``
        if a limited time is unknown, 0 without limits."""
        limited = [(t, limit) for limit, t in ((self.ttft, ttft), (self.itl, itl)) if limit]
        ratios = [time / limit for time, limit in limited if time is not None]
        return max(ratios, default=0.0) if len(ratios) == len(limited) else None

    @property
    def text(self) -> str:
        """As on the command line; empty without limits."""
        limits = {"ttft": self.ttft, "itl": self.itl}
        return ",".join(
            f"{name}={format_decimal(value)}" for name, value in limits.items() if value
        )


def parse_slo(text: str) -> Slo:
    """The objective in ``ttft=0.5,itl=0.02``. Raises UserError for an unknown name, a name given
    twice, and a value that is not a positive number."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if name not in ("ttft", "itl") or name in limits or not 0 < seconds < math.inf:
            raise UserError(
                f"--slo {text[:60]}: {part.strip()[:40]!r} is not a limit in seconds",
                "use ttft=SECONDS, itl=SECONDS, or both with a comma, such as ttft=0.5,itl=0.02",
                code="invalid-slo",
            )
        limits[name] = seconds
    return Slo(**limits)
