"""Every error of botocore becomes one line with a fix and the right exit code."""

from typing import Any

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore import exceptions as boto
from urllib3.exceptions import ProtocolError

from peagle.aws.client import translated
from peagle.aws.errors import (
    AccessDenied,
    AlreadyExists,
    Busy,
    EngineRejected,
    InsufficientCapacity,
    Missing,
)
from peagle.errors import CloudError, EngineError, EngineFailed, PeagleError, UserError
from tests.unit.aws.cloud import service_error

VALIDATION = "ValidationException"
QUOTA = "The account-level service limit 'ml.g5.xlarge for endpoint usage' is 2 Instances"
PASS_ROLE = (
    "User: arn:aws:iam::1:user/x is not authorized to perform: iam:PassRole on resource: "
    "arn:aws:iam::1:role/MyRole because no identity-based policy allows the iam:PassRole action"
)


def translate(
    error: BaseException, service: str = "sagemaker", in_sandbox: bool = False
) -> PeagleError:
    with pytest.raises(PeagleError) as caught, translated(service, "eu-west-1", in_sandbox):
        raise error
    assert "\n" not in str(caught.value)
    return caught.value


def model_error(status: int, original: str) -> Any:
    return service_error(
        "ModelError", "Received client error", OriginalStatusCode=status, OriginalMessage=original
    )


def of_stream(code: str) -> Any:
    document = {"Error": {"Code": code, "Message": "the container went away"}}
    return boto.EventStreamError(document, "InvokeEndpointWithResponseStream")


@pytest.mark.parametrize(("error", "kind", "expected"), [
    (boto.NoCredentialsError(), UserError, "--sandbox"),
    (boto.ProfileNotFound(profile="work"), UserError, "work"),
    (boto.NoRegionError(), UserError, "--region"),
    (boto.UnauthorizedSSOTokenError(), CloudError, "aws sso login"),
    (boto.EndpointConnectionError(endpoint_url="https://x"), CloudError, "--region"),
    (boto.ReadTimeoutError(endpoint_url="https://x"), CloudError, "cannot be reached"),
    (ProtocolError("broken"), CloudError, "cannot be reached"),
    (service_error("ExpiredToken", "The token has expired"), CloudError, "aws sso login"),
    (service_error("InvalidClientTokenId", "invalid"), CloudError, "eu-west-1"),
    (service_error("ThrottlingException", "Rate exceeded"), CloudError, "Rate exceeded"),
    (service_error("InternalFailure", "We made an error"), CloudError, "We made an error"),
    (service_error(VALIDATION, 'Could not find endpoint "arn:aws:x".'), Missing, ""),
    (service_error("NoSuchBucket", "The specified bucket does not exist"), Missing, ""),
    (service_error("404", "Not Found"), Missing, ""),
    (service_error("NoSuchTagSet", "The TagSet does not exist"), Missing, ""),
    (service_error("NoSuchLifecycleConfiguration", "none"), Missing, ""),
    (service_error("RepositoryNotFoundException", "none"), Missing, ""),
    (service_error("DashboardNotFoundError", "none"), Missing, ""),
    (service_error("InvalidSubnetID.NotFound", "none"), Missing, ""),
    (service_error("InvalidGroupId.Malformed", "none"), Missing, ""),
    (service_error("MalformedPolicyDocument", "none"), CloudError, ""),
    (service_error("NotFoundOrDenied", "none"), CloudError, ""),
    (service_error("40404", "none"), CloudError, ""),
    (service_error("ResourceNotFoundException", "The log group is not there"), Missing, ""),
    (service_error("NoSuchEntity", "The role with name x cannot be found."), Missing, ""),
    (service_error(VALIDATION, "Cannot create already existing model"), AlreadyExists, ""),
    (service_error(VALIDATION, "Cannot update in-progress endpoint"), Busy, ""),
    (service_error(VALIDATION, "1 validation error detected"), CloudError, ""),
    (service_error("ResourceLimitExceeded", QUOTA), InsufficientCapacity, "Service Quotas"),
    (service_error("AccessDeniedException", PASS_ROLE), AccessDenied, "iam:PassRole"),
    (model_error(500, "Internal Server Error"), EngineFailed, "500"),
    (of_stream("ModelStreamError"), EngineError, "the container went away"),
])  # fmt: skip
def test_errors_are_translated(error: Exception, kind: type[PeagleError], expected: str) -> None:
    translation = translate(error)
    assert type(translation) is kind
    assert translation.exit_code == (2 if kind is UserError else 4)
    assert expected in str(translation)


@pytest.mark.parametrize(("operation", "service", "message", "action"), [
    ("CreateModel", "sagemaker",
     "User: arn:aws:x is not authorized to perform: sagemaker:AddTags on resource: arn",
     "sagemaker:AddTags"),
    ("CreateModel", "sagemaker", "denied", "sagemaker:CreateModel"),
    ("HeadBucket", "s3", "Forbidden", "s3:ListBucket"),
    ("ListServiceQuotas", "service-quotas", "denied", "servicequotas:ListServiceQuotas"),
    ("InvokeEndpoint", "sagemaker-runtime", "denied", "sagemaker:InvokeEndpoint"),
])  # fmt: skip
def test_a_denial_names_the_action(operation: str, service: str, message: str, action: str) -> None:
    denial = translate(service_error("AccessDeniedException", message, operation), service)
    assert isinstance(denial, AccessDenied)
    assert f"access denied: {action}" in denial.message
    assert action in denial.fix


def test_a_quota_error_of_the_sandbox_has_the_sandbox_s_command() -> None:
    error = service_error("ResourceLimitExceeded", QUOTA, "UpdateEndpoint")
    quota = translate(error, in_sandbox=True)
    assert "console" not in quota.fix
    assert quota.command[:5] == ("peagle", "sandbox", "quota", "set", "ml.g5.xlarge")


@pytest.mark.parametrize("original", [
    '{"error": {"message": "maximum context length is 2048 tokens", "code": 400}}',
    "maximum context length is 2048 tokens",
])  # fmt: skip
def test_the_message_of_the_engine_is_shown(original: str) -> None:
    rejection = translate(model_error(400, original))
    assert isinstance(rejection, EngineRejected)
    assert rejection.message.endswith(": maximum context length is 2048 tokens")


def test_a_failed_upload_is_translated_by_its_cause() -> None:
    error = S3UploadFailedError("Failed to upload")
    error.__cause__ = service_error("AccessDenied", "Access Denied", "PutObject")
    denial = translate(error, "s3")
    assert isinstance(denial, AccessDenied)
    assert "s3:PutObject" in denial.message


@pytest.mark.parametrize(("response", "rejected"), [
    ({"HTTPStatusCode": 400}, True),
    ({"HTTPStatusCode": 400, "RetryAttempts": 1}, False),
    ({"HTTPStatusCode": 500}, False),
    ({}, False),
])  # fmt: skip
def test_4xx_without_retries_has_changed_nothing(response: dict[str, int], rejected: bool) -> None:
    error = translate(service_error(VALIDATION, "no", ResponseMetadata=response))
    assert isinstance(error, CloudError)
    assert error.rejected == rejected
