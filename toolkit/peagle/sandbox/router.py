"""The sandbox as one WSGI application: which request goes where.

    /_peagle/...             the sandbox's own requests: status, quotas, faults, calls
    /endpoints/<name>/...    ``invocations``, streamed
    X-Amz-Target             ``account`` and ``scaling``: what moto lacks
    everything else          moto

Every request must come from the owner of the sandbox's key (``requests``); permissions are not
checked. Faults (``faults``) apply to every call of AWS, whichever part answers.
"""

from __future__ import annotations

import functools
import re
import socket
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.backends import get_service_from_url

from peagle.engine.process import is_alive
from peagle.sandbox import account, scaling
from peagle.sandbox.client import ACCOUNT, CONTROL_PATH, EndpointStatus
from peagle.sandbox.endpoints import SandboxEndpoint
from peagle.sandbox.faults import ERRORS, FAULTS, KINDS, Fault
from peagle.sandbox.invocations import BODY_LIMIT, Invocation, invoke, not_served
from peagle.sandbox.requests import (
    INVOCATION_PATH,
    LARGEST_BODY,
    BodyRefused,
    Call,
    InvalidToken,
    NotSigned,
    Response,
    authenticate,
    check_length,
    error_response,
    is_owner,
    json_parameters,
    json_response,
    read_call,
    rejected_response,
    request_body,
    signing_scope,
)
from peagle.sandbox.sagemaker import all_endpoints
from peagle.sandbox.scheduler import CLOCK, fire_due
from peagle.sandbox.state import AccessKey

_OUR_HOST = re.compile(r"(.+\.)?localhost(:\d+)?|127\.0\.0\.1(:\d+)?")
_LARGEST_OBJECT = 5 << 30
"""Bytes of one request of S3, as on AWS."""

_OWN_PATHS = (f"{CONTROL_PATH}/", "/moto-api")
_REGION_KEY = "peagle.region"
"""In the environment of a request: the region of its signature or token, once it is verified."""

_STARTED = time.time()
_BUG = ("InternalFailure", "Internal error of the sandbox; see its log (daemon.log).")


