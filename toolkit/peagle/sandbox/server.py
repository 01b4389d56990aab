"""The sandbox daemon: ``python -m peagle.sandbox.server``, started by ``client``.

    /_peagle/...             the sandbox's own requests: status, quotas, faults
    /endpoints/<name>/...    ``invocations``, streamed
    X-Amz-Target             what moto lacks: ``account``, ``sagemaker``, ``scaling``
    everything else          moto

It listens on the loopback address only, records its process in ``state``, reports through a pipe
that it is ready, and on SIGTERM ends every engine before it ends. It also ends when its record is
gone or damaged: no command could find it any more.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import re
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.core.exceptions import ServiceException
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, ThreadedWSGIServer
from werkzeug.wrappers import Response

from peagle.engine.process import LOOPBACK, EngineProcess, start_time
from peagle.sandbox import account, observability, sagemaker, scaling, state
from peagle.sandbox.client import ACCOUNT, CONTROL_PATH
from peagle.sandbox.faults import CALL, ERRORS, FAULTS, KINDS, Fault
from peagle.sandbox.invocations import invoke
from peagle.sandbox.requests import (
    INVOCATION_PATH,
    OPENAI_PATH,
    Call,
    Refused,
    authenticate,
    check_call,
    is_same,
    json_parameters,
    json_response,
    read_call,
    read_protocol,
    request_body,
)
from peagle.sandbox.sagemaker import all_endpoints
from peagle.sandbox.state import AccessKey, Daemon

_OUR_HOST = re.compile(r"(.+\.)?localhost(:\d+)?|127\.0\.0\.1(:\d+)?")

_REGION_KEY = "peagle.region"
"""In the environment of a request: the region of its signature or token."""

_STARTED = time.time()
_OPERATIONS = {**account.OPERATIONS, **sagemaker.OPERATIONS, **scaling.OPERATIONS}


def create_app(moto: WSGIApplication, key: AccessKey) -> WSGIApplication:
    """The sandbox as one WSGI application, for the owner of ``key``; ``moto`` answers what the
    sandbox itself does not."""

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            _check_owner(key, environ)
            response = _respond(moto, environ)
        except Refused as refused:
            response = refused.response(read_protocol(environ) if refused.code else "json")
        return response(environ, start_response)

    return application


def _check_owner(key: AccessKey, environ: WSGIEnvironment) -> None:
    """Raise Refused for a request that is not the owner's. Starting an engine starts a program, so
    only the owner's requests are processed, and none of a web page: neither across origins nor
    through a name that resolves to the loopback address."""
    if "HTTP_ORIGIN" in environ or not _OUR_HOST.fullmatch(environ.get("HTTP_HOST", "")):
        raise Refused("", "the sandbox does not accept requests from web pages", 403)
    path = environ["PATH_INFO"]
    if not path.startswith((f"{CONTROL_PATH}/", "/moto-api")):
        environ[_REGION_KEY] = authenticate(environ, key)
    elif not is_same(environ.get("HTTP_AUTHORIZATION", ""), key.authorization):
        raise Refused("", "the sandbox belongs to another user", 403)


def _respond(moto: WSGIApplication, environ: WSGIEnvironment) -> Response:
    """The answer to a request of the owner, with the faults that were asked for. Raises Refused,
    and ConnectionAbortedError for no answer."""
    path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
    if path.startswith(f"{CONTROL_PATH}/"):
        return control(method, path.removeprefix(CONTROL_PATH), environ)
    call = read_call(environ)
    fault = FAULTS.meet(call.service, call.operation, CALL) if call else None
    if call is None or fault is None:
        return _answer(moto, environ, call)
    if fault.kind in ERRORS:
        request_body(environ)  # a client may send it whole before it reads the answer
        return _make_fault_error(call, fault.kind).response(call.protocol)
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


def _make_fault_error(call: Call, kind: str) -> Refused:
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
    if operation := _OPERATIONS.get(environ.get("HTTP_X_AMZ_TARGET", "")):
        parameters = json_parameters(environ)
        try:
            document = operation(environ[_REGION_KEY], parameters)
        except ServiceException as error:
            raise Refused(error.code, error.message) from error
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise Refused("ValidationException", f"Invalid parameters: {error}.") from error
        if document is not None:
            return json_response(document)
    if call and call.service == "cloudformation":
        _install_stacks()
    try:
        response = Response.from_app(moto, environ)
    except Exception as error:
        if call is None:
            raise
        if not isinstance(error, NotImplementedError):
            traceback.print_exc()
        return _cannot_answer(call)
    if path == "/moto-api/reset":  # forget the state of the sandbox too
        account.forget()
        account.create_role()
        scaling.forget()
        FAULTS.clear()
    is_page = response.mimetype == "text/html" and method != "HEAD"  # moto's, for a browser
    if call and response.status_code >= 400 and is_page:
        response.close()
        return _cannot_answer(call)
    return response


def _cannot_answer(call: Call) -> Response:
    """What AWS answers about an operation that a service does not have; also after a bug, whose
    traceback is in the log."""
    codes = {"s3": (501, "NotImplemented"), "query": (400, "InvalidAction")}
    status, code = codes.get(call.protocol, (400, "UnknownOperationException"))
    message = f"The sandbox does not have the operation {call.action} (see daemon.log)."
    return Refused(code, message, status).response(call.protocol)


@functools.cache
def _install_stacks() -> None:
    from peagle.sandbox import stacks  # importing moto's CloudFormation takes a second

    stacks.install()


def control(method: str, path: str, environ: WSGIEnvironment) -> Response:
    """The answer to a request of the sandbox's own; 400 for an invalid document."""
    fix = f"use an API operation, such as CreateEndpoint, and one of: {', '.join(KINDS)}"
    fix = fix if path == "/faults" else "show the help: peagle sandbox --help"
    try:
        answer = _control(method, path, json_parameters(environ))
    except (ServiceException, ValueError, TypeError, LookupError, AttributeError, Refused) as error:
        message = str(getattr(error, "message", error))
        return json_response({"message": message, "fix": fix}, 400)
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
        case "PUT", "/scaling":
            scaling.set_speed(**document)
        case "POST", "/faults":
            FAULTS.add(Fault(**document))
        case "GET", "/faults":
            return {"faults": [asdict(fault) for fault in FAULTS.all()]}
        case "DELETE", "/faults":
            return {"removed": FAULTS.clear(**document)}
        case "PUT", "/clock":
            return {"fired": scaling.advance(**document)}
        case _:
            return None
    return {}


