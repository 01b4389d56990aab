"""InvokeEndpoint, InvokeEndpointWithResponseStream, and the OpenAI-compatible path.

A stream is passed on chunk by chunk as it arrives, in ``application/vnd.amazon.eventstream``
frames.
A whole response is completed before it is sent, so that an engine that breaks off is a ModelError.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from wsgiref.types import WSGIEnvironment

from moto.core.eventstream import EventStreamEncoder
from werkzeug.wrappers import Response

from peagle.engine.process import LOOPBACK
from peagle.protocol import log_group
from peagle.sandbox.capture import is_sampled, write_record
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.endpoints import SandboxEndpoint
from peagle.sandbox.engines import Draining, EngineInstance
from peagle.sandbox.observability import MetricSource
from peagle.sandbox.requests import LARGEST_BODY, Refused, header_names, request_body
from peagle.sandbox.sagemaker import find_endpoint
from peagle_serve.contract import COUNTERS_ATTRIBUTE, WARM_ATTRIBUTE

BODY_LIMIT = 6 * 1024 * 1024
"""Bytes; the limit of InvokeEndpoint's Body in the service model."""

RESPONSE_SECONDS = 60.0
STREAM_SECONDS = 480.0
"""How long a container may take for a whole response, and for a stream (SageMaker's documentation
of containers that serve models)."""

_TIMED_OUT = (
    "Your invocation timed out while waiting for a response from container primary. Review the "
    "latency metrics for each container in Amazon CloudWatch, resolve the issue, and try again."
)
_SAGEMAKER_HEADERS = "x-amzn-sagemaker-"
_OUR_ATTRIBUTES = (COUNTERS_ATTRIBUTE, WARM_ATTRIBUTE)
"""What the toolkit's entrypoint understands, and AWS's image does not."""

_READ_BYTES = 64 * 1024
_MICROSECONDS = 1e6
BROKEN = (OSError, http.client.HTTPException)
"""What an engine that breaks off raises; TimeoutError where it takes too long."""


def payload_part(data: bytes) -> bytes:
    """A frame of the event stream with a part of the answer."""
    headers = {
        ":message-type": "event",
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
    }
    return EventStreamEncoder().encode_message(headers, data)


def stream_error(message: str, code: str) -> bytes:
    """A ModelStreamError, which ends the stream."""
    headers = {
        ":message-type": "exception",
        ":exception-type": "ModelStreamError",
        ":content-type": "application/json",
    }
    document = json.dumps({"Message": message, "ErrorCode": code})
    return EventStreamEncoder().encode_message(headers, document.encode())


def invoke(environ: WSGIEnvironment, path: re.Match[str], region: str) -> Response:
    """The answer of one of the endpoint's engines. ``path`` matches ``INVOCATION_PATH``; ``region``
    is that of the request's signature or token. Raises Refused."""
    headers, operation = header_names(environ), path["operation"]
    body = request_body(environ, BODY_LIMIT)
    component = path["component"] or headers.get(f"{_SAGEMAKER_HEADERS}inference-component")
    invocation = Invocation(region, path["name"], component, headers, body)
    accept = headers.get("accept", "*/*")
    if operation == "invocations":
        answer = Answer(invocation, "/invocations", accept, RESPONSE_SECONDS)
        answer.raise_for_status()
        return Response(answer.whole(), 200, answer.headers)
    if operation == "invocations-response-stream":
        accept = headers.get(f"{_SAGEMAKER_HEADERS}accept", "*/*")
        answer = Answer(invocation, "/invocations", accept, STREAM_SECONDS)
        answer.raise_for_status()
        content_type = {
            "X-Amzn-SageMaker-Content-Type": answer.headers["Content-Type"],
            "Content-Type": "application/vnd.amazon.eventstream",
        }
        return Response(_frames(answer), 200, answer.headers | content_type)
    answer = Answer(invocation, "/v1/chat/completions", accept, STREAM_SECONDS)
    return Response(_unframed(answer), answer.status, answer.headers)


def _frames(answer: Answer) -> Iterator[bytes]:
    """The body as PayloadParts; a ModelStreamError ends it where the engine breaks off."""
    try:
        yield from map(payload_part, answer.chunks())
    except TimeoutError:
        message = f"The model took longer than {STREAM_SECONDS:.0f} seconds."
        yield stream_error(message, "ModelInvocationTimeExceeded")
    except BROKEN as error:
        yield stream_error(f"The model's stream broke: {error!r}.", "StreamBroken")


