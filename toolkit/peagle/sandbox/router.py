"""Which region and service an AWS request is for, from its signature. Nothing is verified.

What is in the account from the start.

Operations that the sandbox refuses on demand, so that a refusal can be seen without an account.

Permissions are not checked in the sandbox; here somebody says which operation is denied or
throttled. It works for services whose requests name their operation in ``X-Amz-Target``: prices,
quotas, SageMaker, logs.

What AWS has no call for: the state of the sandbox itself, its quotas, and what it refuses.

The sandbox's door: which call is answered by whom.

/endpoints/<name>/...   the runtime, streamed
/_peagle/...            the sandbox's own questions
X-Amz-Target in         quotas, prices: ``services``
all else                moto
"""

from __future__ import annotations

import functools
import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, NamedTuple

from moto.iam.models import iam_backends

from peagle.engine.process import is_alive
from peagle.sandbox import services as quotas
from peagle.sandbox.client import ACCOUNT, CONTROL_PATH, EXECUTION_ROLE, EndpointStatus
from peagle.sandbox.runtime.invoke import BODY_LIMIT, PATH, invoke
from peagle.sandbox.runtime.messages import Answer, Call, Refusal
from peagle.sandbox.sagemaker.backend import all_endpoints
from peagle.sandbox.sagemaker.endpoint import Endpoint
from peagle.sandbox.services import OPERATIONS

_SCOPE = re.compile(r"Credential=[^/\s]+/\d+/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request")


class Scope(NamedTuple):
    """The region and the service of a Signature Version 4."""

    region: str
    service: str


def scope_of(authorization: str) -> Scope | None:
    """The scope in an Authorization header; ``None`` without such a signature."""
    found = _SCOPE.search(authorization)
    return Scope(found["region"], found["service"]) if found else None


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


def sow() -> None:
    """Create the execution role that SageMaker may take."""
    iam_backends[ACCOUNT]["aws"].create_role(
        role_name=EXECUTION_ROLE,
        assume_role_policy_document=json.dumps(_TRUST),
        path="/",
        permissions_boundary=None,
        description="Execution role of the sandbox",
        tags=[],
        max_session_duration="3600",
    )


DENIED = "AccessDeniedException"

_CODES: dict[str, str] = {}


def set_fault(operation: str, code: str) -> None:
    """Answer every call of ``operation`` (``GetProducts``) with this error code; "" ends it."""
    if code:
        _CODES[operation] = code
    else:
        _CODES.pop(operation, None)


def fault_of(target: str) -> tuple[str, str] | None:
    """The error code and message for a request with this ``X-Amz-Target``, if it is to fail."""
    operation = target.rpartition(".")[2]
    code = _CODES.get(operation)
    if code is None:
        return None
    if code == DENIED:
        return code, f"User is not authorized to call {operation}: the sandbox was told to deny it"
    return code, f"{operation}: the sandbox was told to answer so"


def reset() -> None:
    """Nothing is refused on demand any more."""
    _CODES.clear()


_STARTED = time.time()


def answer(method: str, path: str, body: bytes) -> Answer:
    """Answer a question of ``peagle.sandbox.client``."""
    if (method, path) == ("GET", "/status"):
        return _json(_status())
    if (method, path) == ("PUT", "/quota"):
        return _set_quota(json.loads(body))
    if (method, path) == ("PUT", "/fault"):
        set_fault(**json.loads(body))
        return _json({})
    return Refusal(404, "", {"message": f"the sandbox has no {method} {path}"}).answer


def _status() -> dict[str, Any]:
    endpoints = [asdict(_endpoint(region, endpoint)) for region, endpoint in all_endpoints()]
    return {
        "uptime_seconds": round(time.time() - _STARTED, 1),
        "endpoints": sorted(endpoints, key=lambda one: (one["region"], one["name"])),
    }


def _endpoint(region: str, endpoint: Endpoint) -> EndpointStatus:
    deployment = endpoint.deployment or endpoint.coming
    process = deployment.process if deployment else None
    alive = process if process and is_alive(process) else None
    up = time.time() - deployment.started_at if deployment and alive else None
    return EndpointStatus(
        name=endpoint.endpoint_name,
        region=region,
        state=endpoint.endpoint_status,
        failure_reason=endpoint.failure_reason,
        stand_in=deployment.stand_in if deployment else None,
        pid=alive.pid if alive else None,
        port=alive.port if alive else None,
        uptime_seconds=round(up, 1) if up is not None else None,
    )


