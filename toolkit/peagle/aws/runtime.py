"""Talking to an endpoint: whole answers, streamed answers, and the engine's own counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import LOGS_FIX, engine_message
from peagle.errors import CloudError, EngineError, UserError
from peagle.protocol import Counters, EventSplitter, Piece, counters_of, piece_of
from peagle_serve.contract import COUNTERS_ATTRIBUTE

LONGEST_BODY = 6_291_456
"""InvokeEndpoint takes no more bytes."""

_JSON = "application/json"
_RUNTIME = "sagemaker-runtime"


def ask(aws: Aws, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer to ``body``. AWS allows 60 seconds; what takes longer must stream."""
    answer = aws.call(
        _RUNTIME,
        "invoke_endpoint",
        EndpointName=endpoint,
        Body=encoded(body),
        ContentType=_JSON,
        Accept=_JSON,
    )
    document = _document(answer["Body"].read())
    _refuse_error(document)
    return document


def stream(aws: Aws, endpoint: str, body: dict[str, Any]) -> Iterator[Piece]:
    """The answer piece by piece, as it arrives. ``body`` must ask the engine to stream.

    Raises EngineError when the stream carries an error, or ends before the engine said it is done.
    """
    splitter = EventSplitter()
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
            document = _document(data.encode())
            _refuse_error(document)
            yield piece_of(document)
    raise EngineError("the answer broke off before its end", LOGS_FIX)


def counters(aws: Aws, endpoint: str) -> Counters | None:
    """The engine's speculation counters; ``None`` when the image cannot tell them.

    Only an image with our ``peagle_serve`` answers; AWS's plain vLLM image refuses the empty
    request or answers something else.
    """
    try:
        answer = aws.call(
            _RUNTIME,
            "invoke_endpoint",
            EndpointName=endpoint,
            Body=b"{}",
            ContentType=_JSON,
            CustomAttributes=COUNTERS_ATTRIBUTE,
        )
        document = json.loads(answer["Body"].read())
        return counters_of(document)
    except UserError:
        return None
    except (ValueError, KeyError, TypeError):
        return None


def encoded(body: dict[str, Any]) -> bytes:
    """The body as sent. Raises UserError when it is longer than InvokeEndpoint takes."""
    data = json.dumps(body, ensure_ascii=False).encode()
    if len(data) > LONGEST_BODY:
        raise UserError(
            f"the request has {len(data):,} bytes, and SageMaker takes {LONGEST_BODY:,}",
            "shorten the prompt",
        )
    return data


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise CloudError(f"the endpoint answered no JSON: {data[:80]!r}") from error
    if not isinstance(document, dict):
        raise CloudError(f"the endpoint answered no answer of vLLM: {data[:80]!r}")
    return document


def _refuse_error(document: dict[str, Any]) -> None:
    """vLLM reports what goes wrong after the first byte as an ordinary document."""
    if "error" in document or document.get("object") == "error":
        raise EngineError(f"the engine broke off: {engine_message(json.dumps(document))}", LOGS_FIX)
