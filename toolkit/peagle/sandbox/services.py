"""AWS services that moto lacks: SageMaker's quotas and prices, tags of scaling targets.

Prices of SageMaker hosting are those of the catalogue, which a client may extend with instance
types of its own (``client.add_instances``). On AWS the quota of most GPU types starts at
0; here each starts at 2, so that an endpoint can be updated (blue and green at the same time), and
a test may set it (``client.set_quota``). A request for an increase is granted immediately.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from peagle.catalog.tables import Instance, Price
from peagle.request_validation.model import service_model
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.state import catalog

PRICE_SERVICE = "AmazonSageMaker"
QUOTA_SERVICE = "sagemaker"
DEFAULT_QUOTA = 2.0
_LARGEST_QUOTA = 1_000_000
_PAGE = 100

_quotas: dict[tuple[str, str], float] = {}
"""(Region, instance type) -> the quota, where it is not the default."""

_added: dict[str, Instance] = {}
"""Instance type -> its entry in the catalogue of a client."""


def _instances() -> Iterable[Instance]:
    """The bundled catalogue's instance types and those that clients added."""
    return ({one.type: one for one in catalog().instances.instances} | _added).values()


def gpu_count(instance_type: str) -> int:
    """The GPUs of one instance of this type; 0 where neither the catalogue nor a client has it."""
    return next((one.gpu_count for one in _instances() if one.type == instance_type), 0)


def add_instances(entries: Iterable[Mapping[str, Any]]) -> None:
    """Add instance types, each as ``instances.yaml`` describes it; they replace earlier ones."""
    found = [Instance.model_validate(entry, strict=False) for entry in entries]
    _added.update((instance.type, instance) for instance in found)
    _forget_types()


def _forget_types() -> None:
    endpoint_types.cache_clear()
    _codes.cache_clear()


