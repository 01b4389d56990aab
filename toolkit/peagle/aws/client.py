"""Questions that a plan can do without: they are asked for seconds, not minutes.

Whoever does not answer is not asked twice, and after the first who cannot be reached nobody else
is asked either: one is enough to know that the way to AWS is closed.

One connection to AWS: the only place that builds boto3 clients.

Everything else in this room calls through ``Aws.call`` and sees PeagleErrors only. Botocore's
``standard`` mode repeats throttled and broken calls.
"""

from __future__ import annotations

import base64
import copy
import os
import time
from collections.abc import Callable, Iterator
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
from peagle.aws.errors import CREDENTIALS_FIX, UNREACHABLE_FIX, translated
from peagle.catalog.tables import region_hint
from peagle.errors import CloudError, UserError
from peagle.request_validation import is_write, require_valid

PATIENCE = (2, 3, 5)
"""Attempts, seconds to connect, seconds to read. The second attempt is for a throttled one."""

LONGEST_SECONDS = 10.0
"""So long all questions of a plan may take together; after it none is begun."""

_SILENT = (boto.ConnectionError, boto.ReadTimeoutError)


class Hurry:
    """Watches the questions of one connection, and refuses those that are no longer asked."""

    def __init__(self) -> None:
        self._unreached = ""
        self._spent = 0.0
        self._began = 0.0

    def attend(self, client: Any, service: str, region: str) -> None:
        """Watch the calls of a boto3 client. What is not asked raises CloudError."""
        place = f"{service} in {region}"

        def before(**_: Any) -> None:
            self._refuse(service)
            self._began = time.monotonic()

        def after(caught_exception: Exception | None = None, **_: Any) -> bool | None:
            now = time.monotonic()
            self._spent, self._began = self._spent + now - self._began, now
            if not isinstance(caught_exception, _SILENT):
                return None  # botocore's own rules decide
            self._unreached = place
            return False

        # The first answer counts, and handlers of a service are heard before those of all.
        name = client.meta.service_model.service_id.hyphenize()
        client.meta.events.register_first(f"before-call.{name}", before)
        client.meta.events.register_first(f"needs-retry.{name}", after)

    def _refuse(self, service: str) -> None:
        if self._unreached:
            message = f"{service} was not asked, as {self._unreached} cannot be reached"
            raise CloudError(message, UNREACHABLE_FIX)
        if self._spent >= LONGEST_SECONDS:
            message = f"{service} was not asked on, as AWS took {self._spent:.0f} s so far"
            raise CloudError(message, "repeat it later")


LONGEST_TOKEN_SECONDS = 12 * 3600
"""AWS refuses bearer tokens that are valid for longer."""

_ATTEMPTS = 5
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_ANSWER_SECONDS = 900
"""A streamed answer may be silent while a long prompt is read (AWS itself allows 8 minutes)."""

_PATIENCE = {
    "sagemaker-runtime": (2, _CONNECT_SECONDS, _ANSWER_SECONDS),
    "pricing": (2, 3, 15),
    "service-quotas": (2, 3, 15),
    "sts": (3, 5, 15),
}
"""Service -> attempts, seconds to connect, seconds to read."""

_PARTITIONS = ("aws", "aws-us-gov", "aws-cn")
_TOKEN_URL = "https://sagemaker.amazonaws.com/"


@dataclass(frozen=True)
class Keys:
    """An access key of its own, instead of what the machine is configured with."""

    access_key: str
    secret_key: str = field(repr=False)


