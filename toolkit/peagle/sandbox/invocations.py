"""InvokeEndpoint, InvokeEndpointWithResponseStream, and the OpenAI-compatible path.

A stream is passed on chunk by chunk as it arrives, in ``application/vnd.amazon.eventstream`` frames
(https://smithy.io/2.0/aws/amazon-eventstream.html), for which botocore has a parser and no encoder.
A whole response is completed before it is sent, so that an engine that breaks off is a ModelError.

h11 parses the HTTP of the engine. The sockets are read here and not by an HTTP client, because the
connection of the sandbox's own client is watched at the same time: a client that disconnects ends
the request at the engine at once, even while the engine is still silent.
"""

from __future__ import annotations

import json
import selectors
import socket
import struct
import time
from binascii import crc32
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import h11

from peagle.engine.process import LOOPBACK
from peagle.protocol import log_group
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.endpoints import SandboxEndpoint
from peagle.sandbox.engines import Draining, EngineInstance
from peagle.sandbox.observability import MetricSource, RequestMetrics
from peagle.sandbox.requests import LARGEST_BODY, OPENAI_PATH, Response, json_response
from peagle.sandbox.sagemaker import find_endpoint
from peagle_serve.contract import COUNTERS_ATTRIBUTE, WARM_ATTRIBUTE

BODY_LIMIT = 6 * 1024 * 1024
"""Bytes; the limit of InvokeEndpoint's Body in the service model."""

RESPONSE_SECONDS = 60.0
STREAM_SECONDS = 480.0
"""How long a container may take for a whole response, and for a whole stream (SageMaker's
documentation of containers that serve models)."""

TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the "
    "latency metrics for each container in Amazon CloudWatch, resolve the issue, and try again."
)
"""Message of a ModelError when the container exceeds SageMaker's time limit."""

EVENT_STREAM = "application/vnd.amazon.eventstream"
_STRING = 7

_SAGEMAKER_HEADERS = "x-amzn-sagemaker-"
_COMPONENT_HEADER = "x-amzn-sagemaker-inference-component"
_VARIANT = "x-Amzn-Invoked-Production-Variant"
_OUR_ATTRIBUTES = (COUNTERS_ATTRIBUTE, WARM_ATTRIBUTE)
"""What the toolkit's entrypoint understands, and AWS's image does not."""

_HEAD_LIMIT = 64 * 1024
_READ_BYTES = 64 * 1024


class EngineUnreachable(Exception):
    """The engine does not accept connections."""


class BrokenResponse(Exception):
    """The response is not valid HTTP, or the connection ended before it was complete."""


class ResponseTimeout(Exception):
    """The engine did not complete its response in time."""


class ClientDisconnected(ConnectionAbortedError):
    """The sandbox's client closed its connection. An HTTP server expects this error class."""


