"""A request of an AWS client: whose it is, which operation it calls, whether AWS would reject it.

The sandbox answers only requests that its own access key signed. botocore's signers compute the
signature again: of headers and presigned URLs of Signature Version 4, of presigned URLs of S3 by
version 2 (boto3's default in us-east-1), and of the bearer token of the OpenAI-compatible path,
which is a presigned URL too. The sandbox's own requests carry the secret itself
(``state.AccessKey.authorization``). Clocks are not compared, but URLs and tokens expire. A checksum
that the client declares is part of the signature; the body is read for it where none is declared.

The operation's name comes from ``X-Amz-Target`` (JSON), the path (CBOR, the SageMaker runtime),
``Action`` (XML), or, for S3, from the method, the path and the query, as botocore's service model
binds them. Of other services, method and path stand for the operation.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import io
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit
from wsgiref.types import WSGIEnvironment
from xml.sax.saxutils import escape

from botocore import xform_name
from botocore.auth import HmacV1QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.sagemaker.exceptions import ValidationError

from peagle.errors import fix_text
from peagle.request_validation import service_model, validate
from peagle.sandbox.account import quota_codes
from peagle.sandbox.faults import BEARER_CALL
from peagle.sandbox.state import AccessKey
from peagle_serve.json_reader import InvalidJson, Limits, read

LARGEST_BODY = 32 << 20
"""Bytes of a request or of an engine's response that is read as a whole; the largest of AWS, a part
of an image's layer for ECR, has 27 MB."""

INVOCATION_PATH = re.compile(
    r"/endpoints/(?P<name>[^/]+)/(?:inference-components/(?P<component>[^/]+)/)?"
    r"(?P<operation>invocations|invocations-response-stream|openai/v1/chat/completions)"
)
OPENAI_PATH = re.compile(r"/endpoints/[^/]+(?:/inference-components/[^/]+)?/openai(?P<path>/.*)?")
_INVOKING = {
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
    "openai/v1/chat/completions": BEARER_CALL,
}
_CBOR_PATH = re.compile(r"/service/[^/]+/operation/(?P<operation>\w+)")

_SCOPE = re.compile(
    r"Credential=(?P<key>[^/%\s]+)(?:/|%2F)\d+(?:/|%2F)"
    r"(?P<region>[^/%]+)(?:/|%2F)(?P<service>[^/%]+)(?:/|%2F)aws4_request"
)
"""The scope of a Signature Version 4, in a header or in a presigned URL."""


@dataclass(frozen=True)
class Response:
    """An HTTP response. ``body`` is consumed while it is sent, then closed."""

    status: int
    headers: dict[str, str]
    body: Iterator[bytes] = field(default_factory=lambda: iter(()))

    @classmethod
    def whole(cls, status: int, content_type: str, body: bytes, **headers: str) -> Response:
        """The response with this body; ``headers`` are further ones, with _ for -."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        length = {"Content-Type": content_type, "Content-Length": str(len(body))}
        return cls(status, length | more, iter((body,)))


def json_response(
    document: Mapping[str, Any],
    status: int = 200,
    content_type: str = "application/json",
    error_type: str = "",
) -> Response:
    """``document`` as a response; ``error_type`` is AWS's error code."""
    content = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
    headers = {"x_amzn_errortype": error_type} if error_type else {}
    return Response.whole(status, content_type, content, **headers)


