"""Every error of botocore becomes one line with a fix and the right exit code."""

from __future__ import annotations

from typing import Any

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore import exceptions as boto
from urllib3.exceptions import ProtocolError

from peagle.aws.client import translated
from peagle.aws.errors import AccessDenied, AlreadyExists, Busy, Missing
from peagle.errors import CloudError, EngineError, PeagleError, UserError
from tests.unit.aws.cloud import service_error


def _raised(error: BaseException, service: str = "sagemaker") -> PeagleError:
    with pytest.raises(PeagleError) as caught, translated(service, "eu-west-1"):
        raise error
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (boto.NoCredentialsError(), UserError, "--sandbox"),
        (boto.PartialCredentialsError(provider="env", cred_var="key"), UserError, "--sandbox"),
        (boto.ProfileNotFound(profile="work"), UserError, "work"),
        (boto.NoRegionError(), UserError, "--region"),
        (boto.UnauthorizedSSOTokenError(), CloudError, "aws sso login"),
        (boto.EndpointConnectionError(endpoint_url="https://x"), CloudError, "--region"),
        (boto.ReadTimeoutError(endpoint_url="https://x"), CloudError, "cannot be reached"),
        (boto.ConnectionClosedError(endpoint_url="https://x"), CloudError, "cannot be reached"),
        (ProtocolError("broken"), CloudError, "cannot be reached"),
        (service_error("ExpiredToken", "The token has expired"), CloudError, "expired"),
        (service_error("ExpiredTokenException", "expired"), CloudError, "aws sso login"),
        (service_error("InvalidClientTokenId", "invalid"), CloudError, "eu-west-1"),
        (service_error("UnrecognizedClientException", "invalid"), CloudError, "check the keys"),
        (
            service_error("ThrottlingException", "Rate exceeded"),
            CloudError,
            "run the command again",
        ),
        (service_error("InternalFailure", "We made an error"), CloudError, "We made an error"),
    ],
)
def test_errors_are_translated(error: Exception, kind: type[PeagleError], expected: str) -> None:
    found = _raised(error)

    assert type(found) is kind
    assert found.exit_code == (2 if kind is UserError else 4)
    assert expected in str(found)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_local_address_that_does_not_answer_leads_to_the_running_sandbox(host: str) -> None:
    command = 'eval "$(peagle sandbox env)"'
    local = boto.EndpointConnectionError(endpoint_url=f"http://{host}:40123/")
    assert _raised(local).fix.endswith(command)
    for url in ("https://127.0.0.1.example.org/", "https://[", "https://sts.amazonaws.com/"):
        assert command not in str(_raised(boto.EndpointConnectionError(endpoint_url=url)))


def test_a_role_that_may_not_be_passed_names_the_line_of_the_policy() -> None:
    message = (
        "User: arn:aws:iam::1:user/x is not authorized to perform: iam:PassRole on resource: "
        "arn:aws:iam::1:role/MyRole because no identity-based policy allows the iam:PassRole action"
    )
    found = _raised(service_error("AccessDeniedException", message, "CreateModel"))

    assert "PassTheRoleToSageMaker in infra/iam/deploy-policy.json" in found.fix
    assert "begins with peagle-" in found.fix


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("ValidationException", 'Could not find endpoint "arn:aws:x".', Missing),
        ("ValidationException", 'Could not find model "arn:aws:x".', Missing),
        ("NoSuchBucket", "The specified bucket does not exist", Missing),
        ("404", "Not Found", Missing),
        ("ResourceNotFoundException", "The specified log group does not exist.", Missing),
        ("NoSuchEntity", "The role with name x cannot be found.", Missing),
        ("ValidationException", 'Cannot create already existing model "arn:aws:x".', AlreadyExists),
        ("ValidationException", 'Cannot update in-progress endpoint "arn:aws:x".', Busy),
        ("ValidationException", "1 validation error detected", CloudError),
    ],
)
def test_errors_that_callers_handle_have_their_own_class(
    code: str, message: str, kind: type[CloudError]
) -> None:
    found = _raised(service_error(code, message))

    assert type(found) is kind
    assert isinstance(found, CloudError)
    assert found.code == code


