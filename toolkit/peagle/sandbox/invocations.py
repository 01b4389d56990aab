"""InvokeEndpoint, InvokeEndpointWithResponseStream, and the OpenAI-compatible path.

A stream is passed on chunk by chunk as it arrives. A whole response is completed before it is sent,
so that an engine that breaks off is a ModelError.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import h11

from peagle.sandbox import protocol
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.endpoint import SandboxEndpoint
from peagle.sandbox.instance import Draining, EngineInstance
from peagle.sandbox.protocol import TIMED_OUT, ErrorResponse, Invocation, Response, json_response
from peagle.sandbox.relay import (
    BrokenResponse,
    EngineRequest,
    EngineUnreachable,
    ResponseTimeout,
)
from peagle.sandbox.sagemaker import find_endpoint
from peagle.sandbox.traffic import MetricSource, RequestMetrics
from peagle_serve.contract import COUNTERS_ATTRIBUTE, WARM_ATTRIBUTE

BODY_LIMIT = 6 * 1024 * 1024
"""Bytes; the limit of InvokeEndpoint's Body in the service model."""

RESPONSE_SECONDS = 60.0
STREAM_SECONDS = 480.0
"""How long a container may take for a whole response, and for a whole stream (SageMaker's
documentation of containers that serve models)."""

INVOCATION_PATH = re.compile(
    r"/endpoints/(?P<name>[^/]+)/(?:inference-components/(?P<component>[^/]+)/)?"
    r"(?P<operation>invocations|invocations-response-stream|openai/v1/chat/completions)"
)
OPENAI_PATH = re.compile(r"/endpoints/[^/]+(?:/inference-components/[^/]+)?/openai(?P<path>/.*)?")
_OWN_HEADERS = "x-amzn-sagemaker-"
_OUR_ATTRIBUTES = (COUNTERS_ATTRIBUTE, WARM_ATTRIBUTE)
"""What the toolkit's entrypoint understands, and AWS's image does not."""
_VARIANT = "x-Amzn-Invoked-Production-Variant"


@dataclass
class _Relayed:
    """A response that the engine has begun, and what must be closed after it."""

    region: str
    endpoint: str
    instance: EngineInstance
    request: EngineRequest
    metrics: RequestMetrics
    stack: ExitStack

    @property
    def headers(self) -> dict[str, str]:
        """The engine's headers that SageMaker passes on."""
        given = self.request.head.headers
        own = {name: value for name, value in given.items() if name.startswith(_OWN_HEADERS)}
        return {
            "Content-Type": given.get("content-type", "application/octet-stream"),
            _VARIANT: self.instance.spec.variant,
            **own,
        }

    @property
    def is_stream(self) -> bool:
        return self.request.head.headers.get("content-type", "").startswith("text/event-stream")

    def chunks(self) -> Iterator[bytes]:
        with self.stack:
            status, body = self.request.head.status, self.request.chunks()
            yield from self.metrics.chunks(status, self.is_stream, body)

    def whole(self) -> bytes:
        """The complete body, of at most LARGEST_BODY bytes. Raises ErrorResponse."""
        parts, size = [], 0
        try:
            for chunk in self.chunks():
                size += len(chunk)
                if size > protocol.LARGEST_BODY:
                    message = f"the response has more than {protocol.LARGEST_BODY} bytes"
                    raise protocol.model_error(self.region, self.endpoint, 500, message)
                parts.append(chunk)
            return b"".join(parts)
        except BrokenResponse as error:
            raise protocol.model_error(self.region, self.endpoint, 500, str(error)) from error
        except ResponseTimeout:
            raise protocol.model_error(self.region, self.endpoint, 0, TIMED_OUT) from None


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


def invoke(call: Invocation) -> Response:
    try:
        return _OPERATIONS[call.operation](call)
    except ErrorResponse as error:
        return error.response


def _invoke_endpoint(call: Invocation) -> Response:
    accept = call.headers.get("accept", "*/*")
    relayed = _relay(call, "/invocations", accept, RESPONSE_SECONDS)
    _raise_for_status(relayed)
    body = relayed.whole()
    return Response(200, {**relayed.headers, "Content-Length": str(len(body))}, iter((body,)))


def _invoke_with_response_stream(call: Invocation) -> Response:
    accept = call.headers.get("x-amzn-sagemaker-accept", "*/*")
    relayed = _relay(call, "/invocations", accept, STREAM_SECONDS)
    _raise_for_status(relayed)
    headers = relayed.headers
    headers["X-Amzn-SageMaker-Content-Type"] = headers["Content-Type"]
    headers["Content-Type"] = protocol.EVENT_STREAM
    return Response(200, headers, _frames(relayed))


def _chat_completions(call: Invocation) -> Response:
    """The engine's own response, errors included, for a caller with a bearer token."""
    accept = call.headers.get("accept", "*/*")
    relayed = _relay(call, "/v1/chat/completions", accept, STREAM_SECONDS)
    return Response(relayed.request.head.status, relayed.headers, _unframed(relayed))


_OPERATIONS: dict[str, Callable[[Invocation], Response]] = {
    "invocations": _invoke_endpoint,
    "invocations-response-stream": _invoke_with_response_stream,
    "openai/v1/chat/completions": _chat_completions,
}