@dataclass(frozen=True)
class ResponseHead:
    """Status and headers of a response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]


class HttpExchange:
    """One POST request and its response over a connection that ``send`` and ``receive`` use.

    ``receive`` returns the next bytes from the server, ``b""`` at the end of the connection. It is
    called only when everything received so far has been passed on.
    """

    def __init__(self, send: Callable[[bytes], object], receive: Callable[[], bytes]) -> None:
        self._send = send
        self._receive = receive
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)

    def post(self, host: str, path: str, headers: Mapping[str, str], body: bytes) -> ResponseHead:
        """Send the request and return the head of its response.

        Raises BrokenResponse, h11.LocalProtocolError for headers that HTTP does not allow, and
        whatever ``send`` and ``receive`` raise.
        """
        lines = {"Host": host, "Content-Length": str(len(body)), "Connection": "close", **headers}
        request = h11.Request(
            method="POST",
            target=path,
            headers=[(name.encode(), value.encode("latin-1")) for name, value in lines.items()],
        )
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        self._send(b"".join(self._http.send(part) or b"" for part in parts))
        while not isinstance(event := self._next_event(), h11.Response):
            pass  # 100 Continue and other interim responses
        received = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        return ResponseHead(event.status_code, received)

    def chunks(self) -> Iterator[bytes]:
        """The data of the response body, as it arrives.

        Chunks of a chunked body that arrive together stay separate; data of an incomplete chunk is
        returned without waiting for the rest. Raises BrokenResponse, and what ``receive`` raises.
        """
        while isinstance(event := self._next_event(), h11.Data):
            yield bytes(event.data)

    def _next_event(self) -> Any:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(self._receive())
        except h11.RemoteProtocolError as error:
            _, ended = self._http.trailing_data
            why = "the engine closed the connection early" if ended else "invalid HTTP"
            raise BrokenResponse(f"{why}: {error}") from error
        return event


class EngineRequest:
    """A request that was sent to an engine: ``head`` is complete, ``chunks`` gives the body.

    Closing it early tells the engine to stop.
    """

    def __init__(
        self,
        port: int,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        seconds: float,
        client: socket.socket | None = None,
    ) -> None:
        """Send ``body`` with POST and wait for the head of the response.

        ``seconds`` limits the request as a whole. Raises EngineUnreachable, BrokenResponse,
        ClientDisconnected, ResponseTimeout, h11.LocalProtocolError.
        """
        self._until = time.monotonic() + seconds
        try:
            self._engine = socket.create_connection((LOOPBACK, port), timeout=seconds)
        except OSError as error:
            raise EngineUnreachable(str(error)) from error
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._engine, selectors.EVENT_READ)
        if client is not None:
            self._selector.register(client, selectors.EVENT_READ)
        exchange = HttpExchange(self._send, self._receive)
        self.chunks = exchange.chunks
        try:
            self._engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.head = exchange.post(f"{LOOPBACK}:{port}", path, headers, body)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection; may be repeated."""
        self._selector.close()
        self._engine.close()

    def _send(self, request: bytes) -> None:
        try:
            self._engine.sendall(request)
        except TimeoutError:
            raise ResponseTimeout from None
        except OSError as error:
            raise BrokenResponse(str(error)) from error

    def _receive(self) -> bytes:
        """The next bytes from the engine; empty at the end of the connection. A disconnected client
        ends the request; further data from it is ignored."""
        while True:
            ready = self._selector.select(max(0.0, self._until - time.monotonic()))
            if not ready:
                raise ResponseTimeout
            sockets = [key.fileobj for key, _ in ready]
            if self._engine in sockets:
                try:
                    return self._engine.recv(_READ_BYTES)
                except ConnectionError as error:
                    raise BrokenResponse(str(error)) from error
            client = sockets[0]
            assert isinstance(client, socket.socket)
            try:
                if not client.recv(1, socket.MSG_PEEK):
                    raise ClientDisconnected
            except ConnectionError:
                raise ClientDisconnected from None
            self._selector.unregister(client)


class ErrorResponse(Exception):
    """A response that reports an error; ``code`` is AWS's error code."""

    def __init__(self, status: int, code: str, document: dict[str, Any]) -> None:
        super().__init__(code)
        self.response = json_response(document, status, error_type=code)


def _validation_error(message: str) -> ErrorResponse:
    """The endpoint cannot answer: it does not exist or is not in service."""
    return ErrorResponse(400, "ValidationError", {"Message": message})


def _model_error(region: str, endpoint: str, status: int, text: str) -> ErrorResponse:
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


def payload_part(data: bytes) -> bytes:
    """A frame of the event stream with a part of the answer."""
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
    """Prelude, headers, payload, and two CRC32."""
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


@dataclass
class _Relayed:
    """A response that the engine has begun, and what must be closed after it."""

    invocation: Invocation
    instance: EngineInstance
    request: EngineRequest
    metrics: RequestMetrics
    stack: ExitStack

    @property
    def headers(self) -> dict[str, str]:
        """The engine's headers that SageMaker passes on."""
        headers = self.request.head.headers
        passed = {
            name: text for name, text in headers.items() if name.startswith(_SAGEMAKER_HEADERS)
        }
        return {
            "Content-Type": headers.get("content-type", "application/octet-stream"),
            _VARIANT: self.instance.spec.variant,
            **passed,
        }

    def chunks(self) -> Iterator[bytes]:
        head = self.request.head
        is_stream = head.headers.get("content-type", "").startswith("text/event-stream")
        with self.stack:
            yield from self.metrics.chunks(head.status, is_stream, self.request.chunks())

    def whole(self) -> bytes:
        """The complete body, of at most LARGEST_BODY bytes. Raises ErrorResponse."""
        parts, size = [], 0
        try:
            for chunk in self.chunks():
                size += len(chunk)
                if size > LARGEST_BODY:
                    raise self.error(500, f"the response has more than {LARGEST_BODY} bytes")
                parts.append(chunk)
            return b"".join(parts)
        except BrokenResponse as error:
            raise self.error(500, str(error)) from error
        except ResponseTimeout:
            raise self.error(0, TIMED_OUT) from None

    def raise_for_status(self) -> None:
        status = self.request.head.status
        if status >= 400:
            raise self.error(status, self.whole().decode("utf-8", "replace"))

    def error(self, status: int, text: str) -> ErrorResponse:
        return _model_error(self.invocation.region, self.invocation.name, status, text)