@pytest.mark.parametrize(
    ("operation", "service", "message", "action"),
    [
        ("CreateModel", "sagemaker", "User: arn:aws:x is not authorized to perform: "
         "sagemaker:AddTags on resource: arn", "sagemaker:AddTags"),
        ("CreateModel", "sagemaker", "denied", "sagemaker:CreateModel"),
        ("HeadBucket", "s3", "Forbidden", "s3:ListBucket"),
        ("ListServiceQuotas", "service-quotas", "denied", "servicequotas:ListServiceQuotas"),
        ("InvokeEndpoint", "sagemaker-runtime", "denied", "sagemaker:InvokeEndpoint"),
    ],
)  # fmt: skip
def test_a_denial_names_the_action(operation: str, service: str, message: str, action: str) -> None:
    found = _raised(service_error("AccessDeniedException", message, operation), service)

    assert isinstance(found, AccessDenied)
    assert f"access denied: {action}" in found.message
    assert action in found.fix


def test_a_quota_error_names_the_quota_and_how_to_raise_it() -> None:
    found = _raised(
        service_error(
            "ResourceLimitExceeded",
            "The account-level service limit 'ml.p5.48xlarge for endpoint usage' is 0 Instances",
        )
    )

    assert "'ml.p5.48xlarge for endpoint usage'" in found.message
    assert "'ml.p5.48xlarge for endpoint usage'" in found.fix
    assert "Service Quotas" in found.fix
    assert found.exit_code == 4


def test_a_quota_error_of_the_sandbox_has_the_sandbox_s_command() -> None:
    error = service_error(
        "ResourceLimitExceeded",
        "The account-level service limit 'ml.g5.xlarge for endpoint usage' is 2 Instances, with "
        "current utilization of 2 Instances and a request delta of 1 Instances.",
        "UpdateEndpoint",
    )

    with pytest.raises(PeagleError) as caught, translated("sagemaker", "eu-west-1", True):
        raise error

    assert "console" not in caught.value.fix
    assert " ".join(caught.value.command) == (
        "peagle sandbox quota set ml.g5.xlarge 3 --region eu-west-1"
    )


def _model_error(status: int, original: str) -> Any:
    return service_error(
        "ModelError", "Received client error", OriginalStatusCode=status, OriginalMessage=original
    )


@pytest.mark.parametrize(
    "original",
    [
        '{"error": {"message": "maximum context length is 2048 tokens", "code": 400}}',
        '{"object": "error", "message": "maximum context length is 2048 tokens"}',
        "maximum context length is 2048 tokens",
    ],
)
def test_the_message_of_the_engine_is_shown(original: str) -> None:
    found = _raised(_model_error(400, original))

    assert isinstance(found, UserError)
    assert found.message == (
        "the engine rejects the request: maximum context length is 2048 tokens"
    )


def test_an_engine_failure_is_not_a_user_error() -> None:
    found = _raised(_model_error(500, "Internal Server Error"))

    assert isinstance(found, EngineError)
    assert "500" in found.message


@pytest.mark.parametrize("code", ["ModelStreamError", "InternalStreamFailure"])
def test_a_stream_that_breaks_is_an_error(code: str) -> None:
    broken = boto.EventStreamError(
        {"Error": {"Code": code, "Message": "the container went away"}},
        "InvokeEndpointWithResponseStream",
    )

    found = _raised(broken)

    assert isinstance(found, EngineError)
    assert "the container went away" in found.message


def test_a_failed_upload_is_translated_by_its_cause() -> None:
    try:
        try:
            raise service_error("AccessDenied", "Access Denied", "PutObject")
        except boto.ClientError as inner:
            raise S3UploadFailedError("Failed to upload") from inner
    except S3UploadFailedError as error:
        found = _raised(error, "s3")

    assert isinstance(found, AccessDenied)
    assert "s3:PutObject" in found.message


@pytest.mark.parametrize(
    ("response", "rejected"),
    [
        ({"HTTPStatusCode": 400}, True),
        ({"HTTPStatusCode": 400, "RetryAttempts": 1}, False),
        ({"HTTPStatusCode": 500}, False),
        ({}, False),
    ],
)
def test_a_4xx_without_retries_has_changed_nothing(
    response: dict[str, int], rejected: bool
) -> None:
    found = _raised(service_error("ValidationException", "no", ResponseMetadata=response))

    assert isinstance(found, CloudError)
    assert found.rejected == rejected
