"""What the GPUs of a measurement cost, from the catalogue or as the user says."""

from __future__ import annotations

from dataclasses import replace

from peagle.bench.models import BenchResult
from peagle.catalog.schema import Catalog
from peagle.planning.prices import price_of
from peagle.planning.runtime import DEFAULT_REGION
from peagle.text import usd_per_million


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