class BodyRefused(Exception):
    """The length of a request's body is invalid, missing or too large; ``status`` as in HTTP."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def check_length(environ: WSGIEnvironment, limit: int) -> None:
    """Raise BodyRefused unless the request declares a body of at most ``limit`` bytes, or sends it
    in chunks."""
    names = ("CONTENT_LENGTH", "HTTP_X_AMZ_DECODED_CONTENT_LENGTH")
    declared = [environ[name] for name in names if environ.get(name)]
    for text in declared:
        if not (text.isascii() and text.isdecimal()):
            raise BodyRefused(400, f"{text[:40]!r} is not the length of a body.")
        if len(text) > 15 or int(text) > limit:
            raise BodyRefused(413, f"HTTP content length exceeded {limit} bytes.")
    has_body = environ["REQUEST_METHOD"] in ("POST", "PUT", "PATCH")
    if has_body and not declared and not environ.get("wsgi.input_terminated"):
        raise BodyRefused(411, "You must provide the Content-Length HTTP header.")


def request_body(environ: WSGIEnvironment, limit: int = LARGEST_BODY) -> bytes:
    """A request's body, which remains readable. Raises BodyRefused for more than ``limit`` bytes,
    after at most that many."""
    if environ.get("wsgi.input_terminated"):  # sent in chunks
        try:
            body = io.BufferedReader(environ["wsgi.input"]).read(limit + 1)
        except OSError as error:
            raise BodyRefused(400, f"The body cannot be read: {error}.") from error
    else:
        check_length(environ, limit)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    if len(body) > limit:
        raise BodyRefused(413, f"HTTP content length exceeded {limit} bytes.")
    environ.pop("wsgi.input_terminated", None)
    environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    return body


def json_parameters(environ: WSGIEnvironment) -> dict[str, Any]:
    """The parameters of a call whose body is JSON, which remains readable. Raises InvalidJson."""
    body = request_body(environ) or b"{}"
    parameters = read(body, "The body", limits=Limits(size=LARGEST_BODY))
    if not isinstance(parameters, dict):
        raise InvalidJson("The body", "is not an object")
    return parameters


Protocol = Literal["json", "cbor", "query", "s3"]


@dataclass(frozen=True)
class Call:
    """A request to AWS: the service as in its signature, and the operation as in the API."""

    service: str
    operation: str
    protocol: Protocol
    region: str = ""

    @property
    def action(self) -> str:
        """As in a policy: ``sagemaker:CreateEndpoint``."""
        return f"{self.service}:{self.operation}"


def read_call(environ: WSGIEnvironment) -> Call | None:
    """The AWS operation that a request calls; ``None`` for a request to no AWS service.

    The request's body remains readable.
    """
    scope = signing_scope(environ)
    region = scope["region"] if scope else ""
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    invoking = INVOCATION_PATH.fullmatch(path)
    if invoking and method == "POST":
        return Call("sagemaker", _INVOKING[invoking["operation"]], "json", region)
    if scope is None:
        return None
    service = scope["service"]
    if target := environ.get("HTTP_X_AMZ_TARGET", ""):
        return Call(service, target.rpartition(".")[2], "json", region)
    if cbor := _CBOR_PATH.fullmatch(path):
        return Call(service, cbor["operation"], "cbor", region)
    if service == "s3":
        return Call(service, _s3_operation(environ), "s3", region)
    form = parse_qs(environ.get("QUERY_STRING", ""))
    if "form-urlencoded" in environ.get("CONTENT_TYPE", ""):
        form |= parse_qs(request_body(environ).decode("utf-8", "replace"))
    if "Action" in form:
        return Call(service, form["Action"][0], "query", region)
    return Call(service, f"{method} {path}", "json", region)


def read_protocol(environ: WSGIEnvironment) -> Protocol:
    """The protocol of a request, as far as it is known without its body."""
    scope = signing_scope(environ)
    if _CBOR_PATH.fullmatch(environ["PATH_INFO"]):
        return "cbor"
    if (scope and scope["service"] == "s3") or "AWSAccessKeyId=" in environ["QUERY_STRING"]:
        return "s3"
    return "query" if "form-urlencoded" in environ.get("CONTENT_TYPE", "") else "json"


def signing_scope(environ: WSGIEnvironment) -> re.Match[str] | None:
    """``key``, ``region`` and ``service`` that a request's signature names, which ``authenticate``
    verifies."""
    header = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
    return header or _SCOPE.search(environ.get("QUERY_STRING", ""))


@functools.cache
def _s3_bindings() -> Sequence[tuple[str, str, bool, frozenset[str], frozenset[str]]]:
    """Operation of S3, its method, whether it has a key, and what must be in query and headers; the
    one with the most of these first."""
    model = service_model("s3")
    bindings = []
    for name in model.operation_names:
        operation = model.operation_model(name)
        required = operation.input_shape.required_members if operation.input_shape else ()
        if "Bucket" not in required:  # it may be in the host instead of the path
            continue
        members = [operation.input_shape.members[one].serialization for one in required]
        parts = operation.http["requestUri"].partition("?")[2].split("&")
        query = {part.partition("=")[0] for part in parts if part}
        query |= {one["name"] for one in members if one.get("location") == "querystring"}
        headers = {one["name"].lower() for one in members if one.get("location") == "header"}
        method, has_key = operation.http["method"], "Key" in required
        bindings.append((name, method, has_key, frozenset(query), frozenset(headers)))
    return sorted(bindings, key=lambda one: -2 * len(one[3]) - len(one[4]))


def _s3_operation(environ: WSGIEnvironment) -> str:
    bucket_in_host = re.match(r"(?!localhost\b)[^.]+\.localhost", environ.get("HTTP_HOST", ""))
    path = environ["PATH_INFO"].lstrip("/")
    bucket, _, key = ("bucket", "", path) if bucket_in_host else path.partition("/")
    if not bucket:
        return "ListBuckets"
    query = set(parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    headers = _header_names(environ)
    method_and_key = (environ["REQUEST_METHOD"], bool(key))
    for name, method, has_key, in_query, in_headers in _s3_bindings():
        if (method, has_key) == method_and_key and in_query <= query and in_headers <= headers:
            return name
    return f"{environ['REQUEST_METHOD']} {'object' if key else 'bucket'}"


def _header_names(environ: WSGIEnvironment) -> set[str]:
    return {
        name.removeprefix("HTTP_").replace("_", "-").lower()
        for name in environ
        if name.startswith("HTTP_")
    }


def error_response(call: Call, status: int, code: str, message: str) -> Response:
    """An error as the protocol of the call has it."""
    document = {"__type": code, "message": message}
    if call.protocol == "json":
        return json_response(document, status, "application/x-amz-json-1.1", error_type=code)
    if call.protocol == "cbor":
        body = _encode_cbor(document)
        return Response.whole(status, "application/cbor", body, smithy_protocol="rpc-v2-cbor")
    error = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    if call.protocol == "s3":
        body = f"<Error>{error}<RequestId>sandbox</RequestId></Error>".encode()
        return Response.whole(status, "application/xml", body)
    fault = "Receiver" if status >= 500 else "Sender"
    body = (
        f"<ErrorResponse><Error><Type>{fault}</Type>{error}</Error>"
        "<RequestId>sandbox</RequestId></ErrorResponse>"
    ).encode()
    return Response.whole(status, "text/xml", body)


def _encode_cbor(document: Mapping[str, str]) -> bytes:
    """A map of texts, each shorter than 64 KiB (RFC 8949)."""
    texts = [text.encode() for pair in document.items() for text in pair]
    body = b"".join(b"\x79" + len(text).to_bytes(2, "big") + text for text in texts)
    return bytes((0xA0 + len(document),)) + body


_CHECKED = ("sagemaker", "application-autoscaling")
"""Services whose every request is checked; botocore has the same names for them. Clients check only
part of a request, moto almost nothing."""


def rejected_response(call: Call, environ: WSGIEnvironment) -> Response | None:
    """AWS's error if it would reject the parameters of the request; ``None`` for valid ones."""
    if "HTTP_X_AMZ_TARGET" not in environ:
        return None
    try:
        parameters = json_parameters(environ)
    except InvalidJson as error:
        return error_response(call, 400, "SerializationException", f"{error}.")
    if call.service not in _CHECKED:
        return None
    if call.operation not in service_model(call.service).operation_names:
        return None
    message = problems_text(call.service, xform_name(call.operation), parameters, call.region)
    return error_response(call, 400, "ValidationException", message) if message else None


