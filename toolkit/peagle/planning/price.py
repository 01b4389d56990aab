"""What an instance costs, as far as the catalogue knows."""

from __future__ import annotations

from peagle.catalog.tables import Instance, Price
from peagle.findings import warning
from peagle.planning.decision import Choice

REFERENCE_REGION = "us-east-1"
"""Whose price stands in where the catalogue has none for a region."""

_FIX = "look it up before you deploy: https://aws.amazon.com/sagemaker/ai/pricing/"


def price_of(instance: Instance, region: str) -> Choice[Price | None]:
    """The price of one instance per hour in ``region``, else us-east-1's, else ``None``; anything
    but the first is a finding."""
    by_region = {price.region: price for price in instance.prices}
    if region in by_region:
        return Choice(by_region[region])
    if REFERENCE_REGION not in by_region:
        message = f"the catalogue has no price for {instance.type}"
        return Choice(None, findings=(warning("price-unknown", "price", message, _FIX),))
    message = f"the price of {instance.type} is that of {REFERENCE_REGION}, not of {region}"
    finding = warning("price-of-another-region", "price", message, _FIX)
    return Choice(by_region[REFERENCE_REGION], findings=(finding,))


def price_of_all(instance: Instance, count: int, region: str) -> float | None:
    """USD per hour of ``count`` instances together; ``None`` when the price is not known."""
    price = price_of(instance, region).value
    return None if price is None else round(price.usd_per_hour * count, 4)


def usd_per_million(usd_per_hour: float | None, tokens_per_second: float | None) -> float | None:
    """USD for a million output tokens of an endpoint that is busy all the time."""
    if usd_per_hour is None or tokens_per_second is None:
        return None
    return round(usd_per_hour / (tokens_per_second * 3600) * 1_000_000, 4)
