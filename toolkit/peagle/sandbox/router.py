"""The sandbox as one WSGI application: which request goes where.

    /endpoints/<name>/...    ``invocations``, streamed
    /_peagle/...             the sandbox's own status, quotas and faults, for ``client``
    X-Amz-Target             ``services``: quotas, prices; and faults that were injected
    everything else          moto

Permissions are not checked. Faults let a caller see a refusal without an AWS account; they apply
to services that name the operation in ``X-Amz-Target``: prices, quotas, SageMaker, logs.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import re
import time
from collections.abc import Iterable
from dataclasses import asdict
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.iam import urls as iam_urls
from moto.iam.models import IAMBackend, ManagedPolicy, iam_backends

from peagle.engine.process import is_alive
from peagle.sandbox import services
from peagle.sandbox.client import ACCOUNT, CONTROL_PATH, EXECUTION_ROLE, EndpointStatus
from peagle.sandbox.invocations import BODY_LIMIT, INVOCATION_PATH, invoke
from peagle.sandbox.protocol import ErrorResponse, Invocation, Response, json_response
from peagle.sandbox.resources import SandboxEndpoint
from peagle.sandbox.sagemaker import all_endpoints

ACCESS_DENIED = "AccessDeniedException"
_SCOPE = re.compile(r"Credential=[^/\s]+/\d+/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request")
_OUR_HOST = re.compile(r"(.+\.)?localhost(:\d+)?|127\.0\.0\.1(:\d+)?")
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}
_STARTED = time.time()

_faults: dict[str, str] = {}
"""Operation (``GetProducts``) -> the error code that every call of it returns; empty for none."""


def create_app(moto: WSGIApplication) -> WSGIApplication:
    """The WSGI application; ``moto`` answers what the sandbox itself does not."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        response = _own_response(environ)
        if response is None:
            return _call_moto(moto, environ, start_response)
        status = HTTPStatus(response.status)
        start_response(f"{status.value} {status.phrase}", list(response.headers.items()))
        return response.body

    return application


class Iam(IAMBackend):
    """moto's IAM, which reads AWS's 1,600 managed policies once.

    moto reads them for each of five partitions, and again after every reset, which takes seconds.
    """

    _read: list[ManagedPolicy] = []

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return iam_urls

    def _init_aws_policies(self) -> list[ManagedPolicy]:
        if self.partition != "aws":
            return []
        if not Iam._read:
            Iam._read = super()._init_aws_policies()
        return [copy.copy(policy) for policy in Iam._read]


def install() -> None:
    """Let this process's moto use ``Iam``. Call it before the first request."""
    iam_backends.backend = Iam


def bootstrap() -> None:
    """Create what the account contains from the start: the execution role for SageMaker."""
    iam_backends[ACCOUNT]["aws"].create_role(
        role_name=EXECUTION_ROLE,
        assume_role_policy_document=json.dumps(_TRUST),
        path="/",
        permissions_boundary=None,
        description="Execution role of the sandbox",
        tags=[],
        max_session_duration="3600",
    )


def _signing_scope(authorization: str) -> re.Match[str] | None:
    """``region`` and ``service`` of a Signature Version 4, which is not verified."""
    return _SCOPE.search(authorization)