def check_request(operation: str, parameters: Mapping[str, Any], region: str) -> None:
    """Raise ValidationError, with every problem, if SageMaker would reject the request."""
    message = problems_text("sagemaker", operation, parameters, region)
    if message:
        raise ValidationError(message)


def problems_text(service: str, operation: str, parameters: Mapping[str, Any], region: str) -> str:
    """AWS's message about every problem of a request; empty for a valid one.

    Instance types of the catalogue are allowed even if botocore does not know them yet. Keys that
    botocore does not know are ignored, as a client may be newer than the sandbox.
    """
    problems = [
        problem.aws_message or problem.text
        for problem in validate(
            service, operation, _without_nulls(parameters), region, tuple(quota_codes())
        )
        if not problem.message.startswith("Unknown parameter")
    ]
    errors = "error" if len(problems) == 1 else "errors"
    text = f"{len(problems)} validation {errors} detected: {'; '.join(problems)}"
    return text if problems else ""


def _without_nulls(value: Any) -> Any:
    """``value`` without members that are null, which AWS treats as absent."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


TOKEN_PREFIX = "sagemaker-api-key-"
_TOKEN_ACTION = "CallWithBearerToken"
_TOKEN_LIFETIME = 12 * 3600
_TOKEN_HOST = "sagemaker.amazonaws.com"
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}|aws-global")
_FIELD = re.compile(r"\b(\w+)=([^,\s]+)")
_REFUSALS = {
    "missing": ("The request is not signed", {
        "s3": "AccessDenied", "query": "MissingAuthenticationToken",
        "": "MissingAuthenticationTokenException",
    }),
    "unknown": ("The security token included in the request is invalid", {
        "s3": "InvalidAccessKeyId", "query": "InvalidClientTokenId",
        "": "UnrecognizedClientException",
    }),
    "different": ("The signature does not match the request", {
        "s3": "SignatureDoesNotMatch", "query": "SignatureDoesNotMatch",
        "": "InvalidSignatureException",
    }),
    "expired": ("The request has expired", {
        "s3": "AccessDenied", "query": "RequestExpired", "": "ExpiredTokenException",
    }),
}  # fmt: skip
"""Kind -> message, and AWS's code by protocol ("" for all others)."""


