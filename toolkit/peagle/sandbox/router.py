"""The sandbox as one WSGI application: which request goes where.

    /_peagle/...             the sandbox's own requests: status, quotas, faults
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
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.backends import get_service_from_url
from moto.core.exceptions import ServiceException
from werkzeug.wrappers import Response

from peagle.sandbox import account, scaling
from peagle.sandbox.client import ACCOUNT, CONTROL_PATH
from peagle.sandbox.faults import ERRORS, FAULTS, KINDS, Fault
from peagle.sandbox.invocations import BODY_LIMIT, invoke
from peagle.sandbox.requests import (
    INVOCATION_PATH,
    LARGEST_BODY,
    OPENAI_PATH,
    Call,
    Refused,
    authenticate,
    check_call,
    check_length,
    is_owner,
    json_parameters,
    json_response,
    read_call,
    read_protocol,
    request_body,
    signing_scope,
)
from peagle.sandbox.sagemaker import all_endpoints
from peagle.sandbox.scheduler import CLOCK, fire_due
from peagle.sandbox.state import AccessKey

_OUR_HOST = re.compile(r"(.+\.)?localhost(:\d+)?|127\.0\.0\.1(:\d+)?")
_LARGEST_OBJECT = 5 << 30
"""Bytes of one request of S3, as on AWS."""

_REGION_KEY = "peagle.region"
"""In the environment of a request: the region of its signature or token, once it is verified."""

_STARTED = time.time()
_BUG = Refused("InternalFailure", "Internal error of the sandbox; see its log (daemon.log).", 500)
_FAULT_FIX = (
    "use the name of an API operation, such as CreateEndpoint, and one of these faults: "
    f"{', '.join(KINDS)}"
)


def create_app(moto: WSGIApplication, key: AccessKey) -> WSGIApplication:
    """The WSGI application, for the owner of ``key``; ``moto`` answers what the sandbox itself does
    not."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            _check_owner(key, environ)
            response = _respond(moto, environ)
        except Refused as refused:
            response = refused.response(read_protocol(environ) if refused.code else "json")
        return response(environ, start_response)

    return application


def _check_owner(key: AccessKey, environ: WSGIEnvironment) -> None:
    """Raise Refused for a request that is not the owner's.

    Starting an engine starts a program, so only the owner's requests are processed, and none of a
    web page: neither across origins nor through a name that resolves to the loopback address.
    """
    if "HTTP_ORIGIN" in environ or not _OUR_HOST.fullmatch(environ.get("HTTP_HOST", "")):
        raise Refused("", "the sandbox does not accept requests from web pages", 403)
    path, scope = environ["PATH_INFO"], signing_scope(environ)
    limit = _LARGEST_OBJECT if scope is None or scope["service"] == "s3" else LARGEST_BODY
    check_length(environ, BODY_LIMIT if INVOCATION_PATH.fullmatch(path) else limit)
    if not path.startswith((f"{CONTROL_PATH}/", "/moto-api")):
        environ[_REGION_KEY] = authenticate(environ, key)
    elif not is_owner(environ, key):
        raise Refused("", "the sandbox belongs to another user", 403)


def _respond(moto: WSGIApplication, environ: WSGIEnvironment) -> Response:
    """The answer to a request of the owner, with the faults that were asked for. Raises Refused,
    and ConnectionAbortedError for no answer."""
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    if path.startswith(f"{CONTROL_PATH}/"):
        return control(method, path.removeprefix(CONTROL_PATH), environ)
    call = read_call(environ)
    fault = FAULTS.meet_call(call.service, call.operation) if call else None
    if call is None or fault is None:
        return _answer(moto, environ, call)
    if fault.kind in ERRORS:
        request_body(environ)  # a client may send it whole before it reads the answer
        return _error_of_fault(call, fault.kind).response(call.protocol)
    response = None
    if fault.kind in ("answer-lost", "timeout"):
        response = _answer(moto, environ, call)
        response.make_sequence()
    if fault.kind in ("timeout", "timeout-before"):
        time.sleep(fault.seconds)
    if response is None or fault.kind == "answer-lost":
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError(f"{call.action}: the sandbox's fault {fault.kind}")
    return response


def _error_of_fault(call: Call, kind: str) -> Refused:
    """An error of AWS, with the code that it has in the protocol of the call."""
    mark = "(a fault added to the sandbox)"
    if kind == "access-denied":
        by_xml = call.protocol in ("query", "s3")
        status, code = (403, "AccessDenied") if by_xml else (400, "AccessDeniedException")
        message = (
            f"User: arn:aws:sts::{ACCOUNT}:assumed-role/user/sandbox is not authorized to perform: "
            f"{call.action} because no identity-based policy allows the {call.action} action {mark}"
        )
        return Refused(code, message, status)
    if kind == "throttling":
        slow = {"s3": (503, "SlowDown"), "query": (400, "Throttling")}
        status, code = slow.get(call.protocol, (400, "ThrottlingException"))
        return Refused(code, f"Rate exceeded {mark}", status)
    code = "InternalError" if call.protocol == "s3" else "InternalFailure"
    return Refused(code, f"We encountered an internal error {mark}", 500)


