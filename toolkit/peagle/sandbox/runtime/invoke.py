"""The bearer token of the OpenAI-compatible path.

Its shape: ``sagemaker-api-key-`` and, in base64, a URL presigned for CallWithBearerToken. The
signature is not checked: the sandbox knows no secret keys.

InvokeEndpoint, InvokeEndpointWithResponseStream, and the OpenAI-compatible path.

A stream goes on chunk by chunk, as it comes; a whole answer is complete before it is sent, so
that an engine which breaks is a ModelError.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

from peagle.sandbox.hosting.deployment import Deployment
from peagle.sandbox.runtime import messages as calls
from peagle.sandbox.runtime.messages import (
    CONTENT_TYPE,
    Answer,
    Call,
    Refusal,
    payload_part,
    stream_error,
)
from peagle.sandbox.runtime.relay import BrokenAnswer, EngineUnreachable, Exchange, TookTooLong
from peagle.sandbox.sagemaker.backend import find_endpoint

PREFIX = "sagemaker-api-key-"
LONGEST = timedelta(hours=12)
_ACTION = "CallWithBearerToken"


class BadToken(Exception):
    """Not a token, or no longer one."""


def region_of(authorization: str, now: datetime | None = None) -> str:
    """The region that the token in an Authorization header is for. Raises BadToken."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.startswith(PREFIX):
        raise BadToken(f"a bearer token that begins with {PREFIX} is needed")
    query = _query(token.removeprefix(PREFIX).strip())
    try:
        if query["Action"] != _ACTION or not query["X-Amz-Signature"]:
            raise BadToken(f"the token is not for {_ACTION}")
        _, _, region, service, _ = query["X-Amz-Credential"].split("/")
        signed = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        lifetime = timedelta(seconds=int(query["X-Amz-Expires"]))
    except (KeyError, ValueError, OverflowError) as error:
        raise BadToken(f"the token lacks what a presigned URL has ({error})") from None
    if service != "sagemaker":
        raise BadToken(f"the token is for the service {service}")
    if (now or datetime.now(UTC)) > signed + min(lifetime, LONGEST):
        raise BadToken("the token has expired")
    return region


def _query(encoded: str) -> dict[str, str]:
    try:
        text = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True).decode()
        query = parse_qs(text.partition("?")[2])
    except ValueError:
        raise BadToken("the token is not base64 of a URL") from None
    return {name: values[0] for name, values in query.items()}


BODY_LIMIT = 6 * 1024 * 1024
"""Bytes; InvokeEndpoint's Body in the service model."""

ANSWER_SECONDS = 60.0
STREAM_SECONDS = 480.0
"""How long a container may take for a whole answer, and for a whole stream (SageMaker's
documentation of containers that serve models)."""

PATH = re.compile(
    r"/endpoints/(?P<name>[^/]+)/"
    r"(?P<operation>invocations|invocations-response-stream|openai/v1/chat/completions)"
)
_OWN_HEADERS = "x-amzn-sagemaker-"
_VARIANT = "x-Amzn-Invoked-Production-Variant"


@dataclass
class _Exchanged:
    """An answer that the engine has begun, and what must be closed after it."""

    region: str
    endpoint: str
    deployment: Deployment
    exchange: Exchange
    stack: ExitStack

    @property
    def headers(self) -> dict[str, str]:
        """The engine's headers that SageMaker hands on."""
        given = self.exchange.head.headers
        own = {
            name: value for name, value in given.items() if name.lower().startswith(_OWN_HEADERS)
        }
        return {
            "Content-Type": given.get("Content-Type", "application/octet-stream"),
            _VARIANT: self.deployment.order.variant,
            **own,
        }

    def chunks(self) -> Iterator[bytes]:
        """The body, each piece as it comes."""
        with self.stack:
            yield from self.exchange.chunks()

    def whole(self) -> bytes:
        """The body, complete. Raises Refusal."""
        try:
            return b"".join(self.chunks())
        except BrokenAnswer as error:
            raise calls.model_error(self.region, self.endpoint, 500, str(error)) from error
        except TookTooLong:
            raise calls.timed_out(self.region, self.endpoint) from None


def invoke(call: Call) -> Answer:
    """Answer one call."""
    try:
        if len(call.body) > BODY_LIMIT:
            raise calls.too_large(BODY_LIMIT)
        return _OPERATIONS[call.operation](call)
    except Refusal as refusal:
        return refusal.answer


