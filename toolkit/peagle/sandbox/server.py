"""The sandbox daemon: ``python -m peagle.sandbox.server``, started by ``client``.

It listens on the loopback address only, records its process in ``state``, reports through a pipe
that it is ready, and on SIGTERM ends every engine before it ends. It also ends when its record is
gone or damaged: no command could find it any more.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from email.message import Message
from functools import lru_cache
from logging.handlers import RotatingFileHandler
from typing import Any
from wsgiref.types import WSGIEnvironment

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, ThreadedWSGIServer

from peagle.engine.process import LOOPBACK, EngineProcess, start_time
from peagle.sandbox import account, observability, router, sagemaker, scaling, scheduler, state


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
    _came: float | None = None
    """When the request came; ``None`` for one without a line that can be read."""

    def setup(self) -> None:
        super().setup()
        self.wfile = _Response(self.connection.makefile("wb", 0), self.wbufsize)

    def parse_request(self) -> bool:
        """Note when the request came, for its line in the log."""
        self._came = time.monotonic()
        return super().parse_request()

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
        """Send what is left, unless the client has gone."""
        with suppress(OSError):
            super().finish()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that cannot be parsed; it has no headers, or those of an earlier one."""
        self.headers = Message()
        super().send_error(code, message, explain)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """One line per call: its operation, its status, and when the answer began."""
        self._log_call(f"{code} {self._milliseconds()} ms")

    def connection_dropped(
        self, error: BaseException, environ: WSGIEnvironment | None = None
    ) -> None:
        """One line for a call whose connection ended before its client had all of the answer: the
        client may repeat what was done."""
        if environ is not None:
            self._log_call(f"connection lost after {self._milliseconds()} ms: {error}")

    def log_error(self, format: str, *args: Any) -> None:
        """One line, without that of a refused request, which ``log_request`` writes."""
        if not format.startswith("code "):
            _log(format % args)

    def _log_call(self, what: str) -> None:
        """The AWS operation, or method and path without the query, and ``what`` happened."""
        path = getattr(self, "path", "").partition("?")[0]
        target = self.headers.get("X-Amz-Target", "") or f"{self.command} {path}"
        _log(f"{target[:_LONGEST]} {what}")

    def _milliseconds(self) -> int:
        return 0 if self._came is None else round((time.monotonic() - self._came) * 1000)


LOG_LIMIT = 10_000_000
"""Bytes of the log at which it becomes ``daemon.log.1``, in place of an earlier one."""

_LONGEST = 300
_WATCH_SECONDS = 1.0
_LOG = logging.getLogger("peagle.sandbox")


def _log(text: str) -> None:
    shown = "".join(character if character.isprintable() else "?" for character in text)
    _LOG.info("%s", shown[: 2 * _LONGEST])


def _begin_log() -> None:
    """Write to the log, or leave a line out: a full disk must not take the answer to what was
    done."""
    handler = RotatingFileHandler(state.log_file(), maxBytes=LOG_LIMIT, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%FT%T"))
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    _LOG.propagate = logging.raiseExceptions = False


def main() -> None:
    """Serve until SIGTERM."""
    os.umask(0o077)  # for weights and logs too
    parser = argparse.ArgumentParser(prog="python -m peagle.sandbox.server")
    parser.add_argument("--port", type=int, required=True, help="0: any free one")
    parser.add_argument("--ready", type=int, required=True, help="pipe for the result of the start")
    parser.add_argument("--lock", type=int, required=True, help="lock to release when ready")
    options = parser.parse_args()
    _begin_log()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, options.port))
        except OSError as error:
            _report(options.ready, f"port {options.port} cannot be used: {error.strerror}")
            return
        listener.listen(128)
        server = _server(listener)
        port = listener.getsockname()[1]
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    started = start_time(os.getpid())
    assert started is not None
    this = EngineProcess(os.getpid(), started, port, str(state.log_file()))
    state.write_daemon(this)
    scheduler.start()
    scaling.start()
    observability.start_sampling(sagemaker.requests_in_progress)
    if not _report(options.ready, "ready"):
        state.sweep()
        return
    os.close(options.ready)
    os.close(options.lock)
    threading.Thread(target=_watch_record, args=(this, server), daemon=True).start()
    server.serve_forever(poll_interval=0.05)
    for endpoint in sagemaker.all_endpoints():
        endpoint.end()
    if state.read_daemon() in (this, None):
        state.sweep()


def _watch_record(this: EngineProcess, server: BaseWSGIServer) -> None:
    while state.read_daemon() == this:
        time.sleep(_WATCH_SECONDS)
    server.shutdown()


def _server(listener: socket.socket) -> BaseWSGIServer:
    for module in (account, observability, sagemaker, scheduler):
        module.install()
    account.create_role()
    moto: Any = DomainDispatcherApplication(create_backend_app)
    # For every request moto lists its own folder, and tries the patterns of all services.
    moto.get_backend_for_host = lru_cache(maxsize=256)(moto.get_backend_for_host)
    host, port = listener.getsockname()
    app = router.create_app(moto, state.read_access_key())
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
