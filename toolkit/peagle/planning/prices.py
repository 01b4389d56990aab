"""The price of an instance type in a region, from the catalogue."""

from __future__ import annotations

from peagle.catalog.tables import Instance, Price, nearest_region
from peagle.errors import Fix
from peagle.findings import Finding, warning
from peagle.planning.plan import PRICE_ELSEWHERE, Decision
from peagle.text import format_usd

REFERENCE_REGION = "us-east-1"
"""Its price is used where the catalogue has none for a region."""


def price_unknown(message: str, fix: str | Fix) -> Finding:
    """The warning that the price of the instance type is unknown."""
    return warning("price-unknown", "price", message, fix)


def _refresh(region: str) -> Fix:
    """How the catalogue gets the prices of a region."""
    command = ("peagle", "catalog", "refresh", "--prices", "--region", region)
    return Fix("get prices from AWS's price list", command)


def _prices_of(instance: Instance) -> dict[str, Price]:
    return {price.region: price for price in instance.prices}


def price_in(instance: Instance, region: str) -> Price | None:
    """The hourly price of one instance in ``region``, else in us-east-1, else ``None``."""
    by_region = _prices_of(instance)
    return by_region.get(region) or by_region.get(REFERENCE_REGION)


def price_of(instance: Instance, region: str) -> Decision[Price | None]:
    """As ``price_in``, with a finding unless the price is that of ``region``. A price of another
    region than us-east-1 is named, not used."""
    price = price_in(instance, region)
    if price is None:
        message = f"the catalogue has no price for {instance.type}"
        if by_region := _prices_of(instance):
            other = nearest_region(region, by_region)
            usd = format_usd(by_region[other].usd_per_hour)
            message += f" in {region}; in {other} it is {usd} an hour"
        return Decision(None, findings=(price_unknown(message, _refresh(region)),))
    if price.region == region:
        return Decision(price)
    message = f"the price of {instance.type} is for {REFERENCE_REGION}, not for {region}"
    finding = warning(PRICE_ELSEWHERE, "price", message, _refresh(region))
    return Decision(price, findings=(finding,))
