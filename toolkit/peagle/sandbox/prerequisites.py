"""What a model needs from other services, checked as SageMaker checks it: role, images, data.

The wording is AWS's own, as users have reported it. Permissions of the role are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.core.exceptions import ServiceException
from moto.ecr.models import ecr_backends
from moto.iam.models import Role, iam_backends
from moto.sagemaker.exceptions import ValidationError
from moto.utilities.utils import get_partition

from peagle.checks.facts import parse_ecr_image
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.launch import is_local_image, objects_of
from peagle.sandbox.launch_spec import model_data
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

SAGEMAKER = "sagemaker.amazonaws.com"


class CrossAccountRole(ServiceException):
    """The role belongs to another account."""

    code = "AccessDeniedException"


def check_role(arn: str, region: str) -> None:
    """Raise ValidationError for a role that is missing or that SageMaker may not assume."""
    if f"::{ACCOUNT}:" not in arn:
        raise CrossAccountRole("Cross-account pass role is not allowed.")
    role = find_role(arn, region)
    if role is None or not may_be_assumed(role.assume_role_policy_document):
        raise ValidationError(
            f"Could not assume role {arn}. Please ensure that the role exists and allows principal "
            f"'{SAGEMAKER}' to assume the role."
        )


def find_role(arn: str, region: str) -> Role | None:
    """The sandbox's role with this ARN, or ``None``."""
    backend = iam_backends[ACCOUNT][get_partition(region)]
    return next((one for one in backend.get_roles() if one.arn == arn), None)


def may_be_assumed(policy: str, by: str = SAGEMAKER) -> bool:
    """Whether a trust policy lets the service assume the role."""
    try:
        document = json_reader.read(policy, "the trust policy")
    except InvalidJson:
        return False
    statements = _listed(document.get("Statement") if isinstance(document, dict) else [])
    for statement in (one for one in statements if isinstance(one, dict)):
        principal = statement.get("Principal", {})
        services = _listed(principal.get("Service")) if isinstance(principal, dict) else ["*"]
        actions = _listed(statement.get("Action"))
        if (
            statement.get("Effect") == "Allow"
            and any(action in actions for action in ("sts:AssumeRole", "sts:*", "*"))
            and any(service in services for service in (by, "*"))
        ):
            return True
    return False


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def check_images(containers: list[Mapping[str, Any]], region: str) -> None:
    """Raise ValidationError for an image that the account's own registry does not have."""
    for container in containers:
        image = container.get("Image") or ""
        if is_missing_image(image, region):
            raise ValidationError(f"Requested image {image} not found.")


def is_missing_image(image: str, region: str) -> bool:
    """Whether ``image`` is of the account's own registry and not there.

    Images of other accounts, such as AWS's own, always exist. With containers as engines, an image
    on this machine does too.
    """
    name = parse_ecr_image(image)
    if name is None or name.account != ACCOUNT:
        return False
    repository = ecr_backends[ACCOUNT][name.region].repositories.get(name.repository)
    digest = image.partition("@")[2]
    for one in repository.images if repository else ():
        if one.get_image_digest() == digest or (not digest and name.tag in one.image_tags):
            return False
    return not is_local_image(image)


def missing_image_reason(variant: str) -> str:
    """The FailureReason of an endpoint whose image has disappeared."""
    return (
        f"Please make sure all images included in the model for the production variant {variant} "
        "exist, and that the execution role used to create the model has permissions to access "
        "them."
    )


def check_data(containers: list[Mapping[str, Any]], region: str) -> None:
    """Raise ValidationError for model data that is not in S3."""
    for container in containers:
        for data in model_data(container):
            if not any(objects_of(data, region)):
                raise ValidationError(f"Could not find model data at {data.uri}.")


def check_vpc(vpc: Mapping[str, Any], region: str) -> None:
    """Raise ValidationError for subnets and security groups that do not exist, or are not of one
    VPC. The wording is ours: AWS's is not known."""
    if not vpc:
        return
    # Importing it takes a second, and most models are in no VPC.
    from moto.ec2.models import ec2_backends

    backend = ec2_backends[ACCOUNT][region]
    subnets = {one.id: one.vpc_id for one in backend.describe_subnets()}
    groups = {one.id: one.vpc_id for one in backend.describe_security_groups()}
    known = subnets | groups
    named = [*vpc.get("Subnets", ()), *vpc.get("SecurityGroupIds", ())]
    if missing := [one for one in named if one not in known]:
        raise ValidationError(f"Could not find {', '.join(missing)} in {region}.")
    if len({known[one] for one in named}) > 1:
        raise ValidationError("The subnets and the security groups must belong to one VPC.")