def _set_quota(given: dict[str, Any]) -> Answer:
    try:
        quotas.set_value(given["instance_type"], float(given["value"]), given["region"])
    except quotas.NoSuchQuota as error:
        return Refusal(400, "", {"message": str(error), "fix": "see AWS's list of types"}).answer
    return _json({})


def _json(document: dict[str, Any]) -> Answer:
    content = json.dumps(document).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
    return Answer(200, headers, iter((content,)))


Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

_OUR_HOST = re.compile(r"(.+\.)?localhost(:\d+)?|127\.0\.0\.1(:\d+)?")


def front(moto: Application) -> Application:
    """moto, with everything that is ours before it. A WSGI application."""

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        answer = _own_answer(environ)
        if answer is None:
            return _moto_answer(moto, environ, start_response)
        status = HTTPStatus(answer.status)
        start_response(f"{status.value} {status.phrase}", list(answer.headers.items()))
        return answer.body

    return application


def _moto_answer(
    moto: Application, environ: Environ, start_response: StartResponse
) -> Iterable[bytes]:
    scope = scope_of(environ.get("HTTP_AUTHORIZATION", ""))
    if scope and scope.service == "cloudformation":
        _install_stacks()
    answer = moto(environ, start_response)
    if environ["PATH_INFO"] == "/moto-api/reset":
        quotas.reset()
        reset()
        sow()
    return answer


@functools.cache
def _install_stacks() -> None:
    from peagle.sandbox.sagemaker import stacks

    stacks.install()


def _own_answer(environ: Environ) -> Answer | None:
    """Our answer; ``None`` for what is moto's."""
    if _is_from_a_web_page(environ):
        return Refusal(403, "", {"message": "the sandbox does not talk to web pages"}).answer
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    if path.startswith(f"{CONTROL_PATH}/"):
        return answer(method, path.removeprefix(CONTROL_PATH), _body(environ))
    runtime = PATH.fullmatch(path) if method == "POST" else None
    if runtime:
        return invoke(_call(environ, runtime["name"], runtime["operation"]))
    fault = fault_of(environ.get("HTTP_X_AMZ_TARGET", ""))
    if fault:
        code, message = fault
        _body(environ)
        return Refusal(400, code, {"__type": code, "message": message}).answer
    return _service_answer(environ)


def _is_from_a_web_page(environ: Environ) -> bool:
    """Starting an engine is starting a program, so no page in a browser of this machine may ask
    for it: neither across origins nor through a name that leads to the loopback address."""
    return "HTTP_ORIGIN" in environ or not _OUR_HOST.fullmatch(environ.get("HTTP_HOST", ""))


def _call(environ: Environ, name: str, operation: str) -> Call:
    headers = {
        key.removeprefix("HTTP_").replace("_", "-").lower(): value
        for key, value in environ.items()
        if key.startswith("HTTP_") or key == "CONTENT_TYPE"
    }
    scope = scope_of(headers.get("authorization", ""))
    return Call(
        name=name,
        operation=operation,
        region=scope.region if scope else None,
        headers=headers,
        body=_body(environ, BODY_LIMIT + 1),
        client=environ.get("werkzeug.socket"),
    )


def _service_answer(environ: Environ) -> Answer | None:
    operation = OPERATIONS.get(environ.get("HTTP_X_AMZ_TARGET", ""))
    scope = scope_of(environ.get("HTTP_AUTHORIZATION", ""))
    if operation is None or scope is None:
        return None
    body = _body(environ)
    try:
        document = operation(scope.region, json.loads(body or b"{}"))
    except quotas.NoSuchQuota as error:
        return Refusal(400, error.code, {"__type": error.code, "message": str(error)}).answer
    if document is None:
        environ["wsgi.input"] = io.BytesIO(body)
        return None
    return _json_answer(document)


def _json_answer(document: Mapping[str, Any]) -> Answer:
    content = json.dumps(document).encode()
    headers = {"Content-Type": "application/x-amz-json-1.1", "Content-Length": str(len(content))}
    return Answer(200, headers, iter((content,)))


def _body(environ: Environ, limit: int | None = None) -> bytes:
    """The request's body, at most ``limit`` bytes of it."""
    if environ.get("wsgi.input_terminated"):  # sent in chunks
        return io.BufferedReader(environ["wsgi.input"]).read(-1 if limit is None else limit)
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(length if limit is None else min(length, limit))
    return body
