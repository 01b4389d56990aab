"""The connection to AWS: it builds the boto3 clients, and translates botocore's errors.

Everything else calls ``Aws.call`` and meets PeagleErrors only. Missing credentials, an unknown
profile or region are the user's mistake (exit code 2). What AWS rejects is a CloudError (4); its
subclasses in ``errors`` are those that callers handle. Botocore's ``standard`` mode retries
throttled and interrupted calls.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore import exceptions as boto
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.eventstream import ParserError as StreamParserError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from peagle import __version__
from peagle.aws.errors import (
    CAPACITY_FIX,
    CREDENTIALS_FIX,
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
from peagle.catalog.tables import region_hint
from peagle.errors import CloudError, EngineError, EngineFailed, Fix, PeagleError, UserError
from peagle.planning.company import encrypted_by
from peagle.protocol import engine_message
from peagle.store import SANDBOX

UNREACHABLE_FIX = "check the network, the proxy, AWS_ENDPOINT_URL and --region"

_MISSING_CODE = re.compile(r"404|NoSuch\w+|[\w.]*NotFound(Exception|Error)?|\w+\.Malformed")
"""Codes of what does not exist: those of S3, of most services, and of EC2, also for a malformed
id."""

_DENIED_CODES = {
    "403", "AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation",
}  # fmt: skip

# SageMaker reports these three with the code ValidationException, so AWS's text decides.
_ABSENT = re.compile(r"could not find|does not exist|cannot find|not found", re.IGNORECASE)
_PRESENT = re.compile(r"already exist", re.IGNORECASE)
_IN_PROGRESS = re.compile(r"in[- ]progress|is (currently )?(creating|updating)", re.IGNORECASE)

_ASLEEP = "Inference Component has no capacity to process this request"
_STARTS_INSTANCES = ("CreateEndpoint", "UpdateEndpoint", "UpdateEndpointWeightsAndCapacities")
_LONGEST_MESSAGE = 1_500
_ACTION = re.compile(r"perform: (?P<action>[\w-]+:\w+)")

_ERRORS_BY_CODE: tuple[tuple[Collection[str], str, Fix], ...] = (
    (
        {"ExpiredToken", "ExpiredTokenException", "RequestExpired"},
        "the AWS credentials have expired", Fix("refresh them, or run", ("aws", "sso", "login")),
    ),
    (
        UNKNOWN_KEY_CODES, "AWS rejects these credentials in {region}: {message}",
        Fix("check the keys, and that this region is enabled for the account"),
    ),
)  # fmt: skip
"""AWS's codes, our message, fix."""

_Translation = tuple[tuple[type[Exception], ...], type[PeagleError], str, str | Fix, str]

_ERRORS_BY_CLASS: tuple[_Translation, ...] = (
    (
        (boto.NoCredentialsError, boto.PartialCredentialsError), UserError,
        "no AWS credentials: {error}", CREDENTIALS_FIX, "no-credentials",
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
        (boto.ConnectionError, boto.HTTPClientError, HTTPError), CloudError,
        "{service} in {region} cannot be reached: {error}", UNREACHABLE_FIX, "unreachable",
    ),
    (
        (boto.BotoCoreError, Boto3Error, ResponseParserError, StreamParserError), CloudError,
        "{service}: {error}", "", CloudError.code,
    ),
)  # fmt: skip
"""botocore's classes, ours, message, fix, code; the first match counts."""


