"""The connection to AWS: the only place that builds boto3 clients.

Everything else calls ``Aws.call`` and meets PeagleErrors only. Botocore's ``standard`` mode
retries throttled and interrupted calls.
"""

from __future__ import annotations

import base64
import copy
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore import exceptions as boto
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config

from peagle import __version__
from peagle.aws.translation import UNREACHABLE_FIX, translated
from peagle.catalog.tables import region_hint
from peagle.errors import CloudError, UserError, parsing
from peagle.planning.company import encrypted_by
from peagle.store import SANDBOX

MAX_TOKEN_SECONDS = 12 * 3600
"""AWS rejects bearer tokens that are valid for longer."""

BEST_EFFORT_SECONDS = 10.0
"""Time budget of all calls of a best-effort connection together; after it, no call starts."""

BEST_EFFORT_TIMEOUTS = (2, 3, 5)
"""Attempts, connect timeout, read timeout (seconds). The second attempt is for throttling."""

_TIMEOUTS = (5, 10, 60)
_TIMEOUTS_BY_SERVICE = {
    # A stream may be silent while a long prompt is processed (AWS itself allows 8 minutes).
    "sagemaker-runtime": (2, 10, 900),
    "pricing": (2, 3, 15),
    "service-quotas": (2, 3, 15),
    "sts": (3, 5, 15),
}
_PARTITIONS = ("aws", "aws-us-gov", "aws-cn")
_TOKEN_URL = "https://sagemaker.amazonaws.com/"
_NO_RESPONSE = (boto.ConnectionError, boto.ReadTimeoutError)


class Clock:
    """The time in epoch seconds, and a pause. Tests replace it."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class CircuitBreaker:
    """Ends the calls of a best-effort connection: all, once one service cannot be reached, or once
    the time budget is used up."""

    def __init__(self) -> None:
        self._unreachable = ""
        self._spent = 0.0
        self._began = 0.0

    def watch(self, client: Any, service: str, region: str) -> None:
        """Guard the calls of a boto3 client; a skipped call raises CloudError."""

        def before(**_: Any) -> None:
            self._check(service)
            self._began = time.monotonic()

        def after(caught_exception: Exception | None = None, **_: Any) -> bool | None:
            now = time.monotonic()
            self._spent, self._began = self._spent + now - self._began, now
            if not isinstance(caught_exception, _NO_RESPONSE):
                return None  # botocore's own rules decide
            self._unreachable = f"{service} in {region}"
            return False

        # botocore takes the first answer, and runs handlers of one service before those of all.
        name = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register_first(f"before-call.{name}", before)
        client.meta.events.register_first(f"needs-retry.{name}", after)

    def _check(self, service: str) -> None:
        if self._unreachable:
            message = f"skipped {service}: {self._unreachable} cannot be reached"
            raise CloudError(message, UNREACHABLE_FIX, "unreachable")
        if self._spent >= BEST_EFFORT_SECONDS:
            budget = f"the {BEST_EFFORT_SECONDS:g} s budget for AWS queries is used up"
            raise CloudError(
                f"skipped {service}: {budget}", "run the command again later", "budget-used-up"
            )


@dataclass(frozen=True)
class Keys:
    """An access key that replaces the machine's AWS configuration."""

    access_key: str
    secret_key: str = field(repr=False)


