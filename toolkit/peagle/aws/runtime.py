"""Requests to an endpoint: complete answers, streamed answers, speculation counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import LOGS_FIX, engine_message, translated
from peagle.errors import CloudError, EngineError, UserError
from peagle.protocol import Counters, EventSplitter, Piece, counters_of, piece_of
from peagle_serve.contract import COUNTERS_ATTRIBUTE

MAX_BODY_BYTES = 6_291_456
"""Limit of InvokeEndpoint."""

_JSON = "application/json"
_RUNTIME = "sagemaker-runtime"


def invoke(aws: Aws, endpoint: str, data: bytes, **parameters: str) -> bytes:
    """One InvokeEndpoint call; the complete response. AWS allows 60 seconds."""
    response = aws.call(
        _RUNTIME,
        "invoke_endpoint",
        EndpointName=endpoint,
        Body=data,
        ContentType=_JSON,
        **parameters,
    )
    with translated(_RUNTIME, aws.region):
        content: bytes = response["Body"].read()
    return content


def ask(aws: Aws, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    """The complete answer to ``body``. Answers that take longer than 60 seconds must stream."""
    with _log_named(endpoint):
        return _document(invoke(aws, endpoint, encoded(body), Accept=_JSON))


def stream(aws: Aws, endpoint: str, body: dict[str, Any]) -> Iterator[Piece]:
    """The answer piece by piece, as it arrives. ``body`` must request a stream.

    Raises EngineError when the stream contains an error or ends before ``[DONE]``.
    """
    splitter = EventSplitter()
    with _log_named(endpoint):
        events = aws.events(
            _RUNTIME,
            "invoke_endpoint_with_response_stream",
            EndpointName=endpoint,
            Body=encoded(body),
            ContentType=_JSON,
        )
        for event in events:
            for data in splitter.feed(event.get("PayloadPart", {}).get("Bytes", b"")):
                if data == "[DONE]":
                    return
                yield piece_of(_document(data.encode()))
        raise EngineError("the answer broke off before its end", LOGS_FIX)


@contextmanager
def _log_named(endpoint: str) -> Iterator[None]:
    """Name the endpoint's log in the fix of an engine's error."""
    try:
        yield
    except EngineError as error:
        if error.fix == LOGS_FIX:
            error.fix, error.command = "read the log", ("peagle", "logs", endpoint)
        raise


def counters(aws: Aws, endpoint: str) -> Counters | None:
    """The engine's speculation counters; ``None`` when the image does not expose them.

    Only an image with ``peagle_serve`` exposes them; AWS's stock vLLM image rejects the empty
    request or answers something else.
    """
    try:
        response = invoke(aws, endpoint, b"{}", CustomAttributes=COUNTERS_ATTRIBUTE)
        return counters_of(json.loads(response))
    except (UserError, ValueError, KeyError, TypeError):
        return None


def encoded(body: dict[str, Any]) -> bytes:
    """The body as sent. Raises UserError when InvokeEndpoint would reject its size."""
    data = json.dumps(body, ensure_ascii=False).encode()
    if len(data) > MAX_BODY_BYTES:
        raise UserError(
            f"the request has {len(data):,} bytes; SageMaker accepts {MAX_BODY_BYTES:,}",
            "shorten the prompt",
            "request-too-large",
        )
    return data


def _document(data: bytes) -> dict[str, Any]:
    """The engine's JSON. vLLM reports an error after the first byte as an ordinary document."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise CloudError(f"the endpoint did not answer JSON: {data[:80]!r}") from error
    if not isinstance(document, dict):
        raise CloudError(f"the endpoint's answer is not vLLM's: {data[:80]!r}")
    if "error" in document or document.get("object") == "error":
        raise EngineError(f"the engine failed: {engine_message(json.dumps(document))}", LOGS_FIX)
    return document