@contextmanager
def translated(service: str, region: str, in_sandbox: bool = False) -> Iterator[None]:
    """Raise botocore's errors of a call to ``service`` as PeagleErrors, with fixes for the account
    or for the sandbox."""
    try:
        yield
    except boto.ClientError as error:
        raise _translate_service_error(error, service, region, in_sandbox) from error
    except (
        boto.BotoCoreError, Boto3Error, ResponseParserError, StreamParserError, HTTPError,
    ) as error:  # fmt: skip
        inner = error.__cause__ or error.__context__
        if isinstance(error, Boto3Error) and isinstance(inner, boto.ClientError):
            raise _translate_service_error(inner, service, region, in_sandbox) from error
        # No valid answer arrived, or the request could not be sent.
        rows = (row for row in _ERRORS_BY_CLASS if isinstance(error, row[0]))
        _, kind, message, fix, code = next(rows)
        text = str(error)[:_LONGEST_MESSAGE]
        message = message.format(error=text, service=service, region=region)
        raise kind(message, fix, code) from error


def _translate_service_error(
    error: Any, service: str, region: str, in_sandbox: bool
) -> PeagleError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = (str(error.response.get("Error", {}).get("Message", "")) or code)[:_LONGEST_MESSAGE]
    if code == "ModelError":
        # The container answered with an error. A 4xx is about the request, which the user can
        # correct; anything else is a failure of the engine, whose log ``runtime`` names.
        status = original_status(error.response)
        message = engine_message(str(error.response.get("OriginalMessage") or message))
        if 400 <= status < 500:
            fix = "change the request as the engine says, such as a lower max_tokens"
            return EngineRejected(f"the engine rejects the request: {message}", fix)
        return EngineFailed(f"the engine failed ({status}): {message}")
    if code in ("ModelStreamError", "InternalStreamFailure"):
        return EngineError(f"the response ended early: {engine_message(message)}", code=code)
    translation = _translate_rejection(
        code, message, error.operation_name, service, region, in_sandbox
    )
    # After a retry the first attempt may have succeeded without an answer.
    answer = error.response.get("ResponseMetadata", {})
    is_4xx = 400 <= int(answer.get("HTTPStatusCode") or 0) < 500
    translation.rejected = is_4xx and not answer.get("RetryAttempts")
    return translation


def _translate_rejection(
    code: str, message: str, operation: str, service: str, region: str, in_sandbox: bool
) -> CloudError:
    for codes, text, fix in _ERRORS_BY_CODE:
        if code in codes:
            return CloudError(text.format(region=region, message=message), fix, code)
    if code in _DENIED_CODES:
        named = _ACTION.search(message)
        action = named["action"] if named else iam_action(service, operation)
        ask = f"ask for a policy that allows {action}"
        return AccessDenied(f"access denied: {action} ({message})", ask, code)
    if code == "ResourceLimitExceeded":
        limit = QUOTA_IN_MESSAGE.search(message)
        name = limit["name"] if limit else ""
        quota = f"the quota '{name}'" if name else "a quota"
        used_up = f"{quota} of this account is exhausted: {message}"
        fix = quota_fix(name, region, in_sandbox=in_sandbox)
        if lacks_capacity(message) or (operation in _STARTS_INSTANCES and not name):
            return InsufficientCapacity(used_up, fix)
        return CloudError(used_up, fix, code)
    if lacks_capacity(f"{code}: {message}"):
        return InsufficientCapacity(f"{operation}: {message}", CAPACITY_FIX)
    if _ASLEEP in message:
        fix = Fix("send a request with the command invoke, which waits until a copy runs")
        return NoCopyRuns(f"{operation}: {message}", fix)
    kind = CloudError
    if _PRESENT.search(message):
        kind = AlreadyExists
    elif _IN_PROGRESS.search(message):
        kind = Busy
    elif _MISSING_CODE.fullmatch(code) or (
        code.startswith("Validation") and _ABSENT.search(message)
    ):
        kind = Missing
    return kind(f"{operation}: {message}", code=code)


def original_status(response: Mapping[str, Any]) -> int:
    """The HTTP status of the container in SageMaker's ModelError; 500 where it names none."""
    status = response.get("OriginalStatusCode")
    return status if type(status) is int else 500


MAX_TOKEN_SECONDS = 12 * 3600
"""AWS rejects bearer tokens that are valid for longer."""