def _relay(call: Invocation, path: str, accept: str, seconds: float) -> _Relayed:
    """Send the invocation to one of the endpoint's engines. Raises ErrorResponse."""
    begun = time.monotonic()
    with ExitStack() as stack:
        instance = _admitted(call, stack)
        metrics = _metrics(call, instance, begun)
        try:
            request = _request(call, instance, path, accept, seconds)
        except BaseException:
            metrics.end(0)
            raise
        stack.callback(request.close)
        return _Relayed(call.region, call.name, instance, request, metrics, stack.pop_all())


def _admitted(call: Invocation, stack: ExitStack) -> EngineInstance:
    """One of the endpoint's engines, which counts the invocation until ``stack`` is closed.

    An update may replace the engines at any moment: one that drains has a successor already.
    """
    while True:
        instance = _serving_instance(call)
        with suppress(Draining):
            stack.enter_context(instance.invocation())
            return instance


def _request(
    call: Invocation, instance: EngineInstance, path: str, accept: str, seconds: float
) -> EngineRequest:
    assert instance.process is not None
    own = {
        name: value
        for name, value in call.headers.items()
        if name.startswith(_OWN_HEADERS) and not (instance.spec.plain and value in _OUR_ATTRIBUTES)
    }
    content_type = call.headers.get("content-type", "application/octet-stream")
    headers = {**own, "Content-Type": content_type, "Accept": accept}
    try:
        return EngineRequest(
            instance.process.port, path, headers, call.body, seconds=seconds, client=call.client
        )
    except h11.LocalProtocolError as error:
        raise protocol.validation_error(f"Invalid request header: {error}.") from error
    except (EngineUnreachable, BrokenResponse) as error:
        text = f"the engine exited: {instance.end_reason() or error}"
        raise protocol.model_error(call.region, call.name, 503, text) from error
    except ResponseTimeout:
        raise protocol.model_error(call.region, call.name, 0, TIMED_OUT) from None


def _metrics(call: Invocation, instance: EngineInstance, begun: float) -> RequestMetrics:
    """What the request to the instance publishes."""
    endpoint = find_endpoint(call.region, call.name)
    config = endpoint.config_of(instance) if endpoint else ""
    spec = instance.spec
    source = MetricSource(call.region, call.name, spec.variant, spec.component, config)
    return RequestMetrics(source, begun)


def _serving_instance(call: Invocation) -> EngineInstance:
    endpoint = find_endpoint(call.region, call.name)
    if endpoint is None:
        raise protocol.validation_error(f"Endpoint {call.name} of account {ACCOUNT} not found.")
    fleet = endpoint.next_fleet()
    if fleet is None:
        state = endpoint.endpoint_status
        raise protocol.validation_error(
            f"Endpoint {call.name} is not in service; its state is {state}."
        )
    component = call.component or call.headers.get(_COMPONENT_HEADER)
    if endpoint.hosts_components or component:
        return _copy_of(call.region, endpoint, component)
    variant = call.headers.get("x-amzn-sagemaker-target-variant")
    if variant not in (None, *fleet.variants):
        raise protocol.validation_error(f"Endpoint {call.name} has no running variant {variant}.")
    return fleet.choose(endpoint.weights, variant)


_COMPONENT_HEADER = "x-amzn-sagemaker-inference-component"


def _copy_of(region: str, endpoint: SandboxEndpoint, name: str | None) -> EngineInstance:
    """A copy of the endpoint's inference component. Raises ErrorResponse."""
    if not endpoint.hosts_components:
        raise protocol.validation_error(
            "Inference Component Name header is not allowed for endpoints to which you dont plan "
            "to deploy inference components. Please remove the Inference Component Name header "
            "and try again."
        )
    if name is None:
        raise protocol.validation_error(
            "Inference Component Name header is required for endpoints to which you plan to deploy "
            "inference components. Please include Inference Component Name header or consider "
            "using SageMaker models."
        )
    component = endpoint.components.get(name)
    if component is None or component.status in ("Creating", "Failed", "Deleting"):
        raise protocol.validation_error(
            f"Inference Component {name} of endpoint {endpoint.endpoint_name} not found."
        )
    instance = component.choose()
    if instance is None:
        variant = component.parameters["VariantName"]
        source = MetricSource(region, endpoint.endpoint_name, variant, name)
        source.publish("NoCapacityInvocationFailures", 1)
        raise protocol.validation_error(
            "Inference Component has no capacity to process this request. ApplicationAutoScaling "
            "may be in-progress (if configured) or try to increase the capacity by invoking "
            "UpdateInferenceComponentRuntimeConfig API."
        )
    return instance


def _raise_for_status(relayed: _Relayed) -> None:
    status = relayed.request.head.status
    if status >= 400:
        text = relayed.whole().decode("utf-8", "replace")
        raise protocol.model_error(relayed.region, relayed.endpoint, status, text)


def _frames(relayed: _Relayed) -> Iterator[bytes]:
    """The body as PayloadParts; a ModelStreamError ends it where the engine breaks off."""
    try:
        for chunk in relayed.chunks():
            yield protocol.payload_part(chunk)
    except BrokenResponse as error:
        yield protocol.stream_error(f"The model's stream broke: {error}.", "StreamBroken")
    except ResponseTimeout:
        message = f"The model took longer than {STREAM_SECONDS:.0f} seconds."
        yield protocol.stream_error(message, "ModelInvocationTimeExceeded")


def _unframed(relayed: _Relayed) -> Iterator[bytes]:
    """The body as it is; where it breaks off, the client's connection is closed too."""
    try:
        yield from relayed.chunks()
    except (BrokenResponse, ResponseTimeout) as error:
        raise ConnectionAbortedError(str(error)) from error
