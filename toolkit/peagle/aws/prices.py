"""Prices of hosting: the Pricing API, cached for a day, else the catalogue's snapshot.

    $PEAGLE_HOME/online/<owner>/<region>/<name>.json

The cache also holds quotas. ``owner`` is an account id, ``amazon`` for what all accounts share,
``sandbox``, or a hash of another endpoint URL. A file that is damaged, of another version, older
than a day or from the future is ignored, and a file that cannot be written is skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from peagle.aws.client import Aws
from peagle.catalog.tables import InstanceTable, Price
from peagle.errors import Fix, PeagleError
from peagle.findings import Finding, note, warning
from peagle.store import SANDBOX, home, read_json, write_json
from peagle.text import json_object

DAY_SECONDS = 24 * 3600.0

_FORMAT = 1
_UNSAFE = re.compile(r"[^A-Za-z0-9.\-]")


class DayCache:
    """Answers of AWS for one owner and region."""

    def __init__(self, owner: str, region: str) -> None:
        self._folder = home() / "online" / _UNSAFE.sub("_", owner) / _UNSAFE.sub("_", region)

    def get(self, name: str) -> tuple[Any, float] | None:
        """The value stored as ``name`` in the last 24 hours, and its time (epoch seconds)."""
        try:
            document = read_json(self._file(name))
            fetched = float(document["fetched"])
            good = document["format"] == _FORMAT and 0 <= time.time() - fetched < DAY_SECONDS
            return (document["value"], fetched) if good else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, name: str, value: Any) -> float:
        """Store ``value`` as ``name``; returns its time (epoch seconds)."""
        fetched = time.time()
        with contextlib.suppress(OSError, ValueError):  # half of a surrogate pair in a name
            document = {"format": _FORMAT, "fetched": fetched, "value": value}
            write_json(self._file(name), document)
        return fetched

    def _file(self, name: str) -> Path:
        return self._folder / f"{_UNSAFE.sub('_', name)}.json"


def answer_cache(aws: Aws, service: str, shared: bool = False) -> DayCache:
    """The cache of answers for this account, or of ``shared`` ones, the same for all accounts.

    Answers of an endpoint URL that is not Amazon's are kept apart by a hash of it.
    """
    url = str(aws.client(service).meta.endpoint_url)
    other = "" if ".amazonaws." in url else hashlib.sha256(url.encode()).hexdigest()[:12]
    return DayCache(aws.own_scope or other or ("amazon" if shared else aws.account), aws.region)


SOURCE = "AWS Pricing API"
STAND_IN = "a stand-in for the AWS Pricing API"
"""The source of a price: Amazon, ``sandbox``, or another substitute."""

PRICE_SNAPSHOT = "price-snapshot"
"""Finding: prices are the catalogue's, because AWS did not answer."""

NOT_LISTED = "price-not-listed"
"""Finding: AWS has prices for the region, but none for the instance type."""

NOT_FROM_AWS = "price-not-from-aws"
"""Finding: the prices are the sandbox's, or another substitute's."""

PRICE_COMPONENT = "Hosting"
"""Filter: the same instance has other prices for notebooks and training."""

_CACHED = "hosting-prices"
_HOST_USAGE = re.compile(r"(?:^|-)Host:")


@dataclass(frozen=True)
class PriceList:
    """On-demand USD per hour of hosting in a region, by instance type, on the day ``fetched``."""

    region: str
    fetched: date
    usd: Mapping[str, float]
    source: str = SOURCE

    def price(self, instance_type: str) -> Price | None:
        """The price of one instance; ``None`` when it is not listed."""
        usd = self.usd.get(instance_type)
        if usd is None:
            return None
        return Price(usd_per_hour=usd, region=self.region, date=self.fetched, source=self.source)

    def applied_to(self, table: InstanceTable) -> InstanceTable:
        """The table with these prices; types that are not listed keep theirs."""
        priced = []
        for instance in table.instances:
            if fresh := self.price(instance.type):
                prices = {price.region: price for price in (*instance.prices, fresh)}
                instance = instance.model_copy(update={"prices": tuple(prices.values())})
            priced.append(instance)
        return table.model_copy(update={"instances": tuple(priced)})


@dataclass(frozen=True)
class FreshPrices:
    """A table of instances with today's prices, and AWS's list, if it answered."""

    table: InstanceTable
    listed: PriceList | None
    findings: tuple[Finding, ...] = ()


def hosting_prices(aws: Aws) -> PriceList:
    """Prices of all instance types in the connection's region, read at most once a day.

    Raises CloudError and UserError.
    """
    kept = answer_cache(aws, "pricing", shared=True).get(_CACHED)
    usd = _checked(kept[0]) if kept else None
    return _price_list(aws, usd, kept[1]) if kept and usd else fetch_prices(aws)


