"""The sandbox's account: quotas and prices, which moto lacks, and what a model needs of it.

Role, images and model data of a model are checked as SageMaker checks them, in the words that users
have reported of it. Permissions and VPCs are not checked.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from moto.core.common_models import BaseModel
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.ecr.models import ecr_backends
from moto.iam import urls as iam_urls
from moto.iam.models import IAMBackend, ManagedPolicy, iam_backends
from moto.iam.responses import IamResponse
from moto.sagemaker.exceptions import ValidationError
from moto.utilities.utils import get_partition

from peagle.checks.facts import parse_ecr_image
from peagle.errors import nearest
from peagle.request_validation import service_model
from peagle.sandbox.client import ACCOUNT, EXECUTION_ROLE
from peagle.sandbox.launch import find_objects, is_local_image, model_data
from peagle.sandbox.state import catalog

PRICES, QUOTAS = "AmazonSageMaker", "sagemaker"

DEFAULT_QUOTA = 2.0
_LARGEST_QUOTA = 1_000_000
SAGEMAKER = "sagemaker.amazonaws.com"

_quotas: dict[tuple[str, str], float] = {}
"""(Region, instance type) -> the quota, where it is not the default."""

Operation = Callable[[str, Mapping[str, Any]], dict[str, Any] | None]
"""Takes the region and the parameters; its result ``None`` passes the request on to moto."""


class AwsError(ServiceException):
    """An error with AWS's code and message; moto cannot serialize its own base class."""


def forget() -> None:
    """Forget the quotas that clients set."""
    _quotas.clear()


@functools.cache
def quota_codes() -> dict[str, str]:
    """Every instance type that endpoints may have -> its quota code: botocore's types and the
    catalogue's, which may be newer. A code that the catalogue does not know is derived from the
    name, so that it is stable."""
    codes = {each.type: each.quota_code for each in catalog().instances.instances}
    enum = service_model(QUOTAS).shape_for("ProductionVariantInstanceType").enum
    return {
        name: codes.get(name) or f"L-{hashlib.sha256(name.encode()).hexdigest()[:8].upper()}"
        for name in dict.fromkeys([*enum, *codes])
    }


def quota_value(instance_type: str, region: str) -> float:
    """How many instances of that type all endpoints of a region may have in total."""
    return _quotas.get((region, instance_type), DEFAULT_QUOTA)


def set_quota(instance_type: str, value: float, region: str) -> None:
    """Set a quota. Raises ValueError for an instance type that endpoints cannot have, and for a
    value that is not a number of instances."""
    if not 0 <= value <= _LARGEST_QUOTA:  # false for NaN
        raise ValueError(f"a quota is a number from 0 to {_LARGEST_QUOTA:,}, not {value}")
    if instance_type not in quota_codes():
        message = f"endpoints cannot use the instance type {instance_type}"
        hint = nearest(instance_type, quota_codes())
        raise ValueError(f"{message}: {hint}" if hint else message)
    _quotas[region, instance_type] = value


def changed_quotas() -> list[dict[str, Any]]:
    """The quotas that are not the default, by region and instance type."""
    return [
        {"instance_type": instance_type, "region": region, "value": value}
        for (region, instance_type), value in sorted(_quotas.items())
    ]


