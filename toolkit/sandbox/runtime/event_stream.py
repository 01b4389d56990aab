"""Frames of ``application/vnd.amazon.eventstream``, as InvokeEndpointWithResponseStream sends.

Format: https://smithy.io/2.0/aws/amazon-eventstream.html (prelude, headers, payload, two CRC32).
"""

from __future__ import annotations

import json
import struct
from binascii import crc32

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