def fetch_prices(aws: Aws) -> PriceList:
    """As ``hosting_prices``, without the cache."""
    usd = prices_in(_products(aws, regionCode=aws.region), aws.region)
    return _price_list(aws, usd, answer_cache(aws, "pricing", shared=True).put(_CACHED, usd))


def _products(aws: Aws, **attributes: str) -> Iterator[Any]:
    """The rows of the Pricing API about hosting, with these attributes."""
    fields = {**attributes, "component": PRICE_COMPONENT}
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fields.items()]
    return aws.items(
        "pricing", "get_products", "PriceList", ServiceCode="AmazonSageMaker", Filters=filters
    )


def _attributes(row: Any) -> Mapping[str, Any]:
    """The attributes of a row of the Pricing API; empty if it has none."""
    product = json_object(row).get("product")
    found = product.get("attributes") if isinstance(product, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _price_list(aws: Aws, usd: Mapping[str, float], fetched: float) -> PriceList:
    return PriceList(aws.region, datetime.fromtimestamp(fetched, UTC).date(), usd, _source(aws))


def _source(aws: Aws) -> str:
    is_amazon = ".amazonaws." in str(aws.client("pricing").meta.endpoint_url)
    return SOURCE if is_amazon else aws.own_scope or STAND_IN


def hourly_price(aws: Aws, instance_type: str) -> Price | None:
    """The price of one instance in the connection's region; ``None`` when unavailable."""
    try:
        return hosting_prices(aws).price(instance_type)
    except PeagleError:
        return None


def fresh_prices(aws: Aws, table: InstanceTable) -> FreshPrices:
    """The table with today's prices of the connection's region.

    When AWS does not answer, the table as it is, and a warning with the reason.
    """
    try:
        listed = hosting_prices(aws)
    except PeagleError as error:
        days = sorted(price.date for instance in table.instances for price in instance.prices)
        of = f" of {days[-1].isoformat()}" if days else ""
        message = f"prices are the catalogue's snapshot{of}: {error.message}"
        fix = Fix(error.fix or "try again later", tuple(error.command))
        return FreshPrices(table, None, (warning(PRICE_SNAPSHOT, "price", message, fix),))
    findings: tuple[Finding, ...] = ()
    if listed.source != SOURCE:
        sandbox = "the sandbox, which repeats the catalogue"
        source = sandbox if listed.source == SANDBOX else STAND_IN
        message = f"these are not AWS's prices; they come from {source}"
        fix = Fix("use an AWS account for AWS's prices")
        findings = (note(NOT_FROM_AWS, "price", message, fix),)
    return FreshPrices(listed.applied_to(table), listed, findings)


def unlisted_findings(listed: PriceList | None, instance_type: str) -> tuple[Finding, ...]:
    """The warning that AWS lists other types in the region, but not this one."""
    if listed is None or not listed.usd or instance_type in listed.usd:
        return ()
    message = f"AWS has no price for hosting on {instance_type} in {listed.region}"
    fix = "it may not be offered there: choose another --region or --instance-type"
    return (warning(NOT_LISTED, "price", message, fix),)


def prices_in(products: Iterable[Any], region: str) -> dict[str, float]:
    """USD per hour by instance type, from rows of the Pricing API (each a JSON text).

    Of several rows for a type the one whose usage is ``Host:`` counts, else the most expensive.
    """
    found: dict[str, list[tuple[bool, float]]] = {}
    for row in products:
        try:
            attributes, usd = _attributes(row), _usd(json_object(row))
        except (ValueError, TypeError, AttributeError):
            continue
        is_hosting = attributes.get("component") == PRICE_COMPONENT
        if usd and is_hosting and attributes.get("regionCode", region) == region:
            of_host = bool(_HOST_USAGE.search(str(attributes.get("usagetype", ""))))
            found.setdefault(str(attributes.get("instanceName", "")), []).append((of_host, usd))
    return {name: max(rows)[1] for name, rows in sorted(found.items()) if name}


def _usd(product: Mapping[str, Any]) -> float | None:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            usd = float(dimension.get("pricePerUnit", {}).get("USD", 0))
            if 0 < usd < math.inf:
                return usd
    return None


def _checked(value: Any) -> dict[str, float] | None:
    """A cached list, if it is valid."""
    if not isinstance(value, dict) or not value:
        return None
    good = all(isinstance(usd, (int, float)) and usd > 0 for usd in value.values())
    return {str(name): float(usd) for name, usd in value.items()} if good else None
