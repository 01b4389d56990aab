"""Authenticate requests: the sandbox answers only those that its own access key signed.

Verified as AWS verifies it, with botocore's signers: headers and presigned URLs of Signature
Version 4, presigned URLs of S3 by version 2 (boto3's default in us-east-1), and the bearer token of
the OpenAI-compatible path, which is a presigned URL too. The sandbox's own requests carry the
secret itself (``state.AccessKey.authorization``).

Clocks are not compared, except by URLs and tokens, which expire. A checksum that the client
declares is part of the signature; the body itself is read for it only where none is declared.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit
from wsgiref.types import WSGIEnvironment

from botocore.auth import HmacV1QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from peagle.errors import fix_text
from peagle.sandbox.calls import signing_scope
from peagle.sandbox.protocol import request_body
from peagle.sandbox.state import AccessKey

TOKEN_PREFIX = "sagemaker-api-key-"
_TOKEN_ACTION = "CallWithBearerToken"
_TOKEN_LIFETIME = timedelta(hours=12)
_TOKEN_HOST = "sagemaker.amazonaws.com"
_AFTER_SIGNING = ("X-Amz-Signature", "Version")
"""Query parameters of a token's URL that are not signed."""

_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}|aws-global")
_FIELD = re.compile(r"\b(\w+)=([^,\s]+)")
_STAMP = "%Y%m%dT%H%M%SZ"
_VERSION_2 = ("AWSAccessKeyId", "Signature", "Expires")
_KINDS: dict[str, tuple[str, dict[str, tuple[int, str]]]] = {
    "missing": ("The request is not signed", {
        "s3": (403, "AccessDenied"), "query": (403, "MissingAuthenticationToken"),
        "": (403, "MissingAuthenticationTokenException"),
    }),
    "unknown": ("The security token included in the request is invalid", {
        "s3": (403, "InvalidAccessKeyId"), "query": (403, "InvalidClientTokenId"),
        "": (400, "UnrecognizedClientException"),
    }),
    "different": ("The signature does not match the request", {
        "s3": (403, "SignatureDoesNotMatch"), "query": (403, "SignatureDoesNotMatch"),
        "": (403, "InvalidSignatureException"),
    }),
    "expired": ("The request has expired", {
        "s3": (403, "AccessDenied"), "query": (400, "RequestExpired"),
        "": (400, "ExpiredTokenException"),
    }),
}  # fmt: skip
_OWN_KEY = "the sandbox accepts only its own access key, which this prints"
_PRINT = ("peagle", "sandbox", "env")


class NotSigned(Exception):
    """The request is not signed, or not with the sandbox's key. ``codes``: status and error code of
    AWS by protocol ("s3", "query" and "" for all others)."""

    def __init__(self, kind: Literal["missing", "unknown", "different", "expired"]) -> None:
        message, self.codes = _KINDS[kind]
        super().__init__(fix_text(f"{message}; {_OWN_KEY}", _PRINT))


class InvalidToken(Exception):
    """The bearer token is malformed, for another service, expired, or not of the sandbox's key."""


class _Signer(SigV4Auth):  # type: ignore[misc]
    """botocore's signer for a request that was signed elsewhere: ``request.headers`` are the signed
    ones, and its context has the checksum of the body."""

    def headers_to_sign(self, request: AWSRequest) -> object:
        return request.headers

    def payload(self, request: AWSRequest) -> str:
        return str(request.context["payload"])

    def _normalize_url_path(self, path: str) -> str:
        if self._service_name == "s3":
            return path
        return str(super()._normalize_url_path(path))


class _SignerOfVersion2(HmacV1QueryAuth):  # type: ignore[misc]
    """botocore's signer for a URL that expires at ``expires``."""

    def _get_date(self) -> str:
        return str(self._expires)


