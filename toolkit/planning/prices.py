"""What an instance costs, as far as the catalogue knows."""

from __future__ import annotations

from toolkit.catalog.models import Instance, Price
from toolkit.findings import warning
from toolkit.planning.choice import Choice

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


def cost_order(instance: Instance, region: str) -> tuple[bool, float, str]:
    """Sorts instances from cheap to dear, those without a price last."""
    price = price_of(instance, region).value
    return (price is None, price.usd_per_hour if price else 0.0, instance.type)
