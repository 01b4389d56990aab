"""The price list of SageMaker hosting, as the catalogue knows it. moto has no such service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.catalog.tables import Instance, Price
from toolkit.sandbox.bundled import catalog

SERVICE = "AmazonSageMaker"
_PAGE = 100


def get_products(region: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """GetProducts: the products that every filter (TERM_MATCH) fits; each is a JSON text.

    ``region`` is where the price list is asked, not where the instance would be.
    """
    start = int(parameters.get("NextToken") or 0)
    end = start + min(int(parameters.get("MaxResults") or _PAGE), _PAGE)
    found = [
        json.dumps(product)
        for product in _products()
        if parameters.get("ServiceCode") == SERVICE and _fits(product, parameters)
    ]
    answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": found[start:end]}
    return {**answer, "NextToken": str(end)} if end < len(found) else answer


def _fits(product: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    attributes = {"ServiceCode": SERVICE, **product["product"]["attributes"]}
    return all(
        attributes.get(one["Field"]) == one["Value"] for one in parameters.get("Filters") or []
    )


def _products() -> Iterator[dict[str, Any]]:
    for instance in catalog().instances.instances:
        for price in instance.prices:
            yield _product(instance, price)


def _product(instance: Instance, price: Price) -> dict[str, Any]:
    """One row of the list, with the keys that the real one has for hosting."""
    sku = f"{instance.type}.{price.region}".upper().replace(".", "")
    dimension = {
        "unit": "Hrs",
        "description": f"${price.usd_per_hour} per Hosting {instance.type} hour",
        "pricePerUnit": {"USD": f"{price.usd_per_hour:.10f}"},
    }
    return {
        "product": {
            "productFamily": "ML Instance",
            "sku": sku,
            "attributes": {
                "servicecode": SERVICE,
                "component": "Hosting",
                "instanceName": instance.type,
                "instanceType": f"{instance.type}-Hosting",
                "regionCode": price.region,
                "gpu": str(instance.gpu_count),
                "vCpu": str(instance.vcpus),
                "memory": f"{instance.memory_gib} GiB",
                "usagetype": f"Host:{instance.type}",
            },
        },
        "serviceCode": SERVICE,
        "publicationDate": price.date.isoformat(),
        "terms": {"OnDemand": {f"{sku}.TERM": {"priceDimensions": {f"{sku}.RATE": dimension}}}},
    }