@dataclass(frozen=True)
class Verifier:
    """Compares requests with the sandbox's access key."""

    key: AccessKey

    def is_owner(self, environ: WSGIEnvironment) -> bool:
        """Whether a request carries the secret itself."""
        return _same(environ.get("HTTP_AUTHORIZATION", ""), self.key.authorization)

    def check(self, environ: WSGIEnvironment) -> None:
        """Raise NotSigned unless the sandbox's key signed the request. Its body stays readable."""
        try:
            self._check(environ)
        except UnicodeEncodeError:
            raise NotSigned("different") from None

    def _check(self, environ: WSGIEnvironment) -> None:
        query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        given = dict(query)
        if all(name in given for name in _VERSION_2):
            self._check_version_2(environ, given)
            return
        scope = signing_scope(environ)
        if scope is None:
            raise NotSigned("missing")
        self._check_id(scope["key"])
        fields = dict(_FIELD.findall(environ.get("HTTP_AUTHORIZATION", "")))
        presigned = "Signature" not in fields
        if presigned:
            fields = {
                name: given.get(f"X-Amz-{name}", "") for name in ("SignedHeaders", "Signature")
            }
            _check_expiry(given)
            query = [one for one in query if one[0] != "X-Amz-Signature"]
        stamp = environ.get("HTTP_X_AMZ_DATE") or given.get("X-Amz-Date", "")
        names = fields.get("SignedHeaders", "").split(";")
        request = AWSRequest(
            method=environ["REQUEST_METHOD"],
            url=f"http://{environ.get('HTTP_HOST', '')}{_raw_path(environ)}",
            headers={name: _header(environ, name) for name in names},
            params=query,
        )
        request.context["payload"] = _checksum(environ, presigned, scope["service"])
        expected = self._signature(request, scope["service"], scope["region"], stamp)
        if not _REGION.fullmatch(scope["region"]) or not _same(fields["Signature"], expected):
            raise NotSigned("different")

    def region_of_token(self, authorization: str, now: datetime | None = None) -> str:
        """The region of the bearer token in an Authorization header. Raises InvalidToken."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.startswith(TOKEN_PREFIX):
            raise InvalidToken(f"expected a bearer token that begins with {TOKEN_PREFIX}")
        query = _token_query(token.removeprefix(TOKEN_PREFIX).strip())
        try:
            if query["Action"] != _TOKEN_ACTION or not query["X-Amz-Signature"]:
                raise InvalidToken(f"the token is not for {_TOKEN_ACTION}")
            key, _, region, service, _ = query["X-Amz-Credential"].split("/")
            signed = datetime.strptime(query["X-Amz-Date"], _STAMP).replace(tzinfo=UTC)
            lifetime = timedelta(seconds=int(query["X-Amz-Expires"][:9]))
        except (KeyError, ValueError, OverflowError) as error:
            raise InvalidToken(f"the token is not a presigned URL ({error})") from None
        if service != "sagemaker":
            raise InvalidToken(f"the token is for the service {service}")
        if (now or datetime.now(UTC)) > signed + min(lifetime, _TOKEN_LIFETIME):
            raise InvalidToken("the token has expired")
        request = AWSRequest(
            method="POST",
            url=f"https://{_TOKEN_HOST}/",
            headers={"host": _TOKEN_HOST},
            params=[pair for pair in query.items() if pair[0] not in _AFTER_SIGNING],
        )
        request.context["payload"] = hashlib.sha256().hexdigest()
        expected = self._signature(request, service, region, query["X-Amz-Date"])
        if not (_same(key, self.key.id) and _same(query["X-Amz-Signature"], expected)):
            raise InvalidToken("the token is not of this sandbox's access key")
        return region

    def _check_version_2(self, environ: WSGIEnvironment, given: Mapping[str, str]) -> None:
        self._check_id(given["AWSAccessKeyId"])
        if not given["Expires"].isdecimal() or int(given["Expires"][:15]) < time.time():
            raise NotSigned("expired")
        headers = AWSRequest(headers=_headers_of_version_2(environ, given)).headers
        url = urlsplit(f"http://sandbox{_raw_path(environ)}?{environ['QUERY_STRING']}")
        signer = _SignerOfVersion2(self._credentials, given["Expires"])
        expected = signer.get_signature(environ["REQUEST_METHOD"], url, headers)
        if not _same(given["Signature"], expected):
            raise NotSigned("different")

    def _check_id(self, given: str) -> None:
        if not _same(given, self.key.id):
            raise NotSigned("unknown")

    def _signature(self, request: AWSRequest, service: str, region: str, stamp: str) -> str:
        request.context["timestamp"] = stamp
        signer = _Signer(self._credentials, service, region)
        text = signer.string_to_sign(request, signer.canonical_request(request))
        return str(signer.signature(text, request))

    @property
    def _credentials(self) -> Credentials:
        return Credentials(self.key.id, self.key.secret)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _raw_path(environ: WSGIEnvironment) -> str:
    """The path as the client wrote it, and so as it signed it."""
    written: str = environ.get("REQUEST_URI") or quote(environ["PATH_INFO"])
    return written.partition("?")[0] if written.startswith("/") else urlsplit(written).path


def _header(environ: WSGIEnvironment, name: str) -> str:
    key = name.upper().replace("-", "_")
    value: str = environ.get(
        key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}", ""
    )
    return value


def _checksum(environ: WSGIEnvironment, presigned: bool, service: str) -> str:
    """What stands for the body in the signature."""
    if presigned and service == "s3":
        return "UNSIGNED-PAYLOAD"
    declared: str = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    return declared or hashlib.sha256(request_body(environ)).hexdigest()


def _headers_of_version_2(environ: WSGIEnvironment, given: Mapping[str, str]) -> dict[str, str]:
    """Those that version 2 signs; clients may move them into the query."""
    names = {name.removeprefix("HTTP_").replace("_", "-").lower() for name in environ}
    signed = {name for name in (*names, *given) if name.startswith("x-amz-")}
    signed |= {"content-md5", "content-type"}
    return {name: value for name in signed if (value := given.get(name) or _header(environ, name))}


def _check_expiry(given: Mapping[str, str]) -> None:
    try:
        signed = datetime.strptime(given["X-Amz-Date"], _STAMP).replace(tzinfo=UTC)
        until = signed + timedelta(seconds=int(given["X-Amz-Expires"][:9]))
    except (KeyError, ValueError, OverflowError):
        raise NotSigned("different") from None
    if datetime.now(UTC) > until:
        raise NotSigned("expired")


def _token_query(encoded: str) -> dict[str, str]:
    try:
        text = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode()
        query = parse_qs(text.partition("?")[2])
    except ValueError:
        raise InvalidToken("the token is not a base64-encoded URL") from None
    return {name: values[0] for name, values in query.items()}