def not_served(method: str, path: str) -> Response | None:
    """SageMaker's answer about a path below an endpoint's OpenAI address that it does not serve."""
    other = OPENAI_PATH.fullmatch(path)
    if other is None:
        return None
    message = (
        f"SageMaker does not serve {method} {other['path'] or '/'}; of OpenAI's API, it serves "
        "POST /v1/chat/completions only"
    )
    error = {"message": message, "type": "NotFoundError", "param": None, "code": 404}
    return json_response({"error": error}, 404)


def invoke(invocation: Invocation) -> Response:
    """The answer of one of the endpoint's engines."""
    try:
        return _OPERATIONS[invocation.operation](invocation)
    except ErrorResponse as error:
        return error.response


def _invoke_endpoint(invocation: Invocation) -> Response:
    accept = invocation.headers.get("accept", "*/*")
    relayed = _relay(invocation, "/invocations", accept, RESPONSE_SECONDS)
    relayed.raise_for_status()
    body = relayed.whole()
    return Response(200, {**relayed.headers, "Content-Length": str(len(body))}, iter((body,)))


def _invoke_with_response_stream(invocation: Invocation) -> Response:
    accept = invocation.headers.get("x-amzn-sagemaker-accept", "*/*")
    relayed = _relay(invocation, "/invocations", accept, STREAM_SECONDS)
    relayed.raise_for_status()
    headers = relayed.headers
    headers["X-Amzn-SageMaker-Content-Type"] = headers["Content-Type"]
    headers["Content-Type"] = EVENT_STREAM

    def frames() -> Iterator[bytes]:
        """The body as PayloadParts; a ModelStreamError ends it where the engine breaks off."""
        try:
            for chunk in relayed.chunks():
                yield payload_part(chunk)
        except BrokenResponse as error:
            yield stream_error(f"The model's stream broke: {error}.", "StreamBroken")
        except ResponseTimeout:
            message = f"The model took longer than {STREAM_SECONDS:.0f} seconds."
            yield stream_error(message, "ModelInvocationTimeExceeded")

    return Response(200, headers, frames())


def _chat_completions(invocation: Invocation) -> Response:
    """The engine's own response, errors included, for a caller with a bearer token."""
    accept = invocation.headers.get("accept", "*/*")
    relayed = _relay(invocation, "/v1/chat/completions", accept, STREAM_SECONDS)

    def body() -> Iterator[bytes]:
        """The body as it is; where it breaks off, the client's connection is closed too."""
        try:
            yield from relayed.chunks()
        except (BrokenResponse, ResponseTimeout) as error:
            raise ConnectionAbortedError(str(error)) from error

    return Response(relayed.request.head.status, relayed.headers, body())


_OPERATIONS: dict[str, Callable[[Invocation], Response]] = {
    "invocations": _invoke_endpoint,
    "invocations-response-stream": _invoke_with_response_stream,
    "openai/v1/chat/completions": _chat_completions,
}


def _relay(invocation: Invocation, path: str, accept: str, seconds: float) -> _Relayed:
    """Send the invocation to one of the endpoint's engines. Raises ErrorResponse."""
    begun = time.monotonic()
    with ExitStack() as stack:
        endpoint, instance = _admit(invocation, stack)
        spec = instance.spec
        config = endpoint.config_name(instance)
        source = MetricSource(
            invocation.region, invocation.name, spec.variant, spec.component, config
        )
        metrics = RequestMetrics(source, begun)
        try:
            request = _send(invocation, instance, path, accept, seconds)
        except BaseException:
            metrics.end(0)
            raise
        stack.callback(request.close)
        return _Relayed(invocation, instance, request, metrics, stack.pop_all())


