"""botocore's errors as PeagleErrors: the only place that translates them.

Missing credentials, an unknown profile or region are the user's mistake (exit code 2). What AWS
rejects is a CloudError (4); its subclasses in ``errors`` are those that callers handle.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from boto3.exceptions import Boto3Error
from botocore import exceptions as boto
from botocore.eventstream import ParserError as StreamParserError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from peagle.aws.errors import (
    CAPACITY_FIX,
    CREDENTIALS_FIX,
    LOOPBACK_HOSTS,
    QUOTA_IN_MESSAGE,
    UNKNOWN_KEY_CODES,
    AccessDenied,
    AlreadyExists,
    Busy,
    EngineRejected,
    InsufficientCapacity,
    Missing,
    NoCopyRuns,
    iam_action,
    lacks_capacity,
    quota_fix,
)
from peagle.errors import CloudError, EngineError, EngineFailed, Fix, PeagleError, UserError
from peagle.protocol import engine_message

UNREACHABLE_FIX = "check the network, the proxy, AWS_ENDPOINT_URL and --region"

NO_ANSWER = ("unreachable", "connection-broken")
"""The codes of errors of a connection that could not be made, or that ended too early."""

_SANDBOX_VARIABLES = ("peagle", "sandbox", "env")


_STALE_FIX = (
    "AWS_ENDPOINT_URL leads to this machine, where nothing answers; if that was the sandbox, "
    f'point this shell to its new address: eval "$({shlex.join(_SANDBOX_VARIABLES)})"'
)

_MISSING_CODES = {
    "404", "NoSuchBucket", "NoSuchEntity", "NoSuchEntityException", "NoSuchKey", "NoSuchUpload",
    "ImageNotFoundException", "RepositoryNotFoundException",
    "NoSuchResourceException", "NotFound", "ObjectNotFoundException",
    "ResourceNotFound", "ResourceNotFoundException",
}  # fmt: skip

_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}


_BROKEN_STREAM_CODES = {"ModelStreamError", "InternalStreamFailure"}

_DENIED_CODES = {
    "403", "AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation",
}  # fmt: skip

_THROTTLED_CODES = {"RequestLimitExceeded", "SlowDown", "Throttling", "ThrottlingException",
                    "TooManyRequestsException"}  # fmt: skip


# SageMaker reports these three with the code ValidationException, so AWS's text decides.
_ABSENT = re.compile(r"could not find|does not exist|cannot find|not found", re.IGNORECASE)

_PRESENT = re.compile(r"already exist", re.IGNORECASE)


_IN_PROGRESS = re.compile(r"in[- ]progress|is (currently )?(creating|updating)", re.IGNORECASE)

_ASLEEP = "Inference Component has no capacity to process this request"


_USED = re.compile(r"current utilization of (\d+) \w+ and a request delta of (\d+)")


_STARTS_INSTANCES = ("CreateEndpoint", "UpdateEndpoint", "UpdateEndpointWeightsAndCapacities")

_ALLOWED_VALUES = re.compile(r"(?<=enum value set: \[)[^\]]{200,}(?=\])")


_LONGEST_MESSAGE = 1_500

_ACTION = re.compile(r"perform: (?P<action>[\w-]+:\w+)")


_PASS_ROLE = (
    "use a role whose name begins with peagle-, or add this role's ARN to the line Resource of the "
    "statement PassTheRoleToSageMaker in infra/iam/deploy-policy.json"
)


@contextmanager
def translated(service: str, region: str, in_sandbox: bool = False) -> Iterator[None]:
    """Raise botocore's errors of a call to ``service`` as PeagleErrors, with fixes for the account
    or for the sandbox."""
    try:
        yield
    except boto.ClientError as error:
        found = _of_service(error, service, region, in_sandbox)
        if isinstance(found, CloudError):
            found.rejected = _is_rejected(error.response.get("ResponseMetadata", {}))
        raise found from error
    except boto.BotoCoreError as error:
        raise _of_client(error, service, region) from error
    except Boto3Error as error:
        inner = error.__cause__ or error.__context__
        if isinstance(inner, boto.ClientError):
            raise _of_service(inner, service, region, in_sandbox) from error
        raise CloudError(f"{service}: {error}") from error
    except (ResponseParserError, StreamParserError) as error:
        raise CloudError(
            f"{service}: the answer is not valid: {str(error)[:300]}",
            UNREACHABLE_FIX,
            "invalid-response",
        ) from error
    except HTTPError as error:
        raise CloudError(
            f"{service}: the connection was interrupted: {error}",
            "run the command again",
            "connection-broken",
        ) from error


def _is_rejected(response: dict[str, Any]) -> bool:
    """A 4xx answer. After a retry the first attempt may have succeeded without an answer."""
    status = int(response.get("HTTPStatusCode") or 0)
    return 400 <= status < 500 and not response.get("RetryAttempts")


def _first_values(values: re.Match[str]) -> str:
    """The first of some hundred allowed values; AWS's message lists all of them."""
    names = values[0].split(", ")
    return f"{', '.join(names[:3])}, ... ({len(names)} values)"