_TIMEOUTS = (5, 10, 60)
"""Attempts, connect timeout, read timeout (seconds)."""

_TIMEOUTS_BY_SERVICE = {
    # A stream may be silent while a long prompt is processed (AWS itself allows 8 minutes).
    "sagemaker-runtime": (2, 10, 900),
    "pricing": (2, 3, 15),
    "service-quotas": (2, 3, 15),
    "sts": (3, 5, 15),
}
_PARTITIONS = ("aws", "aws-us-gov", "aws-cn")
_TOKEN_URL = "https://sagemaker.amazonaws.com/"


class Clock:
    """The time in epoch seconds, and a pause. Tests replace it."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def send_until_visible(
    send: Callable[[], object],
    pauses: Sequence[float],
    is_early: Callable[[CloudError], bool],
    clock: Clock,
) -> None:
    """Send a request that names what was created a moment ago, again after each of the ``pauses``
    (seconds) while AWS answers that it does not see that: the error then ``is_early``."""
    for pause in (*pauses, None):
        try:
            send()
            return
        except CloudError as error:
            if pause is None or not is_early(error):
                raise
        clock.sleep(pause)


@dataclass(frozen=True)
class Keys:
    """An access key that replaces the machine's AWS configuration."""

    access_key: str
    secret_key: str = field(repr=False)