def create_app(moto: WSGIApplication, key: AccessKey) -> WSGIApplication:
    """The WSGI application, for the owner of ``key``; ``moto`` answers what the sandbox itself does
    not."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            response = _refuse(key, environ) or _respond(moto, environ)
        except BodyRefused as error:
            response = json_response({"message": str(error)}, error.status)
        status = HTTPStatus(response.status)
        start_response(f"{status.value} {status.phrase}", list(response.headers.items()))
        is_head = environ["REQUEST_METHOD"] == "HEAD" and response.status >= 400
        return iter(()) if is_head else response.body

    return application


def _refuse(key: AccessKey, environ: WSGIEnvironment) -> Response | None:
    """The answer to a request that is not the owner's; ``None`` for one that is.

    Starting an engine starts a program, so only the owner's requests are processed, and none of a
    web page: neither across origins nor through a name that resolves to the loopback address.
    Raises BodyRefused.
    """
    if "HTTP_ORIGIN" in environ or not _OUR_HOST.fullmatch(environ.get("HTTP_HOST", "")):
        message = "the sandbox does not accept requests from web pages"
        return json_response({"message": message}, 403)
    path, scope = environ["PATH_INFO"], signing_scope(environ)
    limit = _LARGEST_OBJECT if scope is None or scope["service"] == "s3" else LARGEST_BODY
    check_length(environ, BODY_LIMIT if INVOCATION_PATH.fullmatch(path) else limit)
    if path.startswith(_OWN_PATHS):
        if is_owner(environ, key):
            return None
        return json_response({"message": "the sandbox belongs to another user"}, 403)
    try:
        environ[_REGION_KEY] = authenticate(environ, key)
    except InvalidToken as error:
        return json_response({"message": f"Unauthorized: {error}"}, 401)
    except NotSigned as error:
        return error.response(environ)
    return None


def _respond(moto: WSGIApplication, environ: WSGIEnvironment) -> Response:
    """The answer to a request of the owner, with the faults that were asked for. Raises
    ConnectionAbortedError for no answer."""
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    if path.startswith(f"{CONTROL_PATH}/"):
        return control(method, path.removeprefix(CONTROL_PATH), environ)
    call = read_call(environ)
    if call is None:
        return _answer(moto, environ, call)
    FAULTS.record(call.action)
    fault = FAULTS.meet_call(call.service, call.operation)
    if fault is None:
        return _answer(moto, environ, call)
    if fault.kind in ERRORS:
        request_body(environ)  # a client may send it whole before it reads the answer
        return _refusal(call, fault.kind)
    response = None
    if fault.kind in ("answer-lost", "timeout"):
        response = _answer(moto, environ, call)
        response = Response(response.status, response.headers, iter([b"".join(response.body)]))
    if fault.kind in ("timeout", "timeout-before"):
        time.sleep(fault.seconds)
    if response is None or fault.kind == "answer-lost":
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError(f"{call.action}: the sandbox's fault {fault.kind}")
    return response


def _refusal(call: Call, kind: str) -> Response:
    """An error of AWS, with the code that it has in the protocol of the call."""
    by_xml = call.protocol in ("query", "s3")
    mark = "(a fault added to the sandbox)"
    if kind == "access-denied":
        status, code = (403, "AccessDenied") if by_xml else (400, "AccessDeniedException")
        message = (
            f"User: arn:aws:sts::{ACCOUNT}:assumed-role/user/sandbox is not authorized to perform: "
            f"{call.action} because no identity-based policy allows the {call.action} action {mark}"
        )
        return error_response(call, status, code, message)
    if kind == "throttling":
        slow = {"s3": (503, "SlowDown"), "query": (400, "Throttling")}
        status, code = slow.get(call.protocol, (400, "ThrottlingException"))
        return error_response(call, status, code, f"Rate exceeded {mark}")
    code = "InternalError" if call.protocol == "s3" else "InternalFailure"
    return error_response(call, 500, code, f"We encountered an internal error {mark}")


def _answer(moto: WSGIApplication, environ: WSGIEnvironment, call: Call | None) -> Response:
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    invocation = INVOCATION_PATH.fullmatch(path) if method == "POST" else None
    if invocation:
        return invoke(_invocation(environ, invocation))
    rejected = rejected_response(call, environ) if call else not_served(method, path)
    return rejected or _service_response(environ) or _moto_response(moto, environ, call)


def _invocation(environ: WSGIEnvironment, path: re.Match[str]) -> Invocation:
    headers = {
        key.removeprefix("HTTP_").replace("_", "-").lower(): value
        for key, value in environ.items()
        if key.startswith("HTTP_") or key == "CONTENT_TYPE"
    }
    return Invocation(
        name=path["name"],
        operation=path["operation"],
        component=path["component"],
        region=environ[_REGION_KEY],
        headers=headers,
        body=request_body(environ, BODY_LIMIT),
        client=environ.get("werkzeug.socket"),
    )


def _service_response(environ: WSGIEnvironment) -> Response | None:
    """The answer of a service that moto lacks; ``None`` for moto's."""
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    operation = account.OPERATIONS.get(target) or scaling.OPERATIONS.get(target)
    if operation is None:
        return None
    try:
        document = operation(environ[_REGION_KEY], json_parameters(environ))
    except account.Refusal as error:
        failure = {"__type": error.code, "message": str(error)}
        return json_response(failure, 400, error_type=error.code)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        code = "ValidationException"
        failure = {"__type": code, "message": f"Invalid parameters: {error}."}
        return json_response(failure, 400, error_type=code)
    if document is None:
        return None
    return json_response(document, content_type="application/x-amz-json-1.1")


