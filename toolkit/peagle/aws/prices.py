"""Prices of hosting: the Pricing API, read once a day, else the catalogue's snapshot; and quotas.

``$PEAGLE_HOME/online/amazon|sandbox/<region>.json`` keeps the prices of a day.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
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


@dataclass(frozen=True)
class FreshPrices:
    """A table of instances with today's prices, and AWS's list, if it answered."""

    table: InstanceTable
    listed: PriceList | None
    findings: tuple[Finding, ...] = ()


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


def fresh_prices(aws: Aws, table: InstanceTable) -> FreshPrices:
    """The table with today's prices; when AWS does not answer, as it is, with a warning."""
    try:
        listed = hosting_prices(aws)
    except PeagleError as error:
        days = [price.date for instance in table.instances for price in instance.prices]
        of = f" of {max(days).isoformat()}" if days else ""
        message = f"prices are the catalogue's snapshot{of}: {error.message}"
        fix = Fix(error.fix or "try again later", tuple(error.command))
        return FreshPrices(table, None, (warning("price-snapshot", "price", message, fix),))
    findings: tuple[Finding, ...] = ()
    if listed.source != SOURCE:
        message = "the prices are the sandbox's, which repeats the catalogue"
        fix = Fix("use an AWS account for AWS's prices")
        findings = (note("price-not-from-aws", "price", message, fix),)
    return FreshPrices(listed.applied_to(table), listed, findings)


def unlisted_findings(listed: PriceList | None, instance_type: str) -> tuple[Finding, ...]:
    """The warning that AWS lists other types in the region, but not this one."""
    if listed is None or not listed.usd or instance_type in listed.usd:
        return ()
    message = f"AWS has no price for hosting on {instance_type} in {listed.region}"
    fix = "it may not be offered there: choose another --region or --instance-type"
    return (warning("price-not-listed", "price", message, fix),)


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


QUOTA_CODES = frozenset(
    {"quota-enough", "quota-zero", "quota-too-small", "quota-in-use", "quota-unknown"}
)
"""Findings about a quota; each check of the account replaces them."""

MAX_ENDPOINTS = 200
"""Instances in use are counted for at most this many endpoints."""

_WHERE = "instance_type"


@dataclass(frozen=True)
class Quota:
    """How many instances of a type all endpoints of the account may have together, in one region.
    ``code`` identifies it in a request for an increase."""

    name: str
    value: float
    code: str | None = None


@dataclass(frozen=True)
class QuotaNeed:
    """What a deployment needs: ``count`` instances in the end, and ``more`` than the running ones
    in the meantime, beside those of ``endpoint``."""

    instance_type: str
    count: int
    more: int
    endpoint: str | None = None


def endpoint_quota(aws: Aws, instance_type: str, code: str | None = None) -> Quota | None:
    """The quota for endpoints on that type: the account's, else AWS's default; ``None`` when
    Service Quotas lists no such name. ``code`` is tried first."""
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
    entry = next(entries, None)
    return Quota(name, entry["Value"], entry.get("QuotaCode")) if entry else None


def instances_in_use(aws: Aws, instance_type: str, but: str | None = None) -> dict[str, int]:
    """Instances of that type by endpoint (without the endpoint ``but``), running or requested,
    whichever are more, of the first ``MAX_ENDPOINTS`` endpoints. Raises CloudError."""
    listed = aws.items("sagemaker", "list_endpoints", "Endpoints")
    used: Counter[str] = Counter()
    for entry in islice(listed, MAX_ENDPOINTS):
        name = entry["EndpointName"]
        if name == but or entry.get("EndpointStatus") in ("Failed", "Deleting"):
            continue
        try:
            endpoint = aws.call("sagemaker", "describe_endpoint", EndpointName=name)
            config = aws.call(
                "sagemaker", "describe_endpoint_config",
                EndpointConfigName=endpoint["EndpointConfigName"],
            )  # fmt: skip
        except Missing:
            continue
        running = {v["VariantName"]: v for v in endpoint.get("ProductionVariants", ())}
        for variant in config["ProductionVariants"]:
            if variant.get("InstanceType") == instance_type:
                live = running.get(variant["VariantName"], {})
                counts = (live.get("CurrentInstanceCount"), live.get("DesiredInstanceCount"))
                most = max(count or 0 for count in counts)
                used[name] += most or variant.get("InitialInstanceCount") or 1
    return dict(used)


def quota_findings(
    aws: Aws, need: QuotaNeed, instances: InstanceTable, *, at_plan: bool = False
) -> tuple[Finding, ...]:
    """What the account's quota means for ``need``; ``at_plan``, a sufficient one is a note."""
    instance = next((row for row in instances.instances if row.type == need.instance_type), None)
    name = need.instance_type + QUOTA_SUFFIX
    try:
        code = instance.quota_code if instance else None
        quota = endpoint_quota(aws, need.instance_type, code)
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
    used: dict[str, int] = {}
    if quota.value >= need.count:
        try:
            used = instances_in_use(aws, need.instance_type, need.endpoint)
        except PeagleError:  # what is in use may not be listed
            return ()
    findings = tuple(compare_quota(quota, used, need, aws.region, aws.in_sandbox))
    if findings or not at_plan:
        return findings
    message = f"the quota '{quota.name}' is {quota.value:g}, and {_in_use(used)}"
    return (note("quota-enough", _WHERE, message, "enough for this plan"),)


def quotas_at_plan(
    aws: Aws, instance_type: str, count: int, instances: InstanceTable
) -> tuple[Finding, ...]:
    """What the quota means for a plan of ``count`` new instances. Instances in use now may be free
    when the plan is deployed, so they are a warning here."""
    findings = quota_findings(aws, QuotaNeed(instance_type, count, count), instances, at_plan=True)
    warned = {"level": "warning"}
    return tuple(f.model_copy(update=warned) if f.code == "quota-in-use" else f for f in findings)


def compare_quota(
    quota: Quota, used: Mapping[str, int], need: QuotaNeed, region: str, in_sandbox: bool = False
) -> Iterator[Finding]:
    """What ``quota`` means for ``need`` while endpoints use so many instances of it."""
    busy = sum(used.values())
    free = max(int(quota.value) - busy, 0)
    value = f"the quota '{quota.name}' is {quota.value:g}"
    needed = max(need.count, busy + need.more)
    fix = quota_fix(quota.name, region, quota.code, needed, in_sandbox)
    if quota.value <= 0:
        yield error("quota-zero", _WHERE, f"{value}: no endpoint may use {need.instance_type}", fix)
    elif quota.value < need.count:
        yield error("quota-too-small", _WHERE, f"{value}; the plan needs {need.count}", fix)
    elif free < need.more:
        message = f"{value} and {_in_use(used)}, so {free} of the {need.more} needed are available"
        fix = Fix(f"remove an endpoint that is not needed, or {fix.sentence}", fix.command)
        yield error("quota-in-use", _WHERE, message, fix)


def _in_use(used: Mapping[str, int]) -> str:
    names = sorted(used)
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{sum(used.values())} are in use by {shown}" if used else "none is in use"