def _answer(moto: WSGIApplication, environ: WSGIEnvironment, call: Call | None) -> Response:
    """The answer of an engine, of what moto lacks, or of moto. Raises Refused."""
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    invocation = INVOCATION_PATH.fullmatch(path) if method == "POST" else None
    if invocation:
        return invoke(environ, invocation, environ[_REGION_KEY])
    if call:
        check_call(call, environ)
    elif other := OPENAI_PATH.fullmatch(path):
        message = (
            f"SageMaker does not serve {method} {other['path'] or '/'}; of OpenAI's API, it serves "
            "POST /v1/chat/completions only"
        )
        error = {"message": message, "type": "NotFoundError", "param": None, "code": 404}
        return json_response({"error": error}, 404)
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    operation = account.OPERATIONS.get(target) or scaling.OPERATIONS.get(target)
    if operation:
        parameters = json_parameters(environ)
        try:
            document = operation(environ[_REGION_KEY], parameters)
        except ServiceException as error:
            raise Refused(error.code, error.message) from error
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise Refused("ValidationException", f"Invalid parameters: {error}.") from error
        if document is not None:
            return json_response(document)
    return _moto_response(moto, environ, call)


def _moto_response(moto: WSGIApplication, environ: WSGIEnvironment, call: Call | None) -> Response:
    """moto's answer; its pages for a browser become errors of the protocol."""
    if call and call.service == "cloudformation":
        _install_stacks()
    try:
        response = Response.from_app(moto, environ)
    except NotImplementedError:
        return _unknown(environ, call)
    except Exception:
        if call is None:
            raise
        if get_service_from_url(f"https://{call.service}.us-east-1.amazonaws.com") is None:
            return _unknown(environ, call)  # moto has no such service
        traceback.print_exc()
        return _BUG.response(call.protocol)
    if environ["PATH_INFO"] == "/moto-api/reset":
        _reset()
    is_page = response.mimetype == "text/html" and environ["REQUEST_METHOD"] != "HEAD"
    if call and response.status_code >= 400 and is_page:
        response.close()
        is_unknown = response.status_code in (404, 405, 501)
        return _unknown(environ, call) if is_unknown else _BUG.response(call.protocol)
    return response


def _unknown(environ: WSGIEnvironment, call: Call | None) -> Response:
    """What AWS answers about an operation that a service does not have."""
    if call is None:
        return json_response({"message": f"the sandbox has no {environ['PATH_INFO']}"}, 404)
    codes = {"s3": (501, "NotImplemented"), "query": (400, "InvalidAction")}
    status, code = codes.get(call.protocol, (400, "UnknownOperationException"))
    message = f"The sandbox does not have the operation {call.action}."
    return Refused(code, message, status).response(call.protocol)


def _reset() -> None:
    """After moto's reset: forget the state of the sandbox too."""
    account.forget()
    account.create_role()
    scaling.AUTOSCALER.clear()
    CLOCK.ahead = 0.0
    FAULTS.clear()


@functools.cache
def _install_stacks() -> None:
    from peagle.sandbox import stacks

    stacks.install()


def control(method: str, path: str, environ: WSGIEnvironment) -> Response:
    """The answer to a request of the sandbox's own; 400 for an invalid document."""
    fix = _FAULT_FIX if path == "/faults" else "see the commands of peagle sandbox"
    try:
        answer = _control(method, path, json_parameters(environ))
    except ServiceException as error:
        return json_response({"message": error.message, "fix": fix}, 400)
    except (ValueError, TypeError, KeyError, AttributeError, Refused) as error:
        invalid = "" if path == "/faults" else f"{method} {path} got an invalid document: "
        return json_response({"message": f"{invalid}{error}", "fix": fix}, 400)
    if answer is None:
        return json_response({"message": f"the sandbox has no {method} {path}"}, 404)
    return json_response(answer)


def _control(method: str, path: str, document: Mapping[str, Any]) -> dict[str, Any] | None:
    match method, path:
        case "GET", "/status":
            endpoints = [endpoint.sandbox_status for endpoint in all_endpoints()]
            endpoints.sort(key=lambda status: (status.region, status.name))
            uptime = round(time.time() - _STARTED, 1)
            return {"uptime_seconds": uptime, "endpoints": [asdict(status) for status in endpoints]}
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
        case _:
            return None
    return {}