class Aws:
    """AWS in one region, for one account. ``record_scope`` replaces the account id as the scope of
    deployment records."""

    def __init__(
        self,
        session: Any,
        region: str,
        endpoint_url: str | None = None,
        record_scope: str | None = None,
    ) -> None:
        self.region = region
        self.endpoint_url = endpoint_url
        self.record_scope = record_scope
        self._session = session
        self._clients: dict[str, Any] = {}

    def in_region(self, region: str) -> Aws:
        """The same account in another region."""
        if region == self.region:
            return self
        return Aws(self._session, region, self.endpoint_url, self.record_scope)

    def client(self, service: str) -> Any:
        """The boto3 client of ``service``, created once."""
        if service not in self._clients:
            region = self.region
            if service == "pricing":  # in few regions; each has the prices of its whole partition
                region = "cn-northwest-1" if region.startswith("cn-") else "us-east-1"
            attempts, connect, read = _TIMEOUTS_BY_SERVICE.get(service, _TIMEOUTS)
            config = Config(
                retries={"mode": "standard", "total_max_attempts": attempts},
                connect_timeout=connect,
                read_timeout=read,
                max_pool_connections=32,  # of a copy of weights
                user_agent_extra=f"peagle-toolkit/{__version__}",
                proxies={} if self.endpoint_url else None,  # a proxy is for AWS
                # Uploads carry a checksum in a signed header, so the body need not be signed.
                s3={"payload_signing_enabled": False},
            )
            with translated(service, self.region):
                self._clients[service] = self._session.client(
                    service, region_name=region, endpoint_url=self.endpoint_url, config=config
                )
        return self._clients[service]

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One API call, as boto3 names it: ``call("sagemaker", "describe_model", ...)``."""
        method = getattr(self.client(service), operation)
        with translated(service, self.region, self.in_sandbox):
            response: dict[str, Any] = method(**parameters)
        return response

    def find(self, service: str, operation: str, **parameters: Any) -> dict[str, Any] | None:
        """As ``call``; ``None`` where what it is about does not exist."""
        with suppress(Missing):
            return self.call(service, operation, **parameters)
        return None

    def delete(self, service: str, operation: str, **parameters: Any) -> None:
        """As ``call``; ignores what does not exist."""
        self.find(service, operation, **parameters)

    def items(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        """The entries under ``key`` of every page of a listing."""
        paginator = self.client(service).get_paginator(operation)
        pages = iter(paginator.paginate(**parameters))
        while True:
            with translated(service, self.region, self.in_sandbox):
                page = next(pages, None)
            if page is None:
                return
            yield from page.get(key) or []

    def upload(
        self,
        path: Path,
        bucket: str,
        key: str,
        metadata: dict[str, str],
        progress: Callable[[int], object],
        kms_key: str | None = None,
    ) -> None:
        """Upload a file, in parts when it is large; ``progress`` gets bytes as they leave."""
        more = {"Metadata": metadata, **encrypted_by(kms_key)}
        with translated("s3", self.region):
            self.client("s3").upload_file(str(path), bucket, key, ExtraArgs=more, Callback=progress)

    @cached_property
    def caller(self) -> dict[str, Any]:
        """The identity of the credentials: ``Account`` and ``Arn``."""
        return self.call("sts", "get_caller_identity")

    @property
    def account(self) -> str:
        return str(self.caller["Account"])

    @property
    def partition(self) -> str:
        return str(self.caller["Arn"]).split(":")[1]

    @cached_property
    def scope(self) -> str:
        """The scope of this connection's deployment records: ``sandbox`` or the account id."""
        return self.record_scope or self.account

    @property
    def in_sandbox(self) -> bool:
        """Whether this is the sandbox's account."""
        return self.record_scope == SANDBOX

    @property
    def is_amazon(self) -> bool:
        """False for the sandbox and other substitutes of AWS."""
        return ".amazonaws.com" in self.client("sagemaker").meta.endpoint_url

    def openai_base_url(self, endpoint: str, copies: bool = False) -> str:
        """The base URL for OpenAI clients of the endpoint, or of the ``copies`` on it, whose
        component has its name; ``bearer_token`` is its API key."""
        runtime = self.client("sagemaker-runtime").meta.endpoint_url.rstrip("/")
        below = f"/inference-components/{endpoint}" if copies else ""
        return f"{runtime}/endpoints/{endpoint}{below}/openai/v1"

    def bearer_token(self, seconds: int = MAX_TOKEN_SECONDS) -> str:
        """An API key for the OpenAI-compatible URL, valid for ``seconds`` (at most 12 hours): a
        presigned POST of the action CallWithBearerToken, created without a call to AWS."""
        with translated("sagemaker", self.region):
            credentials = self._session.get_credentials()
            if credentials is None:
                raise boto.NoCredentialsError
            frozen = credentials.get_frozen_credentials()
        request = AWSRequest(
            method="POST",
            url=_TOKEN_URL,
            headers={"host": "sagemaker.amazonaws.com"},
            params={"Action": "CallWithBearerToken"},
        )
        SigV4QueryAuth(frozen, "sagemaker", self.region, expires=seconds).add_auth(request)
        presigned = f"{request.url.removeprefix('https://')}&Version=1"
        return "sagemaker-api-key-" + base64.b64encode(presigned.encode()).decode()


def find_credentials() -> str | None:
    """How botocore finds credentials, such as ``env`` or ``sso``; ``None`` where there are none.
    They are not tried."""
    with suppress(boto.BotoCoreError):
        credentials = boto3.Session().get_credentials()
        return credentials.method if credentials else None
    return None


Connect = Callable[[str], Aws]
"""Connects to the account in a region; called only where a connection is needed."""


def connect(
    region: str,
    profile: str | None = None,
    endpoint_url: str | None = None,
    keys: Keys | None = None,
    scope: str | None = None,
) -> Aws:
    """A connection; sends nothing yet. ``keys`` replace the machine's AWS credentials, so that a
    command for the sandbox cannot reach an account. Raises UserError."""
    with translated("aws", region):
        session = (
            boto3.Session(keys.access_key, keys.secret_key)
            if keys
            else boto3.Session(profile_name=profile)
        )
        regions = [name for partition in _PARTITIONS
                   for name in session.get_available_regions("sagemaker", partition)]  # fmt: skip
    if region not in regions:
        raise UserError(
            f"SageMaker has no region {region!r}", region_hint(region, regions), "unknown-region"
        )
    return Aws(session, region, endpoint_url, scope)