class Aws:
    """AWS in one region, for one account.

    ``own_scope`` replaces the account id as the folder of deployment records.
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
        self._hurry: Hurry | None = None

    def in_region(self, region: str) -> Aws:
        """The same account in another region."""
        if region == self.region:
            return self
        return Aws(self._session, region, self.endpoint_url, self.own_scope)

    def hurried(self) -> Aws:
        """The same account, for questions that can go without an answer: they wait for seconds
        only, and stop when AWS cannot be reached (``peagle.aws.client``)."""
        if self._hurry is not None:
            return self
        other = copy.copy(self)
        other._clients, other._hurry = {}, Hurry()
        return other

    def client(self, service: str) -> Any:
        """The boto3 client of ``service``, made once."""
        if service not in self._clients:
            with translated(service, self.region):
                made = self._session.client(
                    service,
                    region_name=_region_of(service, self.region),
                    endpoint_url=self.endpoint_url,
                    config=_config(service, self.endpoint_url, self._hurry is not None),
                )
            if self._hurry is not None:
                self._hurry.attend(made, service, self.region)
            self._clients[service] = made
        return self._clients[service]

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One API call, as boto3 names it: ``call("sagemaker", "describe_model", ...)``.

        What creates or changes something is looked at first; InvalidRequest is raised for what
        AWS would refuse.
        """
        if is_write(operation):
            require_valid(service, operation, parameters, self.region)
        method = getattr(self.client(service), operation)
        with translated(service, self.region):
            answer: dict[str, Any] = method(**parameters)
        return answer

    def items(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        """The entries under ``key`` of every page of a listing."""
        paginator = self.client(service).get_paginator(operation)
        with translated(service, self.region):
            for page in paginator.paginate(**parameters):
                yield from page.get(key) or ()

    def events(self, service: str, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """The events of a call whose ``Body`` is an event stream, as they arrive."""
        stream = self.call(service, operation, **parameters)["Body"]
        with translated(service, self.region):
            yield from stream

    def upload(
        self,
        path: Path,
        bucket: str,
        key: str,
        metadata: dict[str, str],
        progress: Callable[[int], object],
    ) -> None:
        """Upload a file, in parts when it is large; ``progress`` gets bytes as they leave."""
        with translated("s3", self.region):
            self.client("s3").upload_file(
                str(path), bucket, key, ExtraArgs={"Metadata": metadata}, Callback=progress
            )

    @cached_property
    def caller(self) -> dict[str, Any]:
        """Who we are: ``Account`` and ``Arn``."""
        return self.call("sts", "get_caller_identity")

    @property
    def account(self) -> str:
        """The account id."""
        return str(self.caller["Account"])

    @cached_property
    def scope(self) -> str:
        """Where this connection's deployments are written down: ``sandbox`` or the account id."""
        return self.own_scope or self.account

    @property
    def is_amazon(self) -> bool:
        """False when something else than AWS answers: the sandbox, or another stand-in."""
        return ".amazonaws.com" in self.client("sagemaker").meta.endpoint_url

    def openai_base_url(self, endpoint: str) -> str:
        """The address for OpenAI clients; it takes ``bearer_token`` as its key."""
        runtime = self.client("sagemaker-runtime").meta.endpoint_url.rstrip("/")
        return f"{runtime}/endpoints/{endpoint}/openai/v1"

    def bearer_token(self, seconds: int = LONGEST_TOKEN_SECONDS) -> str:
        """A key for the OpenAI-compatible address, valid for ``seconds`` (at most 12 hours).

        It is a presigned POST of the action CallWithBearerToken, so it needs no call to AWS.
        Raises UserError when there are no credentials.
        """
        with translated("sagemaker", self.region):
            credentials = self._session.get_credentials()
            if credentials is None:
                raise UserError("no AWS credentials", CREDENTIALS_FIX)
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


def connect(
    region: str,
    profile: str | None = None,
    endpoint_url: str | None = None,
    keys: Keys | None = None,
    scope: str | None = None,
) -> Aws:
    """A connection; nothing is sent yet.

    With ``keys`` the machine's own AWS configuration is not read at all, so that the sandbox
    cannot be mistaken for an account. Raises UserError for an unknown profile or region.
    """
    with translated("aws", region):
        session = _apart(keys) if keys else boto3.Session(profile_name=profile)
        known = [name for partition in _PARTITIONS
                 for name in session.get_available_regions("sagemaker", partition)]  # fmt: skip
    if region not in known:
        raise UserError(
            f"SageMaker is in no region called {region!r}",
            region_hint(region, known),
        )
    return Aws(session, region, endpoint_url, scope)


def _apart(keys: Keys) -> Any:
    """A session that reads no configuration file and no AWS_PROFILE."""
    nowhere = (None, None, os.devnull, None)
    variables: dict[str, Any] = {
        "profile": (None, [], None, None),
        "config_file": nowhere,
        "credentials_file": nowhere,
    }
    core = botocore.session.Session(session_vars=variables)
    core.set_credentials(keys.access_key, keys.secret_key)
    return boto3.Session(botocore_session=core)


def _region_of(service: str, region: str) -> str:
    """The Pricing API lives in few regions; any of a partition knows all of its prices."""
    if service != "pricing":
        return region
    return "cn-northwest-1" if region.startswith("cn-") else "us-east-1"


def _config(service: str, endpoint_url: str | None, hurried: bool) -> Config:
    """A proxy is for the way to AWS, not for an endpoint that was named by hand."""
    usual = (_ATTEMPTS, _CONNECT_SECONDS, _READ_SECONDS)
    attempts, connect, read = PATIENCE if hurried else _PATIENCE.get(service, usual)
    return Config(
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=connect,
        read_timeout=read,
        user_agent_extra=f"peagle-toolkit/{__version__}",
        proxies={} if endpoint_url else None,
        # What we send carries a checksum in a header that is signed, so the body need not be.
        s3={"payload_signing_enabled": False},
    )