def _unframed(answer: Answer) -> Iterator[bytes]:
    """The body as it is; where it breaks off, the client's connection is closed too."""
    try:
        yield from answer.chunks()
    except BROKEN as error:
        raise ConnectionAbortedError(str(error)) from error


@dataclass(frozen=True)
class Invocation:
    """A request to an endpoint. ``headers`` has lower-case names."""

    region: str
    name: str
    component: str | None
    headers: Mapping[str, str]
    body: bytes

    def refused(self, message: str) -> Refused:
        """The endpoint cannot answer: it does not exist or is not in service."""
        return Refused("ValidationError", message, Message=message)

    def model_error(self, status: int, text: str) -> Refused:
        """The container answered with ``status`` and ``text``; 0 means no answer."""
        kind = "client" if 400 <= status < 500 else "server"
        group = log_group(self.name)
        message = (
            f'Received {kind} error ({status}) from primary with message "{text}". See https://'
            f"{self.region}.console.aws.amazon.com/cloudwatch/home?region={self.region}"
            f"#logEventViewer:group={group} in account {ACCOUNT} for more information."
        )
        more = {
            "Message": message,
            "OriginalStatusCode": status,
            "OriginalMessage": text,
            "LogStreamArn": f"arn:aws:logs:{self.region}:{ACCOUNT}:log-group:{group}",
        }
        return Refused("ModelError", message, 424, **more)


class Answer:
    """The response that one of the endpoint's engines has begun; it is measured until its end."""

    def __init__(self, invocation: Invocation, path: str, accept: str, seconds: float) -> None:
        """Send the invocation to an engine, which may be silent for ``seconds``. Raises Refused."""
        self.invocation = invocation
        self._begun = time.monotonic()
        with ExitStack() as stack:
            instance = _admit(invocation, stack)
            spec = instance.spec
            self._metrics = MetricSource(
                invocation.region, invocation.name, spec.variant, spec.component
            )
            self._metrics.publish("Invocations", 1)
            self._sent = time.monotonic()
            assert instance.process is not None
            connection = http.client.HTTPConnection(
                LOOPBACK, instance.process.port, timeout=seconds
            )
            stack.callback(connection.close)
            passed = {
                name: value
                for name, value in invocation.headers.items()
                if name.startswith(_SAGEMAKER_HEADERS)
                and not (spec.plain and value in _OUR_ATTRIBUTES)
            }
            content_type = invocation.headers.get("content-type", "application/octet-stream")
            headers = {"Content-Type": content_type, "Accept": accept, "Connection": "close"}
            try:
                connection.request("POST", path, invocation.body, {**passed, **headers})
                self._response = connection.getresponse()
            except (ValueError, *BROKEN) as error:
                self._measure(0)
                if isinstance(error, TimeoutError):
                    raise invocation.model_error(0, _TIMED_OUT) from None
                if isinstance(error, BROKEN):
                    text = f"the engine exited: {instance.end_reason() or error}"
                    raise invocation.model_error(503, text) from error
                raise invocation.refused(f"Invalid request header: {error}.") from error
            self._spec, self._request_type = spec, content_type
            self._stack = stack.pop_all()
        self.status = self._response.status
        sent = {name.lower(): text for name, text in self._response.headers.items()}
        self.headers = {
            "Content-Type": sent.get("content-type", "application/octet-stream"),
            "x-Amzn-Invoked-Production-Variant": spec.variant,
            **{name: text for name, text in sent.items() if name.startswith(_SAGEMAKER_HEADERS)},
        }

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives; chunks that arrive together stay separate. Raises BROKEN."""
        is_first = self.headers["Content-Type"].startswith("text/event-stream")
        is_broken, left = True, self._response.length
        is_captured = self.status < 300 and is_sampled(self._spec.capture)
        passed: list[bytes] = []
        with self._stack:
            try:
                while left is None or left > 0:
                    data = self._response.read1(_READ_BYTES if left is None else left)
                    if not data and left:
                        raise http.client.IncompleteRead(b"", left)
                    if not data:
                        break
                    left = None if left is None else left - len(data)
                    if is_first:
                        self._publish_since("FirstChunkLatency", self._begun)
                        is_first = False
                    passed += [data] if is_captured else []
                    yield data
                is_broken = False
                if is_captured:
                    answer = (self.headers["Content-Type"], b"".join(passed))
                    write_record(self._spec, (self._request_type, self.invocation.body), answer)
            except GeneratorExit:  # the client has gone
                is_broken = False
                raise
            finally:
                self._measure(self.status, is_broken)

    def whole(self) -> bytes:
        """The complete body, of at most LARGEST_BODY bytes. Raises Refused."""
        parts, size = [], 0
        try:
            for chunk in self.chunks():
                size += len(chunk)
                if size > LARGEST_BODY:
                    text = f"the response has more than {LARGEST_BODY} bytes"
                    raise self.invocation.model_error(500, text)
                parts.append(chunk)
            return b"".join(parts)
        except TimeoutError:
            raise self.invocation.model_error(0, _TIMED_OUT) from None
        except BROKEN as error:
            raise self.invocation.model_error(500, str(error)) from error

    def raise_for_status(self) -> None:
        """Raise Refused for an error of the engine."""
        if self.status >= 400:
            raise self.invocation.model_error(self.status, self.whole().decode("utf-8", "replace"))

    def _measure(self, status: int, is_broken: bool = False) -> None:
        """Publish how it ended: with the engine's ``status`` (0: no response)."""
        publish = self._metrics.publish
        publish("Invocation4XXErrors", 400 <= status < 500)
        publish("Invocation5XXErrors", status >= 500 or status == 0)
        publish("InvocationModelErrors", is_broken or not 200 <= status < 300)
        self._publish_since("ModelLatency", self._sent)

    def _publish_since(self, name: str, begun: float) -> None:
        self._metrics.publish(name, (time.monotonic() - begun) * _MICROSECONDS)


