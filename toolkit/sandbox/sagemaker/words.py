"""What SageMaker says when it refuses, word for word where the words are known."""

from __future__ import annotations

from moto.core.exceptions import ServiceException
from moto.sagemaker.exceptions import ValidationError


class ResourceLimitExceeded(ServiceException):
    """A quota is used up."""

    code = "ResourceLimitExceeded"


def exists(kind: str, arn: str) -> ValidationError:
    """A name is taken."""
    return ValidationError(f'Cannot create already existing {kind} "{arn}".')


def missing(kind: str, arn: str) -> ValidationError:
    """There is nothing of that name."""
    return ValidationError(f'Could not find {kind} "{arn}".')


def busy(arn: str) -> ValidationError:
    """The endpoint is being created or updated."""
    return ValidationError(f'Cannot update in-progress endpoint "{arn}".')


def in_use(kind: str, arn: str, endpoint_arn: str) -> ValidationError:
    """Something that an endpoint needs. AWS forbids this in its documentation but lets it
    happen for some kinds; the words are ours."""
    return ValidationError(f'Cannot delete {kind} "{arn}": endpoint "{endpoint_arn}" uses it.')


def failed_endpoint(arn: str) -> ValidationError:
    """Only DeleteEndpoint is possible on a failed endpoint (API_EndpointSummary); our words."""
    return ValidationError(f'Cannot update failed endpoint "{arn}"; delete it.')


def over_quota(instance_type: str, quota: float, used: int, wanted: int) -> ResourceLimitExceeded:
    """No instance of that type is left."""
    return ResourceLimitExceeded(
        f"The account-level service limit '{instance_type} for endpoint usage' is {quota:.0f} "
        f"Instances, with current utilization of {used} Instances and a request delta of "
        f"{wanted} Instances. Please use AWS Service Quotas to request an increase for this "
        "quota. If AWS Service Quotas is not available, contact AWS support to request an "
        "increase for this quota."
    )
