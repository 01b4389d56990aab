"""A service-level objective: the longest mean times of requests, ``ttft=0.5,itl=0.02``."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peagle.errors import UserError
from peagle.text import format_decimal

_TIMES = ("ttft", "itl")
_FIX = "use ttft=SECONDS, itl=SECONDS, or both with a comma, such as ttft=0.5,itl=0.02"


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
        ratios = [0.0]
        for limit, time in ((self.ttft, ttft), (self.itl, itl)):
            if limit is not None and time is None:
                return None
            if limit is not None and time is not None:
                ratios.append(time / limit)
        return max(ratios)

    @property
    def text(self) -> str:
        """As on the command line; empty without limits."""
        limits = {"ttft": self.ttft, "itl": self.itl}
        return ",".join(
            f"{name}={format_decimal(value)}" for name, value in limits.items() if value is not None
        )


def parse_slo(text: str) -> Slo:
    """The objective in ``ttft=0.5,itl=0.02``. Raises UserError for an unknown name, a name given
    twice, and a value that is not a positive number."""
    objectives: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in _TIMES:
            raise UserError(
                f"--slo {text[:60]}: {name[:20]!r} is not ttft or itl", _FIX, code="invalid-slo"
            )
        if name in objectives:
            raise UserError(f"--slo {text[:60]}: {name} is given twice", _FIX, code="invalid-slo")
        if not value:
            raise UserError(f"--slo {text[:60]}: {name} has no value", _FIX, code="invalid-slo")
        objectives[name] = _seconds(value)
        if not 0 < objectives[name] < math.inf:
            raise UserError(
                f"--slo {name}={value[:20]} is not a positive number of seconds",
                _FIX,
                code="invalid-slo",
            )
    return Slo(**objectives)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
