"""Which AWS operation a request calls, and errors in the form that its protocol has.

The name comes from ``X-Amz-Target`` (JSON), the path (CBOR, the SageMaker runtime), ``Action``
(XML), or, for S3, from the method, the path and the query, as botocore's service model binds them.
Other services are not used here: their method and path stand for the operation.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs
from wsgiref.types import WSGIEnvironment
from xml.sax.saxutils import escape

from peagle.request_validation.model import service_model
from peagle.sandbox.faults import BEARER_CALL
from peagle.sandbox.invocations import INVOCATION_PATH
from peagle.sandbox.protocol import Response, json_response, request_body

Protocol = Literal["json", "cbor", "query", "s3"]

SIGNED = re.compile(
    r"Credential=(?P<key>[^/%\s]+)(?:/|%2F)\d+(?:/|%2F)"
    r"(?P<region>[^/%]+)(?:/|%2F)(?P<service>[^/%]+)(?:/|%2F)aws4_request"
)
"""The scope of a Signature Version 4, in a header or in a presigned URL."""

_INVOKING = {
    "invocations": "InvokeEndpoint",
    "invocations-response-stream": "InvokeEndpointWithResponseStream",
    "openai/v1/chat/completions": BEARER_CALL,
}
_CBOR_PATH = re.compile(r"/service/[^/]+/operation/(?P<operation>\w+)")


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


def call_of(environ: WSGIEnvironment) -> Call | None:
    """The AWS operation that a request calls; ``None`` for a request to no AWS service.

    The request's body remains readable.
    """
    scope = signing_scope(environ)
    region = scope["region"] if scope else ""
    invoking = INVOCATION_PATH.fullmatch(environ["PATH_INFO"])
    if invoking and environ["REQUEST_METHOD"] == "POST":
        return Call("sagemaker", _INVOKING[invoking["operation"]], "json", region)
    if scope is None:
        return None
    service = scope["service"]
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return Call(service, target.rpartition(".")[2], "json", region)
    cbor = _CBOR_PATH.fullmatch(environ["PATH_INFO"])
    if cbor:
        return Call(service, cbor["operation"], "cbor", region)
    if service == "s3":
        return Call(service, _s3_operation(environ), "s3", region)
    form = parse_qs(environ.get("QUERY_STRING", ""))
    if "form-urlencoded" in environ.get("CONTENT_TYPE", ""):
        form |= parse_qs(request_body(environ).decode("utf-8", "replace"))
    if "Action" in form:
        return Call(service, form["Action"][0], "query", region)
    return Call(service, f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", "json", region)


def protocol_of(environ: WSGIEnvironment) -> Protocol:
    """The protocol of a request, as far as it is known without its body."""
    scope = signing_scope(environ)
    if _CBOR_PATH.fullmatch(environ["PATH_INFO"]):
        return "cbor"
    if (scope and scope["service"] == "s3") or "AWSAccessKeyId=" in environ["QUERY_STRING"]:
        return "s3"
    return "query" if "form-urlencoded" in environ.get("CONTENT_TYPE", "") else "json"


def signing_scope(environ: WSGIEnvironment) -> re.Match[str] | None:
    """``key``, ``region`` and ``service`` that a request's signature names; ``signatures`` verifies
    it."""
    header = SIGNED.search(environ.get("HTTP_AUTHORIZATION", ""))
    return header or SIGNED.search(environ.get("QUERY_STRING", ""))


@dataclass(frozen=True)
class _S3Binding:
    """How an operation of S3 is requested: what must be in the request, and its path."""

    operation: str
    method: str
    with_key: bool
    query: frozenset[str]
    headers: frozenset[str]

    @property
    def rank(self) -> int:
        return 2 * len(self.query) + len(self.headers)


@functools.cache
def _s3_bindings() -> tuple[_S3Binding, ...]:
    model = service_model("s3")
    found = []
    for name in model.operation_names:
        operation = model.operation_model(name)
        query = operation.http["requestUri"].partition("?")[2]
        required = operation.input_shape.required_members if operation.input_shape else ()
        members = [operation.input_shape.members[one].serialization for one in required]
        binding = _S3Binding(
            operation=name,
            method=operation.http["method"],
            with_key="Key" in required,
            query=frozenset(part.partition("=")[0] for part in query.split("&") if part)
            | {one["name"] for one in members if one.get("location") == "querystring"},
            headers=frozenset(
                one["name"].lower() for one in members if one.get("location") == "header"
            ),
        )
        if "Bucket" in required:  # not in the path, where clients move it into the host
            found.append(binding)
    return tuple(sorted(found, key=lambda one: -one.rank))


def _s3_operation(environ: WSGIEnvironment) -> str:
    bucket_in_host = re.match(r"(?!localhost\b)[^.]+\.localhost", environ.get("HTTP_HOST", ""))
    path = environ["PATH_INFO"].lstrip("/")
    bucket, _, key = ("bucket", "", path) if bucket_in_host else path.partition("/")
    if not bucket:
        return "ListBuckets"
    query = set(parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower()
        for name in environ
        if name.startswith("HTTP_")
    }
    for one in _s3_bindings():
        if one.method != environ["REQUEST_METHOD"] or one.with_key != bool(key):
            continue
        if one.query <= query and one.headers <= headers:
            return one.operation
    return f"{environ['REQUEST_METHOD']} {'object' if key else 'bucket'}"


def error_response(call: Call, status: int, code: str, message: str) -> Response:
    """An error as the protocol of the call has it."""
    document: dict[str, Any] = {"__type": code, "message": message}
    if call.protocol == "json":
        content_type = "application/x-amz-json-1.1"
        return json_response(document, status, content_type, error_type=code)
    if call.protocol == "cbor":
        headers = {"smithy-protocol": "rpc-v2-cbor"}
        return _response(status, "application/cbor", _cbor(document), headers)
    error = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    if call.protocol == "s3":
        body = f"<Error>{error}<RequestId>sandbox</RequestId></Error>"
        return _response(status, "application/xml", body.encode())
    fault = "Receiver" if status >= 500 else "Sender"
    body = (
        f"<ErrorResponse><Error><Type>{fault}</Type>{error}</Error>"
        "<RequestId>sandbox</RequestId></ErrorResponse>"
    )
    return _response(status, "text/xml", body.encode())


def _response(
    status: int, content_type: str, body: bytes, more: dict[str, str] | None = None
) -> Response:
    headers = {"Content-Type": content_type, "Content-Length": str(len(body)), **(more or {})}
    return Response(status, headers, iter((body,)))


def _cbor(document: dict[str, str]) -> bytes:
    """A map of texts, each shorter than 64 KiB (RFC 8949)."""

    def text(value: str) -> bytes:
        data = value.encode()
        return b"\x79" + len(data).to_bytes(2, "big") + data

    pairs = b"".join(text(key) + text(value) for key, value in document.items())
    return bytes((0xA0 + len(document),)) + pairs
