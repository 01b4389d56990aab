"""A request of an AWS client: whose it is, which operation it calls, whether AWS would reject it.

The sandbox answers only requests with its own access key, also in a bearer token, which expires.
The key's id is a random text that only its user, and a program with a bearer token, can read, so
signatures are not computed again. Presigned URLs are refused.
"""

from __future__ import annotations

import base64
import hmac
import io
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import parse_qs
from wsgiref.types import WSGIEnvironment
from xml.sax.saxutils import escape

from botocore import xform_name
from moto.core.request import Request
from moto.core.routing import get_service_router
from werkzeug.datastructures import EnvironHeaders
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from peagle.errors import fix_text
from peagle.request_validation import service_model, validate
from peagle.sandbox.account import quota_codes
from peagle.sandbox.faults import BEARER_CALL
from peagle.sandbox.state import AccessKey
from peagle_serve.json_reader import InvalidJson, read

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
    r"Credential=(?P<key>[^/\s]+)/\d+/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request"
)
"""The scope of a Signature Version 4."""

Protocol = Literal["json", "cbor", "query", "s3"]


def json_response(document: Mapping[str, Any], status: int = 200, error: str = "") -> Response:
    """``document`` as a response, with moto's times, in UTC, as epoch seconds; ``error`` is AWS's
    error code."""

    def seconds(moment: datetime) -> float:
        return moment.replace(tzinfo=UTC).timestamp()

    text = json.dumps(document, ensure_ascii=False, default=seconds)
    content = text.encode("utf-8", "replace")
    headers = {"x-amzn-errortype": error} if error else {}
    return Response(content, status, headers, content_type="application/json")


class Refused(Exception):
    """An error of AWS: its HTTP status, its code ("" for none) and its message. ``more`` are
    further members of its document in JSON."""

    def __init__(self, code: str, message: str, status: int = 400, **more: Any) -> None:
        super().__init__(message)
        self.code, self.status, self.more = code, status, more

    def response(self, protocol: Protocol = "json") -> Response:
        """The error as the protocol has it."""
        status, code, message = self.status, self.code, str(self)
        if protocol == "json":
            document = {"message": message, **({"__type": code} if code else {}), **self.more}
            return json_response(document, status, code)
        if protocol == "cbor":  # RFC 8949: a map of texts, each shorter than 64 KiB
            texts = [text.encode() for text in ("__type", code, "message", message)]
            parts = [b"\xa2", *(b"\x79" + len(text).to_bytes(2, "big") + text for text in texts)]
            smithy = {"smithy-protocol": "rpc-v2-cbor"}
            return Response(b"".join(parts), status, smithy, content_type="application/cbor")
        error = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
        if protocol == "s3":
            body = f"<Error>{error}<RequestId>sandbox</RequestId></Error>"
            return Response(body, status, content_type="application/xml")
        side = "Receiver" if status >= 500 else "Sender"
        body = f"<Error><Type>{side}</Type>{error}</Error><RequestId>sandbox</RequestId>"
        document_text = f"<ErrorResponse>{body}</ErrorResponse>"
        return Response(document_text, status, content_type="text/xml")


def request_body(environ: WSGIEnvironment, limit: int = LARGEST_BODY) -> bytes:
    """A request's body, which remains readable. Raises Refused for more than ``limit`` bytes, after
    at most that many."""
    if environ.get("wsgi.input_terminated"):  # sent in chunks
        try:
            body = io.BufferedReader(environ["wsgi.input"]).read(limit + 1)
        except OSError as error:
            raise Refused("", f"The body cannot be read: {error}.") from error
    else:
        declared = environ.get("CONTENT_LENGTH") or "0"
        if not (declared.isascii() and declared.isdecimal()):
            raise Refused("", f"{declared[:40]!r} is not the length of a body.")
        body = environ["wsgi.input"].read(min(int(declared[:15]), limit + 1))
    if len(body) > limit:
        raise Refused("", f"HTTP content length exceeded {limit} bytes.", 413)
    environ.pop("wsgi.input_terminated", None)
    environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    return body


