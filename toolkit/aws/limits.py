"""What the account may use, and what it would pay: quotas and prices, looked up live."""

from __future__ import annotations

import json

from toolkit.aws.session import Aws
from toolkit.errors import CloudError


def quota_name(instance_type: str) -> str:
    """The name under which Service Quotas knows endpoints on that instance type."""
    return f"{instance_type} for endpoint usage"


def endpoint_quota(aws: Aws, instance_type: str) -> float | None:
    """How many instances of that type the account's endpoints may use; ``None``: not known.

    Looked up by name (codes differ between lists): first what applies to the account, then AWS's
    default.
    """
    name = quota_name(instance_type)
    for operation in ("list_service_quotas", "list_aws_default_service_quotas"):
        try:
            listed = aws.items("service-quotas", operation, "Quotas", ServiceCode="sagemaker")
            for quota in listed:
                if quota.get("QuotaName") == name:
                    return float(quota["Value"])
        except CloudError:
            continue
    return None


def hourly_price(aws: Aws, instance_type: str) -> float | None:
    """On-demand USD per hour of hosting on one instance, from the Pricing API; ``None``: unknown.

    ``component`` is part of the question: the same instance has other prices for notebooks.
    """
    wanted = {"instanceName": instance_type, "regionCode": aws.region, "component": "Hosting"}
    filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()]
    try:
        answer = aws.call("pricing", "get_products", ServiceCode="AmazonSageMaker", Filters=filters)
        return next((p for p in map(_price, answer["PriceList"]) if p), None)
    except (CloudError, ValueError):
        return None


def _price(product: str) -> float | None:
    terms = json.loads(product).get("terms", {}).get("OnDemand", {})
    for term in terms.values():
        for dimension in term.get("priceDimensions", {}).values():
            price = float(dimension.get("pricePerUnit", {}).get("USD", 0))
            if price:
                return price
    return None
