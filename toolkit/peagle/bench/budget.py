"""What a sweep may cost, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Callable

from peagle.errors import UserError
from peagle.text import format_usd


class BudgetExceeded(UserError, code="budget-too-small"):
    """The next row would cost more than the user allows."""


class Budget:
    """What a sweep may cost: ``usd`` in all, at ``usd_per_hour`` from its start. While an update of
    an endpoint runs, the instances of both revisions cost: ``start_factor`` 2. ``before`` are the
    USD of earlier runs, ``end_seconds`` the start that must remain possible at the end."""

    def __init__(
        self,
        usd: float | None,
        usd_per_hour: float | None,
        start_factor: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        before: float = 0.0,
        end_seconds: float = 0.0,
    ) -> None:
        self._usd, self._per_hour, self._clock = usd, usd_per_hour or 0.0, clock
        self._before, self._end = before, end_seconds
        self._begun = clock()
        self._start_factor, self._more = start_factor, 0.0

    @property
    def spent(self) -> float:
        """USD since the start, and of earlier runs."""
        seconds = self._clock() - self._begun + self._more
        return self._before + seconds / 3600 * self._per_hour

    def cost(self, start_seconds: float, row_seconds: float) -> float:
        """USD of a start and of rows."""
        seconds = self._start_factor * start_seconds + row_seconds
        return seconds / 3600 * self._per_hour

    def started(self, seconds: float) -> None:
        """A start took so long."""
        self._more += (self._start_factor - 1) * seconds

    def require(self, start_seconds: float, row_seconds: float, what: str) -> None:
        """Raise BudgetExceeded unless a start and a row of these lengths, and the start at the
        end, are within the limit."""
        if self._usd is None:
            return
        needed = self.spent + self.cost(start_seconds + self._end, row_seconds)
        if needed > self._usd:
            raise BudgetExceeded(
                f"with {what} the sweep would cost about {format_usd(needed)}, and --max-cost is "
                f"{format_usd(self._usd)}",
                "raise --max-cost, or measure fewer settings, smaller loads or shorter workloads",
            )