def get_products(region: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """GetProducts: the products that match every filter (TERM_MATCH), each as a JSON string.

    ``region`` is the endpoint of the price list, not the region of the instance.
    """
    found = [
        json.dumps(product)
        for product in _products()
        if parameters.get("ServiceCode") == PRICE_SERVICE and _fits(product, parameters)
    ]
    return {"FormatVersion": "aws_v1", **_page("PriceList", found, parameters)}


def _fits(product: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    attributes = {"ServiceCode": PRICE_SERVICE, **product["product"]["attributes"]}
    return all(
        attributes.get(one["Field"]) == one["Value"] for one in parameters.get("Filters") or []
    )


def _products() -> Iterator[dict[str, Any]]:
    for instance in _instances():
        for price in instance.prices:
            yield _product(instance, price)


def _product(instance: Instance, price: Price) -> dict[str, Any]:
    """A product of the price list, with the keys that AWS has for hosting."""
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
                "servicecode": PRICE_SERVICE,
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
        "serviceCode": PRICE_SERVICE,
        "publicationDate": price.date.isoformat(),
        "terms": {"OnDemand": {f"{sku}.TERM": {"priceDimensions": {f"{sku}.RATE": dimension}}}},
    }


class NoSuchQuota(Exception):
    """The service's NoSuchResourceException."""

    code = "NoSuchResourceException"


class QuotaRefused(NoSuchQuota):
    """The service's IllegalArgumentException."""

    code = "IllegalArgumentException"


def quota_value(instance_type: str, region: str) -> float:
    """How many instances of that type all endpoints of a region may have in total."""
    return _quotas.get((region, instance_type), DEFAULT_QUOTA)


def set_quota(instance_type: str, value: float, region: str) -> None:
    """Set a quota. Raises NoSuchQuota for an instance type that endpoints cannot have, QuotaRefused
    for a value that is not a number of instances."""
    if not 0 <= value <= _LARGEST_QUOTA:  # false for NaN
        raise QuotaRefused(f"a quota is a number from 0 to {_LARGEST_QUOTA:,}, not {value}")
    if instance_type not in _codes():
        raise NoSuchQuota(f"endpoints cannot use the instance type {instance_type}")
    _quotas[region, instance_type] = value


def changed_quotas() -> list[dict[str, Any]]:
    """The quotas that are not the default, by region and instance type."""
    return [
        {"region": region, "instance_type": instance_type, "value": value}
        for (region, instance_type), value in sorted(_quotas.items())
    ]


def reset() -> None:
    """Forget the quotas and instance types that clients set."""
    _quotas.clear()
    _added.clear()
    _forget_types()


def request_increase(region: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """RequestServiceQuotaIncrease, granted; ``None`` for other services, which moto answers."""
    found = _get_quota(region, parameters, applied=True)
    if found is None:
        return None
    quota, desired = found["Quota"], float(parameters["DesiredValue"])
    if desired <= quota["Value"]:
        raise QuotaRefused("You must provide a quota value greater than the current quota value.")
    set_quota(quota["QuotaName"].partition(" ")[0], desired, region)
    kept = ("ServiceCode", "ServiceName", "QuotaArn", "QuotaCode", "QuotaName", "Unit")
    granted = {"Id": hashlib.sha256(repr(parameters).encode()).hexdigest()[:40]}
    granted |= {"Status": "APPROVED", **{key: quota[key] for key in kept}}
    return {"RequestedQuota": {**granted, "DesiredValue": desired}}


def _list_quotas(
    region: str, parameters: Mapping[str, Any], *, applied: bool
) -> dict[str, Any] | None:
    """The applied or default quotas; ``None`` for other services, which moto answers."""
    if parameters.get("ServiceCode") != QUOTA_SERVICE:
        return None
    quotas = (_quota(region, *pair, applied=applied) for pair in sorted(_codes().items()))
    return _page("Quotas", list(quotas), parameters)


def _get_quota(
    region: str, parameters: Mapping[str, Any], *, applied: bool
) -> dict[str, Any] | None:
    """One applied or default quota; ``None`` for other services, which moto answers."""
    if parameters.get("ServiceCode") != QUOTA_SERVICE:
        return None
    for instance_type, code in _codes().items():
        if code == parameters.get("QuotaCode"):
            return {"Quota": _quota(region, instance_type, code, applied=applied)}
    raise NoSuchQuota("The request failed because the specified quota does not exist.")


def _page(key: str, items: list[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The page of ``items`` that NextToken and MaxResults select."""
    start = int(parameters.get("NextToken") or 0)
    end = start + min(int(parameters.get("MaxResults") or _PAGE), _PAGE)
    return {key: items[start:end], **({"NextToken": str(end)} if end < len(items) else {})}


def _quota(region: str, instance_type: str, code: str, *, applied: bool) -> dict[str, Any]:
    return {
        "ServiceCode": QUOTA_SERVICE,
        "ServiceName": "Amazon SageMaker",
        "QuotaArn": f"arn:aws:servicequotas:{region}:{ACCOUNT}:{PRICE_SERVICE}/{code}",
        "QuotaCode": code,
        "QuotaName": f"{instance_type} for endpoint usage",
        "Value": quota_value(instance_type, region) if applied else DEFAULT_QUOTA,
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


@functools.cache
def endpoint_types() -> tuple[str, ...]:
    """The instance types that endpoints may have: botocore's and the catalogue's, which may be
    newer."""
    model = service_model(QUOTA_SERVICE)
    known = model.shape_for("ProductionVariantInstanceType").enum
    return tuple(dict.fromkeys([*known, *(one.type for one in _instances())]))


@functools.cache
def _codes() -> dict[str, str]:
    """Every instance type -> its quota code.

    A code that the catalogue does not know is derived from the name, so that it is stable.
    """
    known = {one.type: one.quota_code for one in _instances()}
    return {
        name: known.get(name) or f"L-{hashlib.sha256(name.encode()).hexdigest()[:8].upper()}"
        for name in endpoint_types()
    }


OPERATIONS: dict[str, Callable[[str, Mapping[str, Any]], dict[str, Any] | None]] = {
    "AWSPriceListService.GetProducts": get_products,
    # Application Auto Scaling: Terraform requires a response.
    "AnyScaleFrontendService.ListTagsForResource": lambda region, parameters: {"Tags": {}},
    "ServiceQuotasV20190624.GetAWSDefaultServiceQuota": partial(_get_quota, applied=False),
    "ServiceQuotasV20190624.GetServiceQuota": partial(_get_quota, applied=True),
    "ServiceQuotasV20190624.ListAWSDefaultServiceQuotas": partial(_list_quotas, applied=False),
    "ServiceQuotasV20190624.ListServiceQuotas": partial(_list_quotas, applied=True),
    "ServiceQuotasV20190624.RequestServiceQuotaIncrease": request_increase,
}
"""X-Amz-Target -> the operation; its result ``None`` passes the request on to moto."""
