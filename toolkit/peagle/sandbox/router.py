"""The sandbox as one WSGI application: which request goes where.

    /_peagle/...             ``control``: the sandbox's own status, quotas and faults
    /endpoints/<name>/...    ``invocations``, streamed
    X-Amz-Target             ``services``: quotas, prices; what AWS would reject: ``validation``
    everything else          moto

Every request must come from the owner of the sandbox's key (``signatures``); permissions are not
checked. Faults (``faults``) apply to every call of AWS, whichever part answers.
"""

from __future__ import annotations

import functools
import re
import socket
import time
import traceback
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.backends import get_service_from_url

from peagle.sandbox import alarms, autoscaling, control, scalable_targets, services
from peagle.sandbox.calls import Call, call_of, error_response, protocol_of, signing_scope
from peagle.sandbox.client import ACCOUNT, CONTROL_PATH
from peagle.sandbox.faults import ERRORS, FAULTS, Fault
from peagle.sandbox.invocations import (
    BODY_LIMIT,
    INVOCATION_PATH,
    OPENAI_PATH,
    invoke,
    not_served,
)
from peagle.sandbox.metrics import STORE
from peagle.sandbox.operations import create_role
from peagle.sandbox.protocol import (
    LARGEST_BODY,
    BodyRefused,
    ErrorResponse,
    Invocation,
    Response,
    check_length,
    json_response,
    request_body,
)
from peagle.sandbox.scheduler import CLOCK
from peagle.sandbox.signatures import InvalidToken, NotSigned, Verifier
from peagle.sandbox.state import AccessKey
from peagle.sandbox.validation import json_parameters, rejected_response

_OUR_HOST = re.compile(r"(.+\.)?localhost(:\d+)?|127\.0\.0\.1(:\d+)?")
_LARGEST_OBJECT = 5 << 30
"""Bytes of one request of S3, as on AWS."""


def create_app(moto: WSGIApplication, key: AccessKey) -> WSGIApplication:
    """The WSGI application, for the owner of ``key``; ``moto`` answers what the sandbox itself does
    not."""
    verifier = Verifier(key)

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            response = _refused(verifier, environ) or _response(moto, environ)
        except BodyRefused as error:
            response = _without_body_for_head(
                environ, json_response({"message": str(error)}, error.status)
            )
        status = HTTPStatus(response.status)
        start_response(f"{status.value} {status.phrase}", list(response.headers.items()))
        return response.body

    return application


_OWN_PATHS = (f"{CONTROL_PATH}/", "/moto-api")
_REGION_KEY = "peagle.region"
"""In the environment of a request: the region of its signature or token, once it is verified."""


def _refused(verifier: Verifier, environ: WSGIEnvironment) -> Response | None:
    """The answer to a request that is not the owner's; ``None`` for one that is.

    Starting an engine starts a program, so nobody else's request is processed. Raises BodyRefused.
    """
    if _is_from_a_web_page(environ):
        message = "the sandbox does not accept requests from web pages"
        return json_response({"message": message}, 403)
    path, scope = environ["PATH_INFO"], signing_scope(environ)
    check_length(environ, _body_limit(path, scope["service"] if scope else ""))
    if path.startswith(_OWN_PATHS):
        if verifier.is_owner(environ):
            return None
        return json_response({"message": "the sandbox belongs to another user"}, 403)
    try:
        if scope is None and OPENAI_PATH.fullmatch(path):
            authorization = environ.get("HTTP_AUTHORIZATION", "")
            environ[_REGION_KEY] = verifier.region_of_token(authorization)
        else:
            verifier.check(environ)
            environ[_REGION_KEY] = scope["region"] if scope else ""
    except InvalidToken as error:
        return json_response({"message": f"Unauthorized: {error}"}, 401)
    except NotSigned as error:
        return _without_body_for_head(environ, _not_signed(environ, error))
    return None


def _body_limit(path: str, service: str) -> int:
    """Bytes that the body of a request may have."""
    if INVOCATION_PATH.fullmatch(path):
        return BODY_LIMIT
    return _LARGEST_OBJECT if service in ("s3", "") else LARGEST_BODY


def _not_signed(environ: WSGIEnvironment, error: NotSigned) -> Response:
    protocol = protocol_of(environ)
    status, code = error.codes["s3" if protocol == "s3" else "query" if protocol == "query" else ""]
    return error_response(Call("", "", protocol), status, code, str(error))