class NotSigned(Exception):
    """The request is not signed, or not with the sandbox's key."""

    def __init__(self, kind: Literal["missing", "unknown", "different", "expired"]) -> None:
        message, self._codes = _REFUSALS[kind]
        own_key = "the sandbox accepts only its own access key, which this prints"
        super().__init__(fix_text(f"{message}; {own_key}", ("peagle", "sandbox", "env")))

    def response(self, environ: WSGIEnvironment) -> Response:
        """The refusal as the protocol of the request has it."""
        protocol = read_protocol(environ)
        code = self._codes.get(protocol, self._codes[""])
        return error_response(Call("", "", protocol), 403, code, str(self))


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
        return path if self._service_name == "s3" else str(super()._normalize_url_path(path))


class _SignerOfVersion2(HmacV1QueryAuth):  # type: ignore[misc]
    """botocore's signer for a URL that expires at ``expires``."""

    def _get_date(self) -> str:
        return str(self._expires)


def authenticate(environ: WSGIEnvironment, key: AccessKey) -> str:
    """The region of a request that the key signed. Raises NotSigned and InvalidToken. The body
    stays readable."""
    scope = signing_scope(environ)
    if scope is None and OPENAI_PATH.fullmatch(environ["PATH_INFO"]):
        return read_token(environ.get("HTTP_AUTHORIZATION", ""), key)
    try:
        if scope is None:
            _check_version_2(environ, key)
            return ""
        _check_version_4(environ, scope, key)
        return scope["region"]
    except UnicodeEncodeError:
        raise NotSigned("different") from None


def is_owner(environ: WSGIEnvironment, key: AccessKey) -> bool:
    """Whether a request carries the secret itself."""
    return _same(environ.get("HTTP_AUTHORIZATION", ""), key.authorization)


def _check_version_4(environ: WSGIEnvironment, scope: re.Match[str], key: AccessKey) -> None:
    if not _same(scope["key"], key.id):
        raise NotSigned("unknown")
    query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    parameters = dict(query)
    fields = dict(_FIELD.findall(environ.get("HTTP_AUTHORIZATION", "")))
    stamp = environ.get("HTTP_X_AMZ_DATE") or parameters.get("X-Amz-Date", "")
    payload = environ.get("HTTP_X_AMZ_CONTENT_SHA256", "")
    if "Signature" not in fields:  # a presigned URL
        fields = {
            name: parameters.get(f"X-Amz-{name}", "") for name in ("SignedHeaders", "Signature")
        }
        if time.time() > _expiry(parameters):
            raise NotSigned("expired")
        query = [pair for pair in query if pair[0] != "X-Amz-Signature"]
        payload = "UNSIGNED-PAYLOAD" if scope["service"] == "s3" else payload
    names = fields.get("SignedHeaders", "").split(";")
    request = AWSRequest(
        method=environ["REQUEST_METHOD"],
        url=f"http://{environ.get('HTTP_HOST', '')}{_raw_path(environ)}",
        headers={name: _header(environ, name) for name in names},
        params=query,
    )
    payload = payload or hashlib.sha256(request_body(environ)).hexdigest()
    expected = _signature(request, payload, scope["service"], scope["region"], stamp, key)
    if not _REGION.fullmatch(scope["region"]) or not _same(fields["Signature"], expected):
        raise NotSigned("different")