def _call_moto(
    moto: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    scope = _signing_scope(environ.get("HTTP_AUTHORIZATION", ""))
    if scope and scope["service"] == "cloudformation":
        _install_stacks()
    response = moto(environ, start_response)
    if environ["PATH_INFO"] == "/moto-api/reset":
        services.reset()
        _faults.clear()
        bootstrap()
    return response


@functools.cache
def _install_stacks() -> None:
    from peagle.sandbox import stacks

    stacks.install()


def _own_response(environ: WSGIEnvironment) -> Response | None:
    """The sandbox's own response; ``None`` for a request to moto."""
    if _is_from_a_web_page(environ):
        message = "the sandbox does not accept requests from web pages"
        return json_response({"message": message}, 403)
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    if path.startswith(f"{CONTROL_PATH}/"):
        return _control(method, path.removeprefix(CONTROL_PATH), _body(environ))
    runtime = INVOCATION_PATH.fullmatch(path) if method == "POST" else None
    if runtime:
        return invoke(_invocation(environ, runtime["name"], runtime["operation"]))
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    operation = target.rpartition(".")[2]
    if _faults.get(operation):
        _body(environ)
        return _fault(operation, _faults[operation])
    return _service_response(environ, target)


def _is_from_a_web_page(environ: WSGIEnvironment) -> bool:
    """Starting an engine starts a program, so no web page in a browser of this machine may ask for
    it: neither across origins nor through a name that resolves to the loopback address."""
    return "HTTP_ORIGIN" in environ or not _OUR_HOST.fullmatch(environ.get("HTTP_HOST", ""))


def _control(method: str, path: str, body: bytes) -> Response:
    match method, path:
        case "GET", "/status":
            endpoints = [asdict(_endpoint_status(*found)) for found in all_endpoints()]
            endpoints.sort(key=lambda one: (one["region"], one["name"]))
            uptime = round(time.time() - _STARTED, 1)
            return json_response({"uptime_seconds": uptime, "endpoints": endpoints})
        case "PUT", "/quota":
            try:
                services.set_quota(**json.loads(body))
            except services.NoSuchQuota as error:
                return json_response(
                    {"message": str(error), "fix": "use a type that AWS lists"}, 400
                )
            return json_response({})
        case "PUT", "/instances":
            services.add_instances(json.loads(body))
            return json_response({})
        case "PUT", "/fault":
            fault = json.loads(body)
            _faults[fault["operation"]] = fault["code"]
            return json_response({})
    return json_response({"message": f"the sandbox has no {method} {path}"}, 404)


def _endpoint_status(region: str, endpoint: SandboxEndpoint) -> EndpointStatus:
    instance = endpoint.current or endpoint.starting
    process = instance.process if instance else None
    alive = process if process and is_alive(process) else None
    uptime = time.time() - instance.started_at if instance and alive else None
    return EndpointStatus(
        name=endpoint.endpoint_name,
        region=region,
        state=endpoint.endpoint_status,
        failure_reason=endpoint.failure_reason,
        stand_in=instance.stand_in if instance else None,
        pid=alive.pid if alive else None,
        port=alive.port if alive else None,
        uptime_seconds=round(uptime, 1) if uptime is not None else None,
    )


def _fault(operation: str, code: str) -> Response:
    message = f"{operation}: a fault injected into the sandbox"
    if code == ACCESS_DENIED:
        message = f"User is not authorized to call {operation}: a fault injected into the sandbox"
    return json_response({"__type": code, "message": message}, 400, error_type=code)


def _invocation(environ: WSGIEnvironment, name: str, operation: str) -> Invocation:
    headers = {
        key.removeprefix("HTTP_").replace("_", "-").lower(): value
        for key, value in environ.items()
        if key.startswith("HTTP_") or key == "CONTENT_TYPE"
    }
    scope = _signing_scope(headers.get("authorization", ""))
    return Invocation(
        name=name,
        operation=operation,
        region=scope["region"] if scope else None,
        headers=headers,
        body=_body(environ, BODY_LIMIT + 1),
        client=environ.get("werkzeug.socket"),
    )


def _service_response(environ: WSGIEnvironment, target: str) -> Response | None:
    operation = services.OPERATIONS.get(target)
    scope = _signing_scope(environ.get("HTTP_AUTHORIZATION", ""))
    if operation is None or scope is None:
        return None
    body = _body(environ)
    try:
        document = operation(scope["region"], json.loads(body or b"{}"))
    except services.NoSuchQuota as error:
        failure = {"__type": error.code, "message": str(error)}
        return ErrorResponse(400, error.code, failure).response
    if document is None:
        environ["wsgi.input"] = io.BytesIO(body)
        return None
    return json_response(document, content_type="application/x-amz-json-1.1")


def _body(environ: WSGIEnvironment, limit: int | None = None) -> bytes:
    """The request's body, at most ``limit`` bytes of it."""
    if environ.get("wsgi.input_terminated"):  # sent in chunks
        return io.BufferedReader(environ["wsgi.input"]).read(-1 if limit is None else limit)
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(length if limit is None else min(length, limit))
    return body