def _admit(invocation: Invocation, stack: ExitStack) -> EngineInstance:
    """One of the endpoint's engines, which counts the invocation until ``stack`` is closed. An
    update may replace the engines at any moment: one that drains has a successor already."""
    while True:
        instance = choose(invocation)
        with suppress(Draining):
            stack.enter_context(instance.invocation())
            return instance


def choose(invocation: Invocation) -> EngineInstance:
    """The instance, or copy, for the next request. Raises Refused."""
    name, component = invocation.name, invocation.component
    endpoint = find_endpoint(invocation.region, name)
    if endpoint is None:
        raise invocation.refused(f"Endpoint {name} of account {ACCOUNT} not found.")
    fleet = endpoint.current if endpoint.is_serving else None
    if fleet is None:
        state = endpoint.endpoint_status
        raise invocation.refused(f"Endpoint {name} is not in service; its state is {state}.")
    if endpoint.hosts_components:
        return _choose_copy(invocation, endpoint)
    if component:
        raise invocation.refused(
            "Inference Component Name header is not allowed for endpoints to which you dont plan "
            "to deploy inference components. Please remove the Inference Component Name header "
            "and try again."
        )
    variant = invocation.headers.get(f"{_SAGEMAKER_HEADERS}target-variant")
    if variant not in (None, *fleet.variants):
        raise invocation.refused(f"Endpoint {name} has no running variant {variant}.")
    return fleet.choose(endpoint.weights, variant)


def _choose_copy(invocation: Invocation, endpoint: SandboxEndpoint) -> EngineInstance:
    """A copy of the endpoint's inference component. Raises Refused."""
    name = invocation.component
    if name is None:
        raise invocation.refused(
            "Inference Component Name header is required for endpoints to which you plan to deploy "
            "inference components. Please include Inference Component Name header or consider "
            "using SageMaker models."
        )
    component = endpoint.components.get(name)
    if component is None or component.status in ("Creating", "Failed", "Deleting"):
        raise invocation.refused(
            f"Inference Component {name} of endpoint {endpoint.endpoint_name} not found."
        )
    fleet = component.current
    if fleet is None or not fleet.instances:
        component.refused_at = time.time()
        variant = component.parameters["VariantName"]
        source = MetricSource(invocation.region, endpoint.endpoint_name, variant, name)
        source.publish("NoCapacityInvocationFailures", 1)
        raise invocation.refused(
            "Inference Component has no capacity to process this request. ApplicationAutoScaling "
            "may be in-progress (if configured) or try to increase the capacity by invoking "
            "UpdateInferenceComponentRuntimeConfig API."
        )
    return fleet.choose({}, fleet.variants[0])