def _admit(invocation: Invocation, stack: ExitStack) -> tuple[SandboxEndpoint, EngineInstance]:
    """One of the endpoint's engines, which counts the invocation until ``stack`` is closed.

    An update may replace the engines at any moment: one that drains has a successor already.
    """
    while True:
        endpoint, instance = _choose(invocation)
        with suppress(Draining):
            stack.enter_context(instance.invocation())
            return endpoint, instance


def _send(
    invocation: Invocation, instance: EngineInstance, path: str, accept: str, seconds: float
) -> EngineRequest:
    assert instance.process is not None
    passed = {
        name: value
        for name, value in invocation.headers.items()
        if name.startswith(_SAGEMAKER_HEADERS)
        and not (instance.spec.plain and value in _OUR_ATTRIBUTES)
    }
    content_type = invocation.headers.get("content-type", "application/octet-stream")
    headers = {**passed, "Content-Type": content_type, "Accept": accept}
    region, name = invocation.region, invocation.name
    try:
        return EngineRequest(
            instance.process.port, path, headers, invocation.body, seconds=seconds,
            client=invocation.client,
        )  # fmt: skip
    except h11.LocalProtocolError as error:
        raise _validation_error(f"Invalid request header: {error}.") from error
    except (EngineUnreachable, BrokenResponse) as error:
        text = f"the engine exited: {instance.end_reason() or error}"
        raise _model_error(region, name, 503, text) from error
    except ResponseTimeout:
        raise _model_error(region, name, 0, TIMED_OUT) from None


def _choose(invocation: Invocation) -> tuple[SandboxEndpoint, EngineInstance]:
    """The endpoint and its instance, or copy, for the next request. Raises ErrorResponse."""
    name = invocation.name
    endpoint = find_endpoint(invocation.region, name)
    if endpoint is None:
        raise _validation_error(f"Endpoint {name} of account {ACCOUNT} not found.")
    fleet = endpoint.next_fleet() if endpoint.is_serving else None
    if fleet is None:
        state = endpoint.endpoint_status
        raise _validation_error(f"Endpoint {name} is not in service; its state is {state}.")
    component = invocation.component or invocation.headers.get(_COMPONENT_HEADER)
    if endpoint.hosts_components or component:
        return endpoint, _choose_copy(invocation.region, endpoint, component)
    variant = invocation.headers.get("x-amzn-sagemaker-target-variant")
    if variant not in (None, *fleet.variants):
        raise _validation_error(f"Endpoint {name} has no running variant {variant}.")
    return endpoint, fleet.choose(endpoint.weights, variant)


def _choose_copy(region: str, endpoint: SandboxEndpoint, name: str | None) -> EngineInstance:
    """A copy of the endpoint's inference component. Raises ErrorResponse."""
    if not endpoint.hosts_components:
        raise _validation_error(
            "Inference Component Name header is not allowed for endpoints to which you dont plan "
            "to deploy inference components. Please remove the Inference Component Name header "
            "and try again."
        )
    if name is None:
        raise _validation_error(
            "Inference Component Name header is required for endpoints to which you plan to deploy "
            "inference components. Please include Inference Component Name header or consider "
            "using SageMaker models."
        )
    component = endpoint.components.get(name)
    if component is None or component.status in ("Creating", "Failed", "Deleting"):
        raise _validation_error(
            f"Inference Component {name} of endpoint {endpoint.endpoint_name} not found."
        )
    instance = component.choose()
    if instance is None:
        component.refused_at = time.time()
        variant = component.parameters["VariantName"]
        source = MetricSource(region, endpoint.endpoint_name, variant, name)
        source.publish("NoCapacityInvocationFailures", 1)
        raise _validation_error(
            "Inference Component has no capacity to process this request. ApplicationAutoScaling "
            "may be in-progress (if configured) or try to increase the capacity by invoking "
            "UpdateInferenceComponentRuntimeConfig API."
        )
    return instance