def _response(moto: WSGIApplication, environ: WSGIEnvironment) -> Response:
    """The answer to a request of the owner, with the faults that were asked for."""
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    if path.startswith(f"{CONTROL_PATH}/"):
        path = path.removeprefix(CONTROL_PATH)
        return control.respond(method, path, request_body(environ))
    call = call_of(environ)
    if call is None:
        return _answer(moto, environ, call)
    FAULTS.record(call.action)
    fault = FAULTS.of_call(call.service, call.operation)
    if fault is None:
        return _answer(moto, environ, call)
    if fault.kind in ERRORS:
        request_body(environ)  # a client may send it whole before it reads the answer
        return _without_body_for_head(environ, _refusal(call, fault.kind))
    return _disturbed(moto, environ, call, fault)


def _disturbed(
    moto: WSGIApplication, environ: WSGIEnvironment, call: Call, fault: Fault
) -> Response:
    """The answer over a connection with a fault. Raises ConnectionAbortedError for no answer."""
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
    runtime = INVOCATION_PATH.fullmatch(path) if method == "POST" else None
    if runtime:
        return invoke(_invocation(environ, runtime))
    rejected = rejected_response(call, environ) if call else not_served(method, path)
    if rejected:
        return rejected
    return _service_response(environ) or _moto_response(moto, environ, call)


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
        return _without_body_for_head(environ, error_response(call, 500, *_BUG))
    status, headers = int(begun[-1][0].partition(" ")[0]), dict(begun[-1][1])
    if environ["PATH_INFO"] == "/moto-api/reset":
        services.reset()
        STORE.clear()
        autoscaling.AUTOSCALER.clear()
        alarms.reset()
        CLOCK.reset()
        FAULTS.clear()
        FAULTS.forget_calls()
        create_role()
    is_page = headers.get("Content-Type", "").startswith("text/html")
    if call and status >= 400 and is_page and environ["REQUEST_METHOD"] != "HEAD":
        _close(body)
        if status in (404, 405, 501):
            return _unknown(environ, call)
        return error_response(call, 500, *_BUG)
    return Response(status, headers, _chunks(body))


_BUG = ("InternalFailure", "Internal error of the sandbox; see its log (daemon.log).")


def _unknown(environ: WSGIEnvironment, call: Call | None) -> Response:
    """What AWS answers about an operation that a service does not have."""
    if call is None:
        path = environ["PATH_INFO"]
        return json_response({"message": f"the sandbox has no {path}"}, 404)
    codes = {"s3": (501, "NotImplemented"), "query": (400, "InvalidAction")}
    status, code = codes.get(call.protocol, (400, "UnknownOperationException"))
    message = f"The sandbox does not have the operation {call.action}."
    return _without_body_for_head(environ, error_response(call, status, code, message))


def _without_body_for_head(environ: WSGIEnvironment, response: Response) -> Response:
    if environ["REQUEST_METHOD"] != "HEAD":
        return response
    return Response(response.status, response.headers, iter(()))


def _chunks(body: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from body
    finally:
        _close(body)


def _close(body: Iterable[bytes]) -> None:
    if hasattr(body, "close"):
        body.close()


@functools.cache
def _install_stacks() -> None:
    from peagle.sandbox import stacks

    stacks.install()


def _is_from_a_web_page(environ: WSGIEnvironment) -> bool:
    """Neither across origins nor through a name that resolves to the loopback address."""
    return "HTTP_ORIGIN" in environ or not _OUR_HOST.fullmatch(environ.get("HTTP_HOST", ""))


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
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    operation = services.OPERATIONS.get(target) or scalable_targets.OPERATIONS.get(target)
    if operation is None:
        return None
    try:
        document = operation(environ[_REGION_KEY], json_parameters(environ))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        failure = {"__type": "ValidationException", "message": f"Invalid parameters: {error}."}
        return ErrorResponse(400, "ValidationException", failure).response
    except services.NoSuchQuota as error:
        failure = {"__type": error.code, "message": str(error)}
        return ErrorResponse(400, error.code, failure).response
    if document is None:
        return None
    return json_response(document, content_type="application/x-amz-json-1.1")