def _check_version_2(environ: WSGIEnvironment, key: AccessKey) -> None:
    parameters = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    try:
        key_id, expires = parameters["AWSAccessKeyId"], parameters["Expires"]
        signature = parameters["Signature"]
    except KeyError:
        raise NotSigned("missing") from None
    if not _same(key_id, key.id):
        raise NotSigned("unknown")
    if not expires.isdecimal() or int(expires[:15]) < time.time():
        raise NotSigned("expired")
    # Clients may move headers into the query.
    names = {"content-md5", "content-type"}
    names |= {name for name in (*_header_names(environ), *parameters) if name.startswith("x-amz-")}
    values = {name: parameters.get(name) or _header(environ, name) for name in names}
    headers = AWSRequest(headers={name: value for name, value in values.items() if value}).headers
    url = urlsplit(f"http://sandbox{_raw_path(environ)}?{environ['QUERY_STRING']}")
    signer = _SignerOfVersion2(Credentials(key.id, key.secret), expires)
    if not _same(signature, signer.get_signature(environ["REQUEST_METHOD"], url, headers)):
        raise NotSigned("different")


def read_token(authorization: str, key: AccessKey, now: float | None = None) -> str:
    """The region of the bearer token in an Authorization header. Raises InvalidToken."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.startswith(TOKEN_PREFIX):
        raise InvalidToken(f"expected a bearer token that begins with {TOKEN_PREFIX}")
    encoded = token.removeprefix(TOKEN_PREFIX).strip()
    try:
        text = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode()
        query = {name: values[0] for name, values in parse_qs(text.partition("?")[2]).items()}
        if query["Action"] != _TOKEN_ACTION:
            raise InvalidToken(f"the token is not for {_TOKEN_ACTION}")
        signature, stamp = query.pop("X-Amz-Signature"), query["X-Amz-Date"]
        key_id, _, region, service, _ = query["X-Amz-Credential"].split("/")
    except (KeyError, ValueError) as error:
        raise InvalidToken(f"the token is not a base64-encoded presigned URL ({error})") from None
    if service != "sagemaker":
        raise InvalidToken(f"the token is for the service {service}")
    if (now or time.time()) > _expiry(query, _TOKEN_LIFETIME):
        raise InvalidToken("the token has expired")
    query.pop("Version", None)  # not signed
    request = AWSRequest(
        method="POST",
        url=f"https://{_TOKEN_HOST}/",
        headers={"host": _TOKEN_HOST},
        params=list(query.items()),
    )
    expected = _signature(request, hashlib.sha256().hexdigest(), service, region, stamp, key)
    if not (_same(key_id, key.id) and _same(signature, expected)):
        raise InvalidToken("the token is not of this sandbox's access key")
    return region


def _signature(
    request: AWSRequest, payload: str, service: str, region: str, stamp: str, key: AccessKey
) -> str:
    request.context |= {"payload": payload, "timestamp": stamp}
    signer = _Signer(Credentials(key.id, key.secret), service, region)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return str(signer.signature(text, request))


def _expiry(query: Mapping[str, str], longest: int = 10**9) -> float:
    """When a presigned URL expires, in epoch seconds; 0 for one that does not say it."""
    try:
        signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        seconds = min(int(query["X-Amz-Expires"][:9]), longest)
        return (signed + timedelta(seconds=seconds)).timestamp()
    except (KeyError, ValueError, OverflowError):
        return 0.0


def _same(value: str, expected: str) -> bool:
    return hmac.compare_digest(value.encode("utf-8", "replace"), expected.encode())


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
