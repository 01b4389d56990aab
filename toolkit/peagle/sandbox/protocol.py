"""What the SageMaker runtime receives and sends: invocations, error responses, event streams.

``application/vnd.amazon.eventstream`` frames, as InvokeEndpointWithResponseStream sends them:
https://smithy.io/2.0/aws/amazon-eventstream.html (prelude, headers, payload, two CRC32). botocore
has a parser for them, but no encoder.
"""

from __future__ import annotations

import io
import json
import socket
import struct
from binascii import crc32
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from wsgiref.types import WSGIEnvironment

from peagle.protocol import log_group
from peagle.sandbox.client import ACCOUNT

TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the "
    "latency metrics for each container in Amazon CloudWatch, resolve the issue, and try again."
)
"""Message of a ModelError when the container exceeds SageMaker's time limit."""


@dataclass(frozen=True)
class Invocation:
    """A request to an endpoint.

    ``region`` is that of its signature or token. ``headers`` has lower-case names. ``client`` is
    the client's connection; it is watched for a disconnect.
    """

    name: str
    operation: str
    region: str
    headers: dict[str, str]
    body: bytes
    client: socket.socket | None = None
    component: str | None = None


@dataclass(frozen=True)
class Response:
    """An HTTP response. ``body`` is consumed while it is sent, then closed."""

    status: int
    headers: dict[str, str]
    body: Iterator[bytes] = field(default_factory=lambda: iter(()))


def json_response(
    document: Mapping[str, Any],
    status: int = 200,
    content_type: str = "application/json",
    error_type: str = "",
) -> Response:
    """``document`` as a response; ``error_type`` is AWS's error code."""
    content = json.dumps(document, ensure_ascii=False).encode()
    headers = {"Content-Type": content_type, "Content-Length": str(len(content))}
    if error_type:
        headers["x-amzn-errortype"] = error_type
    return Response(status, headers, iter((content,)))


LARGEST_BODY = 32 << 20
"""Bytes of a request or of an engine's response that is read as a whole; the largest of AWS, a part
of an image's layer for ECR, has 27 MB."""


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


class ErrorResponse(Exception):
    """A response that reports an error; ``code`` is AWS's error code."""

    def __init__(self, status: int, code: str, document: dict[str, Any]) -> None:
        super().__init__(code)
        self.response = json_response(document, status, error_type=code)


def validation_error(message: str) -> ErrorResponse:
    """The endpoint cannot answer: it does not exist or is not in service."""
    return ErrorResponse(400, "ValidationError", {"Message": message})


def model_error(region: str, endpoint: str, status: int, text: str) -> ErrorResponse:
    """ModelError: the container answered with ``status`` and ``text``; 0 means no answer."""
    kind = "client" if 400 <= status < 500 else "server"
    group = log_group(endpoint)
    document = {
        "Message": (
            f'Received {kind} error ({status}) from primary with message "{text}". See '
            f"https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
            f"#logEventViewer:group={group} in account {ACCOUNT} for more information."
        ),
        "OriginalStatusCode": status,
        "OriginalMessage": text,
        "LogStreamArn": f"arn:aws:logs:{region}:{ACCOUNT}:log-group:{group}",
    }
    return ErrorResponse(424, "ModelError", document)


EVENT_STREAM = "application/vnd.amazon.eventstream"
_STRING = 7


def payload_part(data: bytes) -> bytes:
    headers = {
        ":message-type": "event",
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
    }
    return _frame(headers, data)


def stream_error(message: str, code: str) -> bytes:
    """A ModelStreamError, which ends the stream."""
    headers = {
        ":message-type": "exception",
        ":exception-type": "ModelStreamError",
        ":content-type": "application/json",
    }
    return _frame(headers, json.dumps({"Message": message, "ErrorCode": code}).encode())


def _frame(headers: dict[str, str], payload: bytes) -> bytes:
    block = b"".join(
        struct.pack("!B", len(name))
        + name.encode()
        + struct.pack("!BH", _STRING, len(value))
        + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 12 + len(block) + len(payload) + 4, len(block))
    message = prelude + struct.pack("!I", crc32(prelude)) + block + payload
    return message + struct.pack("!I", crc32(message))