def _moto_response(moto: WSGIApplication, environ: WSGIEnvironment, call: Call | None) -> Response:
    """moto's answer; its pages for a browser become errors of the protocol."""
    if call and call.service == "cloudformation":
        _install_stacks()
    begun: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        begun.append((status, headers))
        return lambda data: None

    try:
        body = moto(environ, start_response)
    except NotImplementedError:
        return _unknown(environ, call)
    except Exception:
        if call is None:
            raise
        if get_service_from_url(f"https://{call.service}.us-east-1.amazonaws.com") is None:
            return _unknown(environ, call)  # moto has no such service
        traceback.print_exc()
        return error_response(call, 500, *_BUG)
    status, headers = int(begun[-1][0].partition(" ")[0]), dict(begun[-1][1])
    if environ["PATH_INFO"] == "/moto-api/reset":
        _reset()
    is_page = headers.get("Content-Type", "").startswith("text/html")
    if call and status >= 400 and is_page and environ["REQUEST_METHOD"] != "HEAD":
        _close(body)
        if status in (404, 405, 501):
            return _unknown(environ, call)
        return error_response(call, 500, *_BUG)
    return Response(status, headers, _chunks(body))


def _unknown(environ: WSGIEnvironment, call: Call | None) -> Response:
    """What AWS answers about an operation that a service does not have."""
    if call is None:
        return json_response({"message": f"the sandbox has no {environ['PATH_INFO']}"}, 404)
    codes = {"s3": (501, "NotImplemented"), "query": (400, "InvalidAction")}
    status, code = codes.get(call.protocol, (400, "UnknownOperationException"))
    message = f"The sandbox does not have the operation {call.action}."
    return error_response(call, status, code, message)


def _chunks(body: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from body
    finally:
        _close(body)


def _close(body: Iterable[bytes]) -> None:
    if hasattr(body, "close"):
        body.close()


def _reset() -> None:
    """After moto's reset: forget the state of the sandbox too."""
    account.forget()
    account.create_role()
    scaling.AUTOSCALER.clear()
    CLOCK.ahead = 0.0
    FAULTS.clear()
    FAULTS.forget_calls()


@functools.cache
def _install_stacks() -> None:
    from peagle.sandbox import stacks

    stacks.install()


def control(method: str, path: str, environ: WSGIEnvironment) -> Response:
    """The answer to a request of the sandbox's own; 400 for an invalid document."""
    try:
        document = json_parameters(environ)
        answer = _control(method, path, document)
    except (ValueError, TypeError, KeyError, AttributeError, account.Refusal) as error:
        fix = _FAULT_FIX if path == "/faults" else "see the commands of peagle sandbox"
        message = str(error) if isinstance(error, account.Refusal) or path == "/faults" else (
            f"{method} {path} got an invalid document: {error}"
        )  # fmt: skip
        return json_response({"message": message, "fix": fix}, 400)
    if answer is None:
        return json_response({"message": f"the sandbox has no {method} {path}"}, 404)
    return json_response(answer)


_FAULT_FIX = (
    "use the name of an API operation, such as CreateEndpoint, and one of these faults: "
    f"{', '.join(KINDS)}"
)


def _control(method: str, path: str, document: Mapping[str, Any]) -> dict[str, Any] | None:
    match method, path:
        case "GET", "/status":
            endpoints = [asdict(_endpoint_status(*found)) for found in all_endpoints()]
            endpoints.sort(key=lambda one: (one["region"], one["name"]))
            return {"uptime_seconds": round(time.time() - _STARTED, 1), "endpoints": endpoints}
        case "PUT", "/quota":
            account.set_quota(**document)
        case "GET", "/quotas":
            return {"quotas": account.changed_quotas()}
        case "PUT", "/instances":
            account.add_instances(document["instances"])
        case "PUT", "/scaling":
            scaling.set_speed(**document)
        case "POST", "/faults":
            FAULTS.add(Fault(**document))
        case "GET", "/faults":
            return {"faults": [asdict(fault) for fault in FAULTS.all()]}
        case "DELETE", "/faults":
            return {"removed": FAULTS.clear(**document)}
        case "PUT", "/clock":
            ahead = CLOCK.advance(**document)
            return {"seconds_ahead": ahead, "fired": fire_due(CLOCK.now())}
        case "GET", "/calls":
            return {"calls": FAULTS.calls()}
        case "DELETE", "/calls":
            FAULTS.forget_calls()
        case _:
            return None
    return {}


def _endpoint_status(region: str, endpoint: SandboxEndpoint) -> EndpointStatus:
    engines = endpoint.engines
    instance = engines[0] if engines else None
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
        instances=len(engines),
        not_applied=instance.not_applied if instance else (),
    )
