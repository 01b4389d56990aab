"""What botocore raises, said in the user's words. The only place where it is translated.

No credentials, a misspelt profile or region: the user's mistake (exit code 2). Everything that
AWS itself refused is a CloudError (4); its subclasses here are those that callers act upon.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from boto3.exceptions import Boto3Error
from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

from peagle.errors import CloudError, EngineError, PeagleError, UserError

CREDENTIALS_FIX = (
    "get them with `aws configure`, `aws sso login`, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY; or try without an account: --sandbox"
)

UNREACHABLE_FIX = "check the network, a proxy, AWS_ENDPOINT_URL and --region"

LOGS_FIX = "see `peagle logs NAME`"


class Missing(CloudError):
    """What was asked for does not exist."""


class AlreadyThere(CloudError):
    """Something of that name exists already."""


class Busy(CloudError):
    """It is being changed just now, and takes no other change."""


class AccessDenied(CloudError):
    """The caller's IAM permissions do not cover the action."""


class EngineRefusal(UserError):
    """The engine calls the request a bad one: too long, or with a wrong field."""


_MISSING_CODES = {
    "404", "NoSuchBucket", "NoSuchEntity", "NoSuchEntityException", "NoSuchKey", "NoSuchUpload",
    "ImageNotFoundException", "RepositoryNotFoundException",
    "NoSuchResourceException", "NotFound", "ResourceNotFound", "ResourceNotFoundException",
}  # fmt: skip
_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_UNKNOWN_KEY_CODES = {
    "AuthFailure", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException",
    "SignatureDoesNotMatch", "UnrecognizedClientException",
}  # fmt: skip
_BROKEN_STREAM_CODES = {"ModelStreamError", "InternalStreamFailure"}
_DENIED_CODES = {"403", "AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
_THROTTLED_CODES = {"RequestLimitExceeded", "SlowDown", "Throttling", "ThrottlingException",
                    "TooManyRequestsException"}  # fmt: skip

_ABSENT = re.compile(r"could not find|does not exist|cannot find|not found", re.IGNORECASE)
_PRESENT = re.compile(r"already exist", re.IGNORECASE)
_IN_PROGRESS = re.compile(r"in[- ]progress|is (currently )?(creating|updating)", re.IGNORECASE)
_QUOTA = re.compile(r"service limit '(?P<name>[^']+)'")
_ACTION = re.compile(r"perform: (?P<action>[\w-]+:\w+)")

_IAM_PREFIX = {"service-quotas": "servicequotas", "sagemaker-runtime": "sagemaker"}
_IAM_ACTION = {
    "HeadBucket": "ListBucket", "HeadObject": "GetObject", "ListObjectsV2": "ListBucket",
    "DeleteObjects": "DeleteObject", "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListParts": "ListMultipartUploadParts", "CopyObject": "PutObject",
    **dict.fromkeys(("CreateMultipartUpload", "UploadPart", "UploadPartCopy",
                     "CompleteMultipartUpload"), "PutObject"),
}  # fmt: skip
"""The action that allows an operation, where the two have different names."""


@contextmanager
def translated(service: str, region: str) -> Iterator[None]:
    """Raise botocore's errors of a call to ``service`` as PeagleErrors."""
    try:
        yield
    except boto.ClientError as error:
        raise _of_service(error, service, region) from error
    except boto.BotoCoreError as error:
        raise _of_client(error, service, region) from error
    except Boto3Error as error:
        inner = error.__cause__ or error.__context__
        if isinstance(inner, boto.ClientError):
            raise _of_service(inner, service, region) from error
        raise CloudError(f"{service}: {error}") from error
    except HTTPError as error:
        raise CloudError(f"{service}: the connection broke: {error}", "repeat it") from error


def _of_service(error: Any, service: str, region: str) -> PeagleError:
    """The service answered, with an error."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = str(error.response.get("Error", {}).get("Message", "")) or code
    operation = error.operation_name
    if code == "ModelError":
        return _of_engine(error.response)
    if code in _BROKEN_STREAM_CODES:
        return EngineError(f"the answer broke off: {engine_words(message)}", LOGS_FIX)
    if code in _EXPIRED_CODES:
        return CloudError("the AWS credentials have expired", "renew them: `aws sso login`, or "
                          "whatever gave them to you", code)  # fmt: skip
    if code in _UNKNOWN_KEY_CODES:
        return CloudError(f"AWS does not accept these credentials in {region}: {message}",
                          "check the keys, and that the account has this region enabled",
                          code)  # fmt: skip
    if code in _DENIED_CODES:
        return _denied(message, service, operation, code)
    if code == "ResourceLimitExceeded":
        return _over_quota(message, region, code)
    if code in _THROTTLED_CODES:
        return CloudError(f"{operation}: AWS still throttles after several tries: {message}",
                          "wait a minute and repeat the command", code)  # fmt: skip
    return _kind(code, message)(f"{operation}: {message}", code=code)


def _kind(code: str, message: str) -> type[CloudError]:
    if _PRESENT.search(message):
        return AlreadyThere
    if _IN_PROGRESS.search(message):
        return Busy
    if code in _MISSING_CODES or (code.startswith("Validation") and _ABSENT.search(message)):
        return Missing
    return CloudError


def _denied(message: str, service: str, operation: str, code: str) -> AccessDenied:
    named = _ACTION.search(message)
    prefix = _IAM_PREFIX.get(service, service)
    action = named["action"] if named else f"{prefix}:{_IAM_ACTION.get(operation, operation)}"
    return AccessDenied(
        f"not allowed: {action} ({message})", f"ask for a policy that allows {action}", code
    )


def _over_quota(message: str, region: str, code: str) -> CloudError:
    named = _QUOTA.search(message)
    what = f"the quota '{named['name']}'" if named else "a quota"
    return CloudError(f"{what} of this account is used up: {message}",
                      quota_fix(named["name"] if named else "", region), code)  # fmt: skip


def quota_fix(name: str, region: str, code: str | None = None, wanted: int | None = None) -> str:
    """How to raise the SageMaker quota called ``name``: the very command where its ``code`` is
    known and how many are ``wanted``, else the way through the console."""
    asked = f"'{name}'" if name else "the quota"
    way = f"Service Quotas console, {region}, Amazon SageMaker"
    if code and wanted:
        way = (
            "Service Quotas, `aws service-quotas request-service-quota-increase --service-code "
            f"sagemaker --quota-code {code} --desired-value {wanted} --region {region}`"
        )
    return f"ask for more of {asked}: {way}; or choose another --instance-type or --region"


def _of_engine(response: dict[str, Any]) -> PeagleError:
    """The container answered with an error: the engine's own words, in one line.

    A 4xx is about the request, so the user can mend it; anything else is the engine's failure.
    """
    status = int(response.get("OriginalStatusCode") or 500)
    original = str(response.get("OriginalMessage") or response.get("Error", {}).get("Message", ""))
    message = engine_words(original)
    if 400 <= status < 500:
        return EngineRefusal(f"the engine refuses the request: {message}")
    return EngineError(f"the engine failed ({status}): {message}", LOGS_FIX)


def engine_words(text: str) -> str:
    """The message inside an engine's JSON error, or the text as it is."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    if isinstance(document, dict):
        inner = document.get("error", document)
        if isinstance(inner, dict) and inner.get("message"):
            return str(inner["message"])
    return text


def _of_client(error: boto.BotoCoreError, service: str, region: str) -> PeagleError:
    """No answer came, or nothing could be sent."""
    if isinstance(error, (boto.NoCredentialsError, boto.PartialCredentialsError)):
        return UserError(f"no AWS credentials: {error}", CREDENTIALS_FIX)
    if isinstance(error, boto.ProfileNotFound):
        return UserError(str(error), "see `aws configure list-profiles`")
    if isinstance(error, (boto.NoRegionError, boto.InvalidRegionError)):
        return UserError(str(error), "name a region with --region")
    if isinstance(error, (boto.TokenRetrievalError, boto.UnauthorizedSSOTokenError,
                          boto.SSOTokenLoadError)):  # fmt: skip
        return CloudError(f"the AWS session has expired: {error}", "renew it: `aws sso login`")
    if isinstance(error, boto.CredentialRetrievalError):
        return CloudError(f"AWS credentials could not be got: {error}", CREDENTIALS_FIX)
    if isinstance(error, (boto.ConnectionError, boto.HTTPClientError)):
        return CloudError(f"{service} in {region} cannot be reached: {error}",
                          UNREACHABLE_FIX)  # fmt: skip
    return CloudError(f"{service}: {error}")
