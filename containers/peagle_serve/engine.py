"""The engine as a child process: output through a pipe, messages through a socket.

Messages are one line each. From the engine: ``hello`` (it can be drained), ``healthy``, ``idle``
(all requests are answered), ``failed REASON``. From the supervisor: ``drain``.

Lines of the output have one of these forms:

(EngineCore pid=8) INFO 11-20 11:34:26 [core.py:131] Loading    vLLM's logger
INFO:     127.0.0.1:5000 - "GET /ping HTTP/1.1" 200 OK          uvicorn
Traceback (most recent call last):                              anything else
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence

from peagle_serve.contract import InvalidEnvironment

SOCKET_VARIABLE = "PEAGLE_SUPERVISOR_SOCKET"
"""The file descriptor of the engine's end of the socket."""

STARTED_VARIABLE = "PEAGLE_ENGINE_STARTED"
"""The start of the engine, in seconds of the monotonic clock."""

HELLO = "hello"
HEALTHY = "healthy"
IDLE = "idle"
FAILED = "failed"
DRAIN = "drain"


_LEVELS = r"DEBUG|INFO|WARNING|ERROR|CRITICAL"
_LINE = re.compile(
    r"^(?:\((?P<process>[A-Z]\w*(?: pid=\d+)?)\) ?)*"
    rf"(?:(?P<level>{_LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d (?:\[(?P<place>[^\]]*)\] ?)?)?"
    r"(?P<message>.*)$",
    re.DOTALL,
)
_UVICORN = re.compile(rf"^(?P<level>{_LEVELS}):\s+(?P<message>.*)$", re.DOTALL)
_WARNING = re.compile(r"\b\w*Warning: ")
_ERROR = re.compile(r"^(?:[\w.]*(?:Error|Exception)(?::|$)|[\w.]+: error: |Fatal Python error)")
_TRACEBACK = "Traceback (most recent call last):"


class EngineLines:
    """Parses lines in their order: a traceback spans many."""

    def __init__(self) -> None:
        self._in_traceback: set[str] = set()

    def fields(self, line: str) -> dict[str, str]:
        """``level`` and ``message``, and ``process`` and ``place`` where the line has them."""
        found = _LINE.match(line)
        assert found is not None, "the pattern matches every line"
        process, level, message = found["process"] or "", found["level"], found["message"]
        fields = {"level": level or "", "message": message.rstrip()}
        if process:
            fields["process"] = process
        if found["place"]:
            fields["place"] = found["place"]
        if not level:
            fields.update(self._unmarked(process, fields["message"]))
        return fields

    def _unmarked(self, process: str, message: str) -> dict[str, str]:
        if message.startswith(_TRACEBACK):
            self._in_traceback.add(process)
            return {"level": "ERROR"}
        if process in self._in_traceback:
            if message and not message[0].isspace():
                self._in_traceback.discard(process)
            return {"level": "ERROR"}
        server = _UVICORN.match(message)
        if server:
            return {"level": server["level"], "message": server["message"]}
        if _ERROR.match(message):
            return {"level": "ERROR"}
        return {"level": "WARNING" if _WARNING.search(message) else "INFO"}


def last_on_screen(line: str) -> str:
    """What a terminal shows of a line in which a progress bar was redrawn."""
    return line.rstrip("\r").rpartition("\r")[2]


_READ_BYTES = 65536
_LONGEST_LINE = 1_000_000
"""Bytes; a longer line is split."""


class EngineChild:
    """A running engine, in its own process group. End it with ``signal`` and ``close``."""

    def __init__(self, argv: Sequence[bytes], environment: Mapping[bytes, bytes]) -> None:
        reading, writing = os.pipe()
        self.channel, remote = socket.socketpair()
        os.set_blocking(reading, False)
        self.channel.setblocking(False)
        remote.set_inheritable(True)
        self.output = reading
        self.started = time.monotonic()
        self.ended: int | None = None
        """Its exit status once it has ended; 128 plus the number of the signal that killed it."""
        self._partial = b""
        own = {
            SOCKET_VARIABLE.encode(): b"%d" % remote.fileno(),
            STARTED_VARIABLE.encode(): b"%.3f" % self.started,
        }
        try:
            self.pid = os.posix_spawn(
                argv[0],
                list(argv),
                {**environment, **own},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writing, 1),
                    (os.POSIX_SPAWN_DUP2, writing, 2),
                ],
                setpgroup=0,
                setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD],
            )
        finally:
            os.close(writing)
            remote.close()

    def lines(self) -> list[str] | None:
        """The lines that have arrived; ``None`` at the end of the output."""
        try:
            read = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return []
        if not read:
            last, self._partial = self._partial, b""
            return [_text(last)] if last else None
        *lines, self._partial = (self._partial + read).split(b"\n")
        if len(self._partial) > _LONGEST_LINE:
            lines.append(self._partial)
            self._partial = b""
        return [_text(line) for line in lines]

    def messages(self) -> list[str] | None:
        """The messages that have arrived; ``None`` when the engine has closed its end."""
        try:
            received = self.channel.recv(4096)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return received.decode("utf-8", errors="replace").splitlines() if received else None

    def drain(self) -> bool:
        """Ask it to finish its requests and reject new ones. False if it is unreachable."""
        try:
            self.channel.send(f"{DRAIN}\n".encode())
        except OSError:
            return False
        return True

    def signal(self, number: int) -> None:
        """Signal the engine's main process, which ends its own children."""
        if self.ended is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the engine and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        os.close(self.output)
        self.channel.close()


def reap(engine: EngineChild) -> None:
    """Collect the exit status of every ended child, orphans included: a container's first process
    inherits them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if pid == engine.pid:
            code = os.waitstatus_to_exitcode(status)
            engine.ended = code if code >= 0 else 128 - code


def check_port(host: str, port: int) -> None:
    """Raise InvalidEnvironment if the port is in use; vLLM would notice only after its imports."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (TypeError, UnicodeError):  # both mean that it has no encoding
            raise InvalidEnvironment(
                f"{host[:80]!r} is not the name of a host", "set an address, such as 0.0.0.0"
            ) from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InvalidEnvironment(
                    f"port {port} is in use: Address already in use",
                    "use another port, or stop the process that listens on this one",
                ) from None


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")
