"""Prices of hosting: the Pricing API, read once a day, else the catalogue's snapshot; and quotas.

``$PEAGLE_HOME/online/amazon|sandbox/<region>.json`` keeps the prices of a day.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from peagle.aws.client import Aws
from peagle.aws.errors import QUOTA_SUFFIX, AccessDenied, Missing, quota_fix
from peagle.catalog.tables import InstanceTable, Price
from peagle.errors import Fix, PeagleError
from peagle.findings import Finding, error, note, warning
from peagle.store import home, read_json, write_json

SOURCE = "AWS Pricing API"
"""The source of a price, or ``sandbox``."""

PRICE_COMPONENT = "Hosting"
"""Filter: the same instance has other prices for notebooks and training."""

_HOST_USAGE = re.compile(r"(?:^|-)Host:")


@dataclass(frozen=True)
class PriceList:
    """On-demand USD per hour of hosting in a region, by instance type, on the day ``fetched``."""

    region: str
    fetched: date
    usd: Mapping[str, Annotated[float, Field(gt=0)]]
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


_LIST = TypeAdapter(PriceList)


def hosting_prices(aws: Aws) -> PriceList:
    """Prices of all instance types in the connection's region, read at most once a day."""
    with suppress(OSError, ValueError):
        kept = _LIST.validate_python(read_json(_file(aws)))
        if kept.usd and kept.fetched == today():
            return kept
    return fetch_prices(aws)


def fetch_prices(aws: Aws) -> PriceList:
    """As ``hosting_prices``, without the file."""
    fields = {"regionCode": aws.region, "component": PRICE_COMPONENT}
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fields.items()]
    rows = aws.items(
        "pricing", "get_products", "PriceList", ServiceCode="AmazonSageMaker", Filters=filters
    )
    listed = PriceList(aws.region, today(), prices_in(rows, aws.region), aws.record_scope or SOURCE)
    with suppress(OSError):
        write_json(_file(aws), _LIST.dump_python(listed, mode="json"))
    return listed


def today() -> date:
    return datetime.now(UTC).date()


def _file(aws: Aws) -> Path:
    """Where the prices are kept."""
    return home() / "online" / (aws.record_scope or "amazon") / f"{aws.region}.json"


def fresh_prices(aws: Aws) -> tuple[PriceList | None, tuple[Finding, ...]]:
    """Today's prices; ``None`` with a warning when AWS does not answer."""
    try:
        listed = hosting_prices(aws)
    except PeagleError as error:
        message = f"prices are the catalogue's snapshot: {error.message}"
        fix = Fix(error.fix or "try again later", tuple(error.command))
        return None, (warning("price-snapshot", "price", message, fix),)
    if listed.source == SOURCE:
        return listed, ()
    message = "the prices are the sandbox's, which repeats the catalogue"
    fix = Fix("use an AWS account for AWS's prices")
    return listed, (note("price-not-from-aws", "price", message, fix),)


def prices_in(products: Iterable[Any], region: str) -> dict[str, float]:
    """USD per hour by instance type, from rows of the Pricing API (each a JSON text). Of several
    rows for a type the one whose usage is ``Host:`` counts, else the most expensive."""
    rows: dict[str, list[tuple[bool, float]]] = {}
    for product in products:
        with suppress(LookupError, ValueError, TypeError, AttributeError, RecursionError):
            row = json.loads(product)
            attributes = row["product"]["attributes"]
            is_hosting = attributes.get("component") == PRICE_COMPONENT
            if not is_hosting or attributes.get("regionCode", region) != region:
                continue
            of_host = bool(_HOST_USAGE.search(attributes.get("usagetype", "")))
            for term in row["terms"].get("OnDemand", {}).values():
                for dimension in term["priceDimensions"].values():
                    usd = float(dimension["pricePerUnit"].get("USD", 0))
                    if usd > 0:
                        rows.setdefault(attributes["instanceName"], []).append((of_host, usd))
    return {name: max(prices)[1] for name, prices in sorted(rows.items())}


QUOTA_CODES = frozenset({"quota-enough", "quota-zero", "quota-too-small", "quota-unknown"})
"""Findings about a quota; each check of the account replaces them."""

_WHERE = "instance_type"


def endpoint_quota(
    aws: Aws, instance_type: str, code: str | None = None
) -> Mapping[str, Any] | None:
    """The quota for endpoints on that type, as Service Quotas describes it: the account's, else
    AWS's default; ``None`` when none has that name. ``code`` is tried first."""
    name = instance_type + QUOTA_SUFFIX

    def listed() -> Iterator[dict[str, Any]]:
        if code is not None:
            request = {"ServiceCode": "sagemaker", "QuotaCode": code}
            with suppress(Missing, AccessDenied):
                yield aws.call("service-quotas", "get_service_quota", **request)["Quota"]
        for listing in ("list_service_quotas", "list_aws_default_service_quotas"):
            yield from aws.items("service-quotas", listing, "Quotas", ServiceCode="sagemaker")

    # AWS returns no value while it computes a quota.
    entries = (entry for entry in listed() if entry.get("QuotaName") == name and "Value" in entry)
    return next(entries, None)


def quota_findings(
    aws: Aws, instance_type: str, count: int, instances: InstanceTable, *, at_plan: bool = False
) -> tuple[Finding, ...]:
    """What the account's quota means for ``count`` instances; ``at_plan``, a sufficient one is a
    note. What is in use is not counted: AWS refuses a request beyond the quota at once."""
    instance = next((row for row in instances.instances if row.type == instance_type), None)
    name = instance_type + QUOTA_SUFFIX
    try:
        quota = endpoint_quota(aws, instance_type, instance.quota_code if instance else None)
    except PeagleError as failed:
        usual = instance.quota_default if instance else None
        default = "" if usual is None else f"; new accounts have {usual:g}"
        message = f"cannot read the quota '{name}'{default}: {failed.message}"
        retry = Fix(failed.fix or "try again later", tuple(failed.command))
        return (warning("quota-unknown", _WHERE, message, retry),)
    if quota is None:
        message = f"Service Quotas lists no '{name}' in {aws.region}"
        fix = "look it up in the Service Quotas console; SageMaker rejects the endpoint if it is 0"
        return (warning("quota-unknown", _WHERE, message, fix),)
    limit = quota["Value"]
    value = f"the quota '{name}' is {limit:g}"
    if limit >= count:
        enough = note("quota-enough", _WHERE, value, "enough for this plan")
        return (enough,) if at_plan else ()
    raised = quota_fix(name, aws.region, quota.get("QuotaCode"), count, aws.in_sandbox)
    if limit <= 0:
        message = f"{value}: no endpoint may use {instance_type}"
        return (error("quota-zero", _WHERE, message, raised),)
    return (error("quota-too-small", _WHERE, f"{value}; the plan needs {count}", raised),)