def _of_service(error: Any, service: str, region: str, in_sandbox: bool) -> PeagleError:
    """The service answered with an error."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = str(error.response.get("Error", {}).get("Message", "")) or code
    message = _ALLOWED_VALUES.sub(_first_values, message)[:_LONGEST_MESSAGE]
    operation = error.operation_name
    if code == "ModelError":
        return _of_engine(error.response, message)
    if code in _BROKEN_STREAM_CODES:
        return EngineError(f"the response ended early: {engine_message(message)}", code=code)
    if code in _EXPIRED_CODES:
        fix = Fix("refresh them, or run", ("aws", "sso", "login"))
        return CloudError("the AWS credentials have expired", fix, code)
    if code in UNKNOWN_KEY_CODES:
        rejected = f"AWS rejects these credentials in {region}: {message}"
        fix = Fix("check the keys, and that this region is enabled for the account")
        return CloudError(rejected, fix, code)
    if code in _DENIED_CODES:
        named = _ACTION.search(message)
        action = named["action"] if named else iam_action(service, operation)
        ask = _PASS_ROLE if action == "iam:PassRole" else f"ask for a policy that allows {action}"
        return AccessDenied(f"access denied: {action} ({message})", Fix(ask), code)
    if code == "ResourceLimitExceeded":
        found = QUOTA_IN_MESSAGE.search(message)
        name = found["name"] if found else ""
        quota = f"the quota '{name}'" if name else "a quota"
        used_up = f"{quota} of this account is exhausted: {message}"
        used = _USED.search(message)
        needed = sum(map(int, used.groups())) if used else None
        fix = quota_fix(name, region, None, needed, in_sandbox)
        if lacks_capacity(message) or (operation in _STARTS_INSTANCES and not name):
            return InsufficientCapacity(used_up, fix)
        return CloudError(used_up, fix, code)
    if lacks_capacity(f"{code}: {message}"):
        return InsufficientCapacity(f"{operation}: {message}", CAPACITY_FIX)
    if code in _THROTTLED_CODES:
        throttled = f"{operation}: AWS still throttles requests after several retries: {message}"
        return CloudError(throttled, "wait a minute and run the command again", code)
    if _ASLEEP in message:
        fix = Fix("send a request with the command invoke, which waits until a copy runs")
        return NoCopyRuns(f"{operation}: {message}", fix)
    kind = CloudError
    if _PRESENT.search(message):
        kind = AlreadyExists
    elif _IN_PROGRESS.search(message):
        kind = Busy
    elif code in _MISSING_CODES or (code.startswith("Validation") and _ABSENT.search(message)):
        kind = Missing
    return kind(f"{operation}: {message}", code=code)


def _of_engine(response: dict[str, Any], message: str) -> PeagleError:
    """The container answered with an error. A 4xx is about the request, which the user can
    correct; anything else is a failure of the engine, whose log ``runtime`` names."""
    status = original_status(response)
    message = engine_message(str(response.get("OriginalMessage") or message))
    if 400 <= status < 500:
        fix = "change the request as the engine says, such as a lower max_tokens"
        return EngineRejected(f"the engine rejects the request: {message}", fix)
    return EngineFailed(f"the engine failed ({status}): {message}")


def original_status(response: Mapping[str, Any]) -> int:
    """The HTTP status of the container in SageMaker's ModelError; 500 where it names none."""
    status = response.get("OriginalStatusCode")
    return status if type(status) is int else 500


_OF_CLIENT: tuple[tuple[tuple[type[Exception], ...], type[PeagleError], str, str | Fix, str], ...]

_OF_CLIENT = (
    (
        (boto.NoCredentialsError,), UserError, "no AWS credentials",
        CREDENTIALS_FIX, "no-credentials",
    ),
    (
        (boto.PartialCredentialsError,), UserError, "incomplete AWS credentials: {error}",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither", "no-credentials",
    ),
    (
        (boto.ProfileNotFound,), UserError, "{error}",
        Fix("list the profiles", ("aws", "configure", "list-profiles")), "unknown-profile",
    ),
    (
        (boto.NoRegionError, boto.InvalidRegionError), UserError, "{error}",
        "specify a region with --region", "unknown-region",
    ),
    (
        (boto.TokenRetrievalError, boto.UnauthorizedSSOTokenError, boto.SSOTokenLoadError),
        CloudError, "the AWS session has expired: {error}",
        Fix("renew it", ("aws", "sso", "login")), "session-expired",
    ),
    (
        (boto.CredentialRetrievalError,), CloudError, "cannot retrieve AWS credentials: {error}",
        CREDENTIALS_FIX, "no-credentials",
    ),
    (
        (boto.ConnectionError, boto.HTTPClientError), CloudError,
        "{service} in {region} cannot be reached: {error}", UNREACHABLE_FIX, "unreachable",
    ),
)  # fmt: skip
"""botocore's classes, ours, message, fix, code; the first match counts."""


def _of_client(error: boto.BotoCoreError, service: str, region: str) -> PeagleError:
    """No response arrived, or the request could not be sent."""
    for classes, kind, message, fix, code in _OF_CLIENT:
        if isinstance(error, classes):
            fix = _STALE_FIX if code == "unreachable" and _is_local(error) else fix
            return kind(message.format(error=error, service=service, region=region), fix, code)
    return CloudError(f"{service}: {str(error)[:_LONGEST_MESSAGE]}")


def _is_local(error: Any) -> bool:
    """Whether the error is about an address on this machine."""
    try:
        return urlsplit(str(error.kwargs.get("endpoint_url"))).hostname in LOOPBACK_HOSTS
    except ValueError:
        return False
