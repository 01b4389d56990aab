"""Prices: of the GPUs of a measurement, and the budget of a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from peagle.bench.models import BenchResult
from peagle.catalog.schema import Catalog
from peagle.errors import UserError
from peagle.planning.prices import price_of
from peagle.planning.runtime import DEFAULT_REGION
from peagle.text import format_usd, usd_per_million


def price_of_gpus(
    catalog: Catalog, gpu: str, count: int, region: str = DEFAULT_REGION
) -> tuple[float, str] | None:
    """USD per hour of so many of these GPUs, and where it comes from: their share of the instance
    type on which they are cheapest, in ``region``, else in any. ``None`` where the catalogue has no
    price."""
    found = []
    for instance in catalog.instances.instances:
        elsewhere = min(instance.prices, key=lambda one: one.usd_per_hour, default=None)
        price = price_of(instance, region).value or elsewhere
        if instance.gpu == gpu and instance.gpu_count >= count and price is not None:
            share = count / instance.gpu_count
            found.append((price.usd_per_hour * share, share, instance.type, price))
    if not found:
        return None
    usd, share, name, price = min(found, key=lambda one: (one[0], one[2]))
    part = "" if share == 1 else f"1/{1 / share:g} of "
    return usd, f"{part}{name} in {price.region}, {price.date.isoformat()}"


def with_price(result: BenchResult, usd_per_hour: float, source: str) -> BenchResult:
    """The result at this price."""
    rows = tuple(
        replace(
            row,
            usd_per_million_tokens=usd_per_million(usd_per_hour, row.tokens_per_second.value),
        )
        for row in result.rows
    )
    return replace(result, rows=rows, usd_per_hour=usd_per_hour, price_source=source)


def priced_result(
    result: BenchResult, catalog: Catalog, usd_per_hour: float | None = None
) -> BenchResult:
    """The result at this price, else at its own, else at the catalogue's for its GPUs."""
    if usd_per_hour is not None:
        return with_price(result, usd_per_hour, "given")
    server = result.server
    if result.usd_per_hour is not None or server.gpu is None:
        return result
    found = price_of_gpus(catalog, server.gpu, server.tensor_parallel_size or 1)
    return with_price(result, *found) if found else result


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
