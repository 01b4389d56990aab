"""A call of the runtime, its answer, and the refusals in the service's words.

Frames of ``application/vnd.amazon.eventstream``, as InvokeEndpointWithResponseStream sends.

Format: https://smithy.io/2.0/aws/amazon-eventstream.html (prelude, headers, payload, two CRC32).
"""

from __future__ import annotations

import json
import socket
import struct
from binascii import crc32
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.hosting.deployment import group_of

_MODEL_ERROR_STATUS = 424
_TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the "
    "latency metrics for each container in Amazon CloudWatch, resolve the issue, and try again."
)


@dataclass(frozen=True)
class Call:
    """An HTTP request. ``headers`` has lower-case names; ``client`` is watched for its end.

    ``region`` is that of the signature, ``None`` where there is none.
    """

    name: str
    operation: str
    region: str | None
    headers: dict[str, str]
    body: bytes
    client: socket.socket | None = None


@dataclass(frozen=True)
class Answer:
    """An HTTP answer. ``body`` is read as it is sent, and closed in the end."""

    status: int
    headers: dict[str, str]
    body: Iterator[bytes] = field(default_factory=lambda: iter(()))


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, document: dict[str, Any]) -> None:
        super().__init__(code)
        content = json.dumps(document, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        if code:
            headers["x-amzn-errortype"] = code
        self.answer = Answer(status, headers, iter((content,)))


def invalid(message: str) -> Refusal:
    """ValidationError: there is nobody who could answer."""
    return Refusal(400, "ValidationError", {"Message": message})


def not_found(name: str) -> Refusal:
    """No such endpoint."""
    return invalid(f"Endpoint {name} of account {ACCOUNT} not found.")


def unsigned() -> Refusal:
    """No signature."""
    document = {"message": "Missing Authentication Token"}
    return Refusal(403, "MissingAuthenticationTokenException", document)


def bad_token(why: str) -> Refusal:
    """No bearer token, or a wrong one."""
    return Refusal(401, "", {"message": f"Unauthorized: {why}"})


def too_large(limit: int) -> Refusal:
    """A body over the limit; it never reaches the container, and has no error code."""
    return Refusal(413, "", {"message": f"HTTP content length exceeded {limit} bytes."})


def model_error(region: str, endpoint: str, status: int, said: str) -> Refusal:
    """ModelError: the container answered ``status`` and ``said``; 0 is no answer at all."""
    kind = "client" if 400 <= status < 500 else "server"
    group = group_of(endpoint)
    document = {
        "Message": (
            f'Received {kind} error ({status}) from primary with message "{said}". See '
            f"https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
            f"#logEventViewer:group={group} in account {ACCOUNT} for more information."
        ),
        "OriginalStatusCode": status,
        "OriginalMessage": said,
        "LogStreamArn": f"arn:aws:logs:{region}:{ACCOUNT}:log-group:{group}",
    }
    return Refusal(_MODEL_ERROR_STATUS, "ModelError", document)


def timed_out(region: str, endpoint: str) -> Refusal:
    """ModelError: the container took too long."""
    return model_error(region, endpoint, 0, _TIMED_OUT)


CONTENT_TYPE = "application/vnd.amazon.eventstream"
_STRING = 7


def payload_part(data: bytes) -> bytes:
    """A PayloadPart event with ``data``."""
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
    block = b"".join(_header(name, value) for name, value in headers.items())
    prelude = struct.pack("!II", 12 + len(block) + len(payload) + 4, len(block))
    message = prelude + struct.pack("!I", crc32(prelude)) + block + payload
    return message + struct.pack("!I", crc32(message))


def _header(name: str, value: str) -> bytes:
    return (
        struct.pack("!B", len(name))
        + name.encode()
        + struct.pack("!BH", _STRING, len(value))
        + value.encode()
    )
