"""Operations of AWS's JSON services that are answered here and not by moto."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolkit.sandbox.services import pricing, quotas

Operation = Callable[[str, Mapping[str, Any]], dict[str, Any] | None]


def scaling_tags(region: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """ListTagsForResource of Application Auto Scaling: none. Terraform waits for an answer."""
    return {"Tags": {}}


OPERATIONS: dict[str, Operation] = {
    "AWSPriceListService.GetProducts": pricing.get_products,
    "AnyScaleFrontendService.ListTagsForResource": scaling_tags,
    "ServiceQuotasV20190624.GetAWSDefaultServiceQuota": quotas.get_default,
    "ServiceQuotasV20190624.GetServiceQuota": quotas.get_applied,
    "ServiceQuotasV20190624.ListAWSDefaultServiceQuotas": quotas.list_defaults,
    "ServiceQuotasV20190624.ListServiceQuotas": quotas.list_applied,
    "ServiceQuotasV20190624.RequestServiceQuotaIncrease": quotas.request_increase,
}
"""X-Amz-Target -> (region, parameters) -> answer; ``None`` hands the request on to moto."""