def _get_products(region: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """GetProducts: the products that match every filter (TERM_MATCH), each as a JSON string.
    ``region`` is the endpoint of the price list, not the region of the instance."""
    filters = {entry["Field"]: entry["Value"] for entry in parameters.get("Filters") or []}
    products = []
    known = catalog().instances.instances if parameters.get("ServiceCode") == PRICES else ()
    for instance in known:
        for price in instance.prices:
            attributes = {
                "servicecode": PRICES,
                "component": "Hosting",
                "instanceName": instance.type,
                "instanceType": f"{instance.type}-Hosting",
                "regionCode": price.region,
                "gpu": str(instance.gpu_count),
                "vCpu": str(instance.vcpus),
                "memory": f"{instance.memory_gib} GiB",
                "usagetype": f"Host:{instance.type}",
            }
            if not filters.items() <= {"ServiceCode": PRICES, **attributes}.items():
                continue
            sku = f"{instance.type}.{price.region}".upper().replace(".", "")
            dimension = {
                "unit": "Hrs",
                "description": f"${price.usd_per_hour} per Hosting {instance.type} hour",
                "pricePerUnit": {"USD": f"{price.usd_per_hour:.10f}"},
            }
            terms = {f"{sku}.TERM": {"priceDimensions": {f"{sku}.RATE": dimension}}}
            product = {
                "product": {"productFamily": "ML Instance", "sku": sku, "attributes": attributes},
                "serviceCode": PRICES,
                "publicationDate": price.date.isoformat(),
                "terms": {"OnDemand": terms},
            }
            products.append(json.dumps(product))
    return {"FormatVersion": "aws_v1", "PriceList": products}


def _quota_operation(is_list: bool, is_applied: bool) -> Operation:
    """The applied or default quotas, as a list or one by its code."""

    def operation(region: str, parameters: Mapping[str, Any]) -> dict[str, Any] | None:
        if parameters.get("ServiceCode") != QUOTAS:
            return None
        quotas = [
            {
                "ServiceCode": QUOTAS,
                "ServiceName": "Amazon SageMaker",
                "QuotaArn": f"arn:aws:servicequotas:{region}:{ACCOUNT}:{QUOTAS}/{code}",
                "QuotaCode": code,
                "QuotaName": f"{name} for endpoint usage",
                "Value": quota_value(name, region) if is_applied else DEFAULT_QUOTA,
                "Unit": "None",
                "Adjustable": True,
                "GlobalQuota": False,
            }
            for name, code in sorted(quota_codes().items())
        ]
        if is_list:
            return {"Quotas": quotas}
        for quota in quotas:
            if quota["QuotaCode"] == parameters.get("QuotaCode"):
                return {"Quota": quota}
        unknown = "The request failed because the specified quota does not exist."
        raise AwsError("NoSuchResourceException", unknown)

    return operation


OPERATIONS: dict[str, Operation] = {
    "AWSPriceListService.GetProducts": _get_products,
    "ServiceQuotasV20190624.GetAWSDefaultServiceQuota": _quota_operation(False, False),
    "ServiceQuotasV20190624.GetServiceQuota": _quota_operation(False, True),
    "ServiceQuotasV20190624.ListAWSDefaultServiceQuotas": _quota_operation(True, False),
    "ServiceQuotasV20190624.ListServiceQuotas": _quota_operation(True, True),
}
"""X-Amz-Target -> the operation."""


def check_role(arn: str, region: str) -> None:
    """Raise AwsError for a role that is missing, of another account, or that SageMaker may
    not assume."""
    if f"::{ACCOUNT}:" not in arn:
        raise AwsError("AccessDeniedException", "Cross-account pass role is not allowed.")
    roles = iam_backends[ACCOUNT][get_partition(region)].get_roles()
    role = next((role for role in roles if role.arn == arn), None)
    policy = role.assume_role_policy_document if role else ""  # its permissions are not checked
    if not (f'"{SAGEMAKER}"' in policy and "sts:AssumeRole" in policy):
        raise ValidationError(
            f"Could not assume role {arn}. Please ensure that the role exists and allows principal "
            f"'{SAGEMAKER}' to assume the role."
        )


def is_missing_image(image: str) -> bool:
    """Whether ``image`` is of the account's own registry and not there. Images of other accounts,
    such as AWS's own, always exist. With containers as engines, an image on this machine does
    too."""
    name = parse_ecr_image(image)
    if name is None or name.account != ACCOUNT:
        return False
    repository = ecr_backends[ACCOUNT][name.region].repositories.get(name.repository)
    digest = image.partition("@")[2]
    for stored in repository.images if repository else ():
        if stored.get_image_digest() == digest or (not digest and name.tag in stored.image_tags):
            return False
    return not is_local_image(image)


def check_model(parameters: Mapping[str, Any], region: str) -> None:
    """Raise AwsError or ValidationError for what the model needs and the account does not have: its
    role, images and model data."""
    if role := parameters.get("ExecutionRoleArn"):
        check_role(role, region)
    primary = parameters.get("PrimaryContainer")
    for container in [primary] if primary else parameters.get("Containers") or ():
        image = container.get("Image") or ""
        if is_missing_image(image):
            raise ValidationError(f"Requested image {image} not found.")
        for data in model_data(container):
            if not any(find_objects(data.uri, region)):
                raise ValidationError(f"Could not find model data at {data.uri}.")


class IamOperations(IamResponse):
    """IAM with the operation that moto lacks."""

    def simulate_principal_policy(self) -> ActionResult:
        """SimulatePrincipalPolicy of a role. Raises NoSuchEntity when it does not exist."""
        self.backend.get_role(str(self._get_param("PolicySourceArn")).rpartition("/")[2])
        results = [
            {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": "allowed"}
            for action in self._get_param("ActionNames")
            for resource in self._get_param("ResourceArns", ["*"])
        ]
        return ActionResult({"EvaluationResults": results, "IsTruncated": False})


def install() -> None:
    """Let this process's moto use these operations, and forget what was deleted: moto keeps a list
    of all objects, for a page that the sandbox does not have. Call it before the first request.
    moto reads AWS's 1,600 managed policies for each of five partitions and again after every reset,
    which takes seconds; here it reads them once."""
    iam_urls.url_paths["{0}/$"] = IamOperations.dispatch
    read, policies = IAMBackend._init_aws_policies, list[ManagedPolicy]()

    def managed_policies(backend: IAMBackend) -> list[ManagedPolicy]:
        if backend.partition == "aws" and not policies:
            policies.extend(read(backend))
        return [copy.copy(policy) for policy in policies] if backend.partition == "aws" else []

    IAMBackend._init_aws_policies = managed_policies  # type: ignore[method-assign, assignment]
    type.__setattr__(BaseModel, "__new__", lambda cls, *_, **__: object.__new__(cls))


def create_role() -> None:
    """Create what the account contains from the start: the execution role for SageMaker."""
    statement = {"Effect": "Allow", "Principal": {"Service": SAGEMAKER}, "Action": "sts:AssumeRole"}
    iam_backends[ACCOUNT]["aws"].create_role(
        role_name=EXECUTION_ROLE,
        assume_role_policy_document=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
        path="/",
        permissions_boundary=None,
        description="Execution role of the sandbox",
        tags=[],
        max_session_duration="3600",
    )
