"""Questions to the container itself, through the one route that SageMaker offers.

A request to ``/invocations`` with the header ``X-Amzn-SageMaker-Custom-Attributes: peagle=...`` is
for the container and not for the model.
"""

from __future__ import annotations

import json
from typing import Any

from serve.inner import Message, Send

HEADER = b"x-amzn-sagemaker-custom-attributes"


def asks_for(scope: Message, attribute: bytes) -> bool:
    """Whether a request has that attribute, such as ``peagle=counters``."""
    return (
        scope["type"] == "http"
        and scope["path"] == "/invocations"
        and any(name.lower() == HEADER and value.strip() == attribute
                for name, value in scope["headers"])
    )  # fmt: skip


async def answer(send: Send, status: int, document: dict[str, Any]) -> None:
    """Answer with a JSON document."""
    await answer_bytes(send, status, json.dumps(document).encode(), b"application/json")


async def answer_bytes(
    send: Send, status: int, body: bytes, kind: bytes = b"application/octet-stream"
) -> None:
    """Answer with bytes."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