class _Response(io.BufferedWriter):
    """Sends the end of a stream at once. werkzeug does not flush it, and then reads what is left of
    the request, for which it waits until the client has the end and closes."""

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        if data == b"0\r\n\r\n":
            self.flush()
        return written


class RequestHandler(MotoRequestHandler):
    """HTTP/1.1, so that a stream of unknown length is sent chunk by chunk."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 120
    """Seconds without a byte of a request, or without a byte taken of its response."""
    wbufsize = 65_536
    """Status, headers and first data are sent with one call. A client in Go, such as Terraform,
    that gets the headers before it has recorded that its request was written closes the connection
    without waiting for the body, and sends the request again: where both run on a busy machine."""

    def setup(self) -> None:
        super().setup()
        self.wfile = _Response(self.connection.makefile("wb", 0), self.wbufsize)

    def run_wsgi(self) -> None:
        """Answer the request, then end the connection: also one on which no answer could begin,
        where the client would wait for it as long as for another request."""
        try:
            super().run_wsgi()
        finally:
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        """Send ``100 Continue`` at once; werkzeug, which would send it later, does not see it."""
        self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.wfile.flush()
        del self.headers["Expect"]
        return True

    def finish(self) -> None:
        with suppress(OSError):  # the client has gone
            super().finish()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self._log_call(str(code))

    def connection_dropped(
        self, error: BaseException, environ: WSGIEnvironment | None = None
    ) -> None:
        """One line for a call whose connection ended before its client had all of the answer: the
        client may repeat what was done."""
        if environ is not None:
            self._log_call(f"connection lost: {error}")

    def log_error(self, format: str, *args: Any) -> None:
        """One line, without that of a refused request, which ``log_request`` writes."""
        if not format.startswith("code "):
            _log(format % args)

    def _log_call(self, what: str) -> None:
        """The AWS operation, or method and path without the query, and ``what`` happened."""
        path = getattr(self, "path", "").partition("?")[0]
        headers = getattr(self, "headers", {})  # none where they cannot be parsed
        target = headers.get("X-Amz-Target", "") or f"{self.command} {path}"
        _log(f"{target[:_LONGEST]} {what}")


_LONGEST = 300
_WATCH_SECONDS = 1.0


def _log(text: str) -> None:
    shown = "".join(character if character.isprintable() else "?" for character in text)
    with suppress(OSError):  # a full disk must not take the answer
        now = datetime.now().isoformat(timespec="milliseconds")
        print(now, shown[: 2 * _LONGEST], flush=True)


def main() -> None:
    """Serve until SIGTERM."""
    os.umask(0o077)  # for weights and logs too
    parser = argparse.ArgumentParser(prog="python -m peagle.sandbox.server")
    parser.add_argument("--port", type=int, required=True, help="0: any free one")
    parser.add_argument("--ready", type=int, required=True, help="pipe for the result of the start")
    parser.add_argument("--engine", required=True, help="how engines run: process or docker")
    options = parser.parse_args()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, options.port))
        except OSError as error:
            _report(options.ready, f"port {options.port} cannot be used: {error.strerror}")
            return
        listener.listen(128)
        key = AccessKey.create()
        server = _server(listener, key)
        port = listener.getsockname()[1]
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    started = start_time(os.getpid())
    assert started is not None
    process = EngineProcess(os.getpid(), started, port, str(state.log_file()))
    daemon = Daemon(process, options.engine, key)
    state.write_daemon(daemon)
    scaling.start()
    observability.start_sampling(sagemaker.requests_in_progress)
    if not _report(options.ready, "ready"):
        state.sweep()
        return
    os.close(options.ready)

    def watch_record() -> None:
        while state.read_daemon() == daemon:
            time.sleep(_WATCH_SECONDS)
        server.shutdown()

    threading.Thread(target=watch_record, daemon=True).start()
    server.serve_forever(poll_interval=0.05)
    for endpoint in all_endpoints():
        endpoint.end()
    for job in sagemaker.all_jobs():
        job.end()
    if state.read_daemon() in (daemon, None):
        state.sweep()


def _server(listener: socket.socket, key: AccessKey) -> BaseWSGIServer:
    for module in (account, observability, sagemaker):
        module.install()
    account.create_role()
    moto: Any = DomainDispatcherApplication(create_backend_app)
    # For every request moto lists its own folder, and tries the patterns of all services.
    moto.get_backend_for_host = functools.lru_cache(maxsize=256)(moto.get_backend_for_host)
    host, port = listener.getsockname()
    app = create_app(moto, key)
    return ThreadedWSGIServer(host, port, app, RequestHandler, fd=listener.fileno())


def _report(pipe: int, result: str) -> bool:
    """Report the result to the process that starts the daemon; false if that has ended."""
    try:
        os.write(pipe, result.encode())
    except BrokenPipeError:
        return False
    return True


if __name__ == "__main__":
    main()
    os._exit(0)  # freeing moto's memory would take seconds