class Aws:
    """AWS in one region, for one account.

    ``own_scope`` replaces the account id as the scope of deployment records.
    """

    def __init__(
        self,
        session: Any,
        region: str,
        endpoint_url: str | None = None,
        own_scope: str | None = None,
    ) -> None:
        self.region = region
        self.endpoint_url = endpoint_url
        self.own_scope = own_scope
        self._session = session
        self._clients: dict[str, Any] = {}
        self._breaker: CircuitBreaker | None = None

    def in_region(self, region: str) -> Aws:
        """The same account in another region."""
        if region == self.region:
            return self
        return Aws(self._session, region, self.endpoint_url, self.own_scope)

    def best_effort(self) -> Aws:
        """The same account, for calls whose answer is optional: short timeouts, and a circuit
        breaker for all of them together."""
        if self._breaker is not None:
            return self
        other = copy.copy(self)
        other._clients, other._breaker = {}, CircuitBreaker()
        return other

    def client(self, service: str) -> Any:
        """The boto3 client of ``service``, created once."""
        if service not in self._clients:
            region = self.region
            if service == "pricing":  # in few regions; each has the prices of its whole partition
                region = "cn-northwest-1" if region.startswith("cn-") else "us-east-1"
            with translated(service, self.region):
                made = self._session.client(
                    service,
                    region_name=region,
                    endpoint_url=self.endpoint_url,
                    config=_config(service, self.endpoint_url, self._breaker is not None),
                )
            if self._breaker is not None:
                self._breaker.watch(made, service, self.region)
            self._clients[service] = made
        return self._clients[service]

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One API call, as boto3 names it: ``call("sagemaker", "describe_model", ...)``.

        Raises CloudError, or UserError for credentials that are missing or wrong.
        """
        method = getattr(self.client(service), operation)
        with self._receiving(service, operation):
            response: dict[str, Any] = method(**parameters)
        return response

    @contextmanager
    def _receiving(self, service: str, operation: str) -> Iterator[None]:
        """Raise the errors of a call, including those of botocore's parsers, as PeagleErrors."""
        what = f"the response to {service}:{operation}"
        translation = translated(service, self.region, self.in_sandbox)
        with parsing(what, CloudError, UNREACHABLE_FIX), translation:
            yield

    def items(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        """The entries under ``key`` of every page of a listing."""
        paginator = self.client(service).get_paginator(operation)
        pages = iter(paginator.paginate(**parameters))
        while True:
            with self._receiving(service, operation):
                page = next(pages, None)
            if page is None:
                return
            yield from page.get(key) or []

    def events(self, service: str, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The events of a call whose ``Body`` is an event stream, as they arrive."""
        stream = self.call(service, operation, **parameters)["Body"]
        with self._receiving(service, operation):
            yield from stream

    def upload(
        self,
        path: Path,
        bucket: str,
        key: str,
        metadata: dict[str, str],
        progress: Callable[[int], object],
        kms_key: str | None = None,
    ) -> None:
        """Upload a file, in parts when it is large; ``progress`` gets bytes as they leave.
        ``kms_key`` encrypts it in place of the bucket's own."""
        more = {"Metadata": metadata, **encrypted_by(kms_key)}
        with translated("s3", self.region):
            self.client("s3").upload_file(str(path), bucket, key, ExtraArgs=more, Callback=progress)

    def copy(
        self,
        bucket: str,
        source: str,
        key: str,
        metadata: dict[str, str],
        kms_key: str | None = None,
    ) -> None:
        """Copy an object within its bucket, in parts when it is large."""
        more = {"Metadata": metadata, "MetadataDirective": "REPLACE", **encrypted_by(kms_key)}
        with translated("s3", self.region):
            self.client("s3").copy({"Bucket": bucket, "Key": source}, bucket, key, ExtraArgs=more)

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
        return self.own_scope or self.account

    @property
    def in_sandbox(self) -> bool:
        """Whether this is the sandbox's account."""
        return self.own_scope == SANDBOX

    @property
    def is_amazon(self) -> bool:
        """False for the sandbox and other substitutes of AWS."""
        return ".amazonaws.com" in self.client("sagemaker").meta.endpoint_url

    def openai_base_url(self, endpoint: str, component: str = "") -> str:
        """The base URL for OpenAI clients; ``bearer_token`` is its API key. ``component`` is the
        inference component that answers, where there is one."""
        runtime = self.client("sagemaker-runtime").meta.endpoint_url.rstrip("/")
        below = f"/inference-components/{component}" if component else ""
        return f"{runtime}/endpoints/{endpoint}{below}/openai/v1"

    def bearer_token(self, seconds: int = MAX_TOKEN_SECONDS) -> str:
        """An API key for the OpenAI-compatible URL, valid for ``seconds`` (at most 12 hours).

        It is a presigned POST of the action CallWithBearerToken, created without a call to AWS.
        Raises UserError when there are no credentials.
        """
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


Connect = Callable[[str], Aws]
"""Connects to the account in a region; called only where a connection is needed."""


def connect(
    region: str,
    profile: str | None = None,
    endpoint_url: str | None = None,
    keys: Keys | None = None,
    scope: str | None = None,
) -> Aws:
    """A connection; sends nothing yet.

    With ``keys`` the machine's AWS configuration is not read, so that a command for the sandbox
    cannot reach an account. Raises UserError for an unknown profile or region.
    """
    with translated("aws", region):
        session = _session_of(keys) if keys else boto3.Session(profile_name=profile)
        known = [name for partition in _PARTITIONS
                 for name in session.get_available_regions("sagemaker", partition)]  # fmt: skip
    if region not in known:
        raise UserError(
            f"SageMaker has no region {region!r}", region_hint(region, known), "unknown-region"
        )
    return Aws(session, region, endpoint_url, scope)


def _session_of(keys: Keys) -> Any:
    """A session that reads no configuration file and no AWS_PROFILE."""
    nothing = (None, None, os.devnull, None)
    variables: dict[str, Any] = {
        "profile": (None, [], None, None),
        "config_file": nothing,
        "credentials_file": nothing,
    }
    core = botocore.session.Session(session_vars=variables)
    core.set_credentials(keys.access_key, keys.secret_key)
    return boto3.Session(botocore_session=core)


def _config(service: str, endpoint_url: str | None, best_effort: bool) -> Config:
    """A proxy is for AWS, not for an endpoint URL."""
    usual = _TIMEOUTS_BY_SERVICE.get(service, _TIMEOUTS)
    attempts, connect, read = BEST_EFFORT_TIMEOUTS if best_effort else usual
    return Config(
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=connect,
        read_timeout=read,
        user_agent_extra=f"peagle-toolkit/{__version__}",
        proxies={} if endpoint_url else None,
        # Uploads carry a checksum in a signed header, so the body need not be signed.
        s3={"payload_signing_enabled": False},
    )