def _invoke_endpoint(call: Call) -> Answer:
    accept = call.headers.get("accept", "*/*")
    exchanged = _exchange(call, _region(call), "/invocations", accept, ANSWER_SECONDS)
    _refuse_error(exchanged)
    body = exchanged.whole()
    return Answer(200, {**exchanged.headers, "Content-Length": str(len(body))}, iter((body,)))


def _invoke_with_response_stream(call: Call) -> Answer:
    accept = call.headers.get("x-amzn-sagemaker-accept", "*/*")
    exchanged = _exchange(call, _region(call), "/invocations", accept, STREAM_SECONDS)
    _refuse_error(exchanged)
    headers = exchanged.headers
    headers["X-Amzn-SageMaker-Content-Type"] = headers["Content-Type"]
    headers["Content-Type"] = CONTENT_TYPE
    return Answer(200, headers, _frames(exchanged))


def _chat_completions(call: Call) -> Answer:
    """The engine's own answer, errors too, for who holds a bearer token."""
    try:
        region = region_of(call.headers.get("authorization", ""))
    except BadToken as error:
        raise calls.bad_token(str(error)) from None
    accept = call.headers.get("accept", "*/*")
    exchanged = _exchange(call, region, "/v1/chat/completions", accept, STREAM_SECONDS)
    return Answer(exchanged.exchange.head.status, exchanged.headers, _lost_if_broken(exchanged))


_OPERATIONS: dict[str, Callable[[Call], Answer]] = {
    "invocations": _invoke_endpoint,
    "invocations-response-stream": _invoke_with_response_stream,
    "openai/v1/chat/completions": _chat_completions,
}


def _region(call: Call) -> str:
    if call.region is None:
        raise calls.unsigned()
    return call.region


def _exchange(call: Call, region: str, path: str, accept: str, seconds: float) -> _Exchanged:
    """Ask the endpoint's engine. Raises Refusal."""
    deployment = _deployment(call, region)
    with ExitStack() as stack:
        stack.enter_context(deployment.answering())
        exchange = _ask(call, region, deployment, path, accept, seconds)
        stack.callback(exchange.close)
        return _Exchanged(region, call.name, deployment, exchange, stack.pop_all())


def _ask(
    call: Call, region: str, deployment: Deployment, path: str, accept: str, seconds: float
) -> Exchange:
    assert deployment.process is not None
    own = {name: value for name, value in call.headers.items() if name.startswith(_OWN_HEADERS)}
    content_type = call.headers.get("content-type", "application/octet-stream")
    headers = {**own, "Content-Type": content_type, "Accept": accept}
    try:
        return Exchange(
            deployment.process.port, path, headers, call.body, seconds=seconds, client=call.client
        )
    except (EngineUnreachable, BrokenAnswer) as error:
        said = f"the engine ended: {deployment.why_it_ended() or error}"
        raise calls.model_error(region, call.name, 503, said) from error
    except TookTooLong:
        raise calls.timed_out(region, call.name) from None


def _deployment(call: Call, region: str) -> Deployment:
    endpoint = find_endpoint(region, call.name)
    if endpoint is None:
        raise calls.not_found(call.name)
    if endpoint.serving is None:
        state = endpoint.endpoint_status
        raise calls.invalid(f"Endpoint {call.name} is not in service; its state is {state}.")
    wanted = call.headers.get("x-amzn-sagemaker-target-variant")
    deployment: Deployment = endpoint.serving
    if wanted not in (None, deployment.order.variant):
        raise calls.invalid(f"Endpoint {call.name} has no running variant {wanted}.")
    return deployment


def _refuse_error(exchanged: _Exchanged) -> None:
    status = exchanged.exchange.head.status
    if status >= 400:
        said = exchanged.whole().decode("utf-8", "replace")
        raise calls.model_error(exchanged.region, exchanged.endpoint, status, said)


def _frames(exchanged: _Exchanged) -> Iterator[bytes]:
    """The body in PayloadParts; an engine that breaks ends it with a ModelStreamError."""
    try:
        for chunk in exchanged.chunks():
            yield payload_part(chunk)
    except BrokenAnswer as error:
        yield stream_error(f"The model's stream broke: {error}.", "StreamBroken")
    except TookTooLong:
        message = f"The model took longer than {STREAM_SECONDS:.0f} seconds."
        yield stream_error(message, "ModelInvocationTimeExceeded")


def _lost_if_broken(exchanged: _Exchanged) -> Iterator[bytes]:
    """The body as it is; where it breaks, so does the client's connection."""
    try:
        yield from exchanged.chunks()
    except (BrokenAnswer, TookTooLong) as error:
        raise ConnectionAbortedError(str(error)) from error
