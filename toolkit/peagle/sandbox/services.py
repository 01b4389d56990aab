"""What moto's other services lack: quotas, prices, and the tags of scaling targets.

The price list of SageMaker hosting, as the catalogue knows it. moto has no such service.

Service quotas of SageMaker endpoints, one per instance type and region.

On AWS most GPU types start at 0; here each starts at 2, so that an endpoint can be updated (blue
and green side by side), and a test may set it (``peagle.sandbox.set_quota``). A request for more
is granted at once.

Operations of AWS's JSON services that are answered here and not by moto.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import botocore.session

from peagle.catalog.tables import Instance, Price
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.state import catalog

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


DEFAULT_VALUE = 2.0
SERVICE_QUOTAS = "sagemaker"

_applied: dict[tuple[str, str], float] = {}


class NoSuchQuota(Exception):
    """The service's NoSuchResourceException."""

    code = "NoSuchResourceException"


class QuotaRefused(NoSuchQuota):
    """The service's IllegalArgumentException."""

    code = "IllegalArgumentException"


def value_of(instance_type: str, region: str) -> float:
    """How many instances of that type all endpoints of a region may have together."""
    return _applied.get((region, instance_type), DEFAULT_VALUE)


def set_value(instance_type: str, value: float, region: str) -> None:
    """Set a quota. Raises NoSuchQuota for an instance type that endpoints cannot have."""
    if instance_type not in _codes():
        raise NoSuchQuota(f"endpoints cannot use the instance type {instance_type}")
    _applied[region, instance_type] = value


def reset() -> None:
    """All quotas as they were at the start."""
    _applied.clear()


def list_applied(region: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """ListServiceQuotas; ``None`` for services that moto answers for."""
    return _page(region, parameters, applied=True)


def list_defaults(region: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """ListAWSDefaultServiceQuotas; ``None`` for services that moto answers for."""
    return _page(region, parameters, applied=False)


def get_applied(region: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """GetServiceQuota; ``None`` for services that moto answers for."""
    return _one(region, parameters, applied=True)


def get_default(region: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """GetAWSDefaultServiceQuota; ``None`` for services that moto answers for."""
    return _one(region, parameters, applied=False)


def request_increase(region: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """RequestServiceQuotaIncrease, granted; ``None`` for services that moto answers for."""
    answer = _one(region, parameters, applied=True)
    if answer is None:
        return None
    quota, wanted = answer["Quota"], float(parameters["DesiredValue"])
    if wanted <= quota["Value"]:
        raise QuotaRefused("You must provide a quota value greater than the current quota value.")
    set_value(quota["QuotaName"].partition(" ")[0], wanted, region)
    kept = ("ServiceCode", "ServiceName", "QuotaArn", "QuotaCode", "QuotaName", "Unit")
    granted = {"Id": hashlib.sha256(repr(parameters).encode()).hexdigest()[:40]}
    granted |= {"Status": "APPROVED", **{key: quota[key] for key in kept}}
    return {"RequestedQuota": {**granted, "DesiredValue": wanted}}


def _page(region: str, parameters: Mapping[str, Any], *, applied: bool) -> dict[str, Any] | None:
    if parameters.get("ServiceCode") != SERVICE_QUOTAS:
        return None
    start = int(parameters.get("NextToken") or 0)
    end = start + min(int(parameters.get("MaxResults") or _PAGE), _PAGE)
    codes = sorted(_codes().items())
    page: dict[str, Any] = {
        "Quotas": [_quota(region, *pair, applied=applied) for pair in codes[start:end]]
    }
    return {**page, "NextToken": str(end)} if end < len(codes) else page


def _one(region: str, parameters: Mapping[str, Any], *, applied: bool) -> dict[str, Any] | None:
    if parameters.get("ServiceCode") != SERVICE_QUOTAS:
        return None
    for instance_type, code in _codes().items():
        if code == parameters.get("QuotaCode"):
            return {"Quota": _quota(region, instance_type, code, applied=applied)}
    raise NoSuchQuota("The request failed because the specified quota does not exist.")


def _quota(region: str, instance_type: str, code: str, *, applied: bool) -> dict[str, Any]:
    return {
        "ServiceCode": SERVICE_QUOTAS,
        "ServiceName": "Amazon SageMaker",
        "QuotaArn": f"arn:aws:servicequotas:{region}:{ACCOUNT}:{SERVICE}/{code}",
        "QuotaCode": code,
        "QuotaName": f"{instance_type} for endpoint usage",
        "Value": value_of(instance_type, region) if applied else DEFAULT_VALUE,
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


@functools.cache
def _codes() -> dict[str, str]:
    """Every instance type of AWS's own list -> its quota code.

    A code that the catalogue does not know is made up from the name, and stays the same.
    """
    model = botocore.session.get_session().get_service_model(SERVICE_QUOTAS)
    known = {
        instance.type: instance.quota_code
        for instance in catalog().instances.instances
        if instance.quota_code
    }
    types = model.shape_for("ProductionVariantInstanceType").enum
    return {name: known.get(name) or _made_up_code(name) for name in types}


def _made_up_code(instance_type: str) -> str:
    return f"L-{hashlib.sha256(instance_type.encode()).hexdigest()[:8].upper()}"


Operation = Callable[[str, Mapping[str, Any]], dict[str, Any] | None]


def scaling_tags(region: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """ListTagsForResource of Application Auto Scaling: none. Terraform waits for an answer."""
    return {"Tags": {}}


OPERATIONS: dict[str, Operation] = {
    "AWSPriceListService.GetProducts": get_products,
    "AnyScaleFrontendService.ListTagsForResource": scaling_tags,
    "ServiceQuotasV20190624.GetAWSDefaultServiceQuota": get_default,
    "ServiceQuotasV20190624.GetServiceQuota": get_applied,
    "ServiceQuotasV20190624.ListAWSDefaultServiceQuotas": list_defaults,
    "ServiceQuotasV20190624.ListServiceQuotas": list_applied,
    "ServiceQuotasV20190624.RequestServiceQuotaIncrease": request_increase,
}
"""X-Amz-Target -> (region, parameters) -> answer; ``None`` hands the request on to moto."""