def json_parameters(environ: WSGIEnvironment) -> dict[str, Any]:
    """The parameters of a call whose body is JSON, which remains readable. Raises Refused."""
    try:
        body = request_body(environ) or b"{}"
        parameters = read(body, "The body", limit=LARGEST_BODY)
    except InvalidJson as error:
        raise Refused("SerializationException", f"{error}.") from error
    if not isinstance(parameters, dict):
        raise Refused("SerializationException", "The body is not an object.")
    return parameters


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
    """The AWS operation that a request calls; ``None`` for a request to no AWS service. The
    request's body remains readable."""
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
        try:
            name = get_service_router("s3").match(Request(environ))[0].name
        except NotFound:
            name = f"{method} {path}"
        return Call(service, name, "s3", region)
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
    if scope and scope["service"] == "s3":
        return "s3"
    return "query" if "form-urlencoded" in environ.get("CONTENT_TYPE", "") else "json"


def signing_scope(environ: WSGIEnvironment) -> re.Match[str] | None:
    """``key``, ``region`` and ``service`` that a request's signature names."""
    return _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))


def header_names(environ: WSGIEnvironment) -> dict[str, str]:
    """The headers of a request, with lower-case names."""
    return {name.lower(): value for name, value in EnvironHeaders(environ)}


_CHECKED = ("sagemaker", "application-autoscaling")
"""Services whose every request is checked; botocore has the same names for them. Clients check only
part of a request, moto almost nothing."""


def check_call(call: Call, environ: WSGIEnvironment) -> None:
    """Raise Refused if AWS would reject the parameters of the request."""
    if "HTTP_X_AMZ_TARGET" not in environ:
        return
    parameters = json_parameters(environ)
    if call.service in _CHECKED and call.operation in service_model(call.service).operation_names:
        operation = xform_name(call.operation)
        if message := problems_text(call.service, operation, parameters):
            raise Refused("ValidationException", message)


def problems_text(service: str, operation: str, parameters: Mapping[str, Any]) -> str:
    """A message about every problem of a request; empty for a valid one. Instance types of the
    catalogue are allowed even if botocore does not know them yet. Keys that botocore does not know
    are ignored, as a client may be newer than the sandbox."""
    problems = validate(service, operation, parameters, tuple(quota_codes()))
    messages = [line for line in problems if not line.startswith("Unknown parameter")]
    errors = "error" if len(messages) == 1 else "errors"
    text = f"{len(messages)} validation {errors} detected: {'; '.join(messages)}"
    return text if messages else ""


TOKEN_PREFIX = "sagemaker-api-key-"
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}|aws-global")
_NOT_SIGNED: dict[Protocol, str] = {"s3": "InvalidAccessKeyId", "query": "InvalidClientTokenId"}


def authenticate(environ: WSGIEnvironment, key: AccessKey) -> str:
    """The region of a request with the key. Raises Refused."""
    scope = signing_scope(environ)
    if scope is None and OPENAI_PATH.fullmatch(environ["PATH_INFO"]):
        return read_token(environ.get("HTTP_AUTHORIZATION", ""), key)
    if scope and is_same(scope["key"], key.id) and _REGION.fullmatch(scope["region"]):
        return scope["region"]
    text = "The security token included in the request is invalid; the sandbox accepts only its own"
    text = fix_text(f"{text} access key, which this prints", ("peagle", "sandbox", "env"))
    code = _NOT_SIGNED.get(read_protocol(environ), "UnrecognizedClientException")
    raise Refused(code, text, 403)


def read_token(authorization: str, key: AccessKey, now: float | None = None) -> str:
    """The region of the bearer token in an Authorization header. Raises Refused."""

    def refused(why: str) -> Refused:
        return Refused("", f"Unauthorized: {why}", 401)

    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.startswith(TOKEN_PREFIX):
        raise refused(f"expected a bearer token that begins with {TOKEN_PREFIX}")
    encoded = token.removeprefix(TOKEN_PREFIX).strip()
    try:
        text = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode()
        query = {name: values[0] for name, values in parse_qs(text.partition("?")[2]).items()}
        key_id, _, region, *_ = query["X-Amz-Credential"].split("/")
        signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        expiry = signed.timestamp() + int(query["X-Amz-Expires"])
    except (KeyError, ValueError) as error:
        raise refused(f"the token is not a base64-encoded presigned URL ({error})") from None
    if (now or time.time()) > expiry:
        raise refused("the token has expired")
    if not is_same(key_id, key.id):
        raise refused("the token is not of this sandbox's access key")
    return region


def is_same(value: str, expected: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(value.encode("utf-8", "replace"), expected.encode())
