"""Prices of hosting: the Pricing API, else the catalogue's snapshot; and quotas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import QUOTA_SUFFIX, AccessDenied, Missing, quota_fix
from peagle.catalog.tables import InstanceTable, Price
from peagle.errors import Fix, PeagleError
from peagle.findings import Finding, error, note, warning

SOURCE = "AWS Pricing API"
"""The source of a price, or ``sandbox``."""

PRICE_COMPONENT = "Hosting"
"""Filter: the same instance has other prices for notebooks and training."""

_HOST_USAGE = re.compile(r"(?:^|-)Host:")


def hosting_prices(aws: Aws) -> dict[str, Price]:
    """Instance type -> on-demand price of one instance, as AWS lists it for hosting in the
    connection's region."""
    fields = {"regionCode": aws.region, "component": PRICE_COMPONENT}
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fields.items()]
    rows = aws.items(
        "pricing", "get_products", "PriceList", ServiceCode="AmazonSageMaker", Filters=filters
    )
    today, source = datetime.now(UTC).date(), aws.record_scope or SOURCE
    return {
        name: Price(usd_per_hour=usd, region=aws.region, date=today, source=source)
        for name, usd in prices_in(rows, aws.region).items()
    }


def with_prices(table: InstanceTable, listed: Mapping[str, Price]) -> InstanceTable:
    """The table with these prices; types that are not listed keep theirs."""
    priced = []
    for instance in table.instances:
        if fresh := listed.get(instance.type):
            prices = {price.region: price for price in (*instance.prices, fresh)}
            instance = instance.model_copy(update={"prices": tuple(prices.values())})
        priced.append(instance)
    return table.model_copy(update={"instances": tuple(priced)})


def fresh_prices(aws: Aws) -> tuple[dict[str, Price], tuple[Finding, ...]]:
    """Today's prices; none, with a warning, when AWS does not answer."""
    try:
        listed = hosting_prices(aws)
    except PeagleError as error:
        message = f"prices are the catalogue's snapshot: {error.message}"
        fix = Fix(error.fix or "try again later", tuple(error.command))
        return {}, (warning("price-snapshot", "price", message, fix),)
    if all(price.source == SOURCE for price in listed.values()):
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
