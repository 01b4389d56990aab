"""What supervisor and engine tell each other over their socket, a line each.

The engine: ``hello`` (it can be drained), ``healthy``, ``idle`` (all is answered), and
``failed REASON``. The supervisor: ``drain``.

A line of the engine's output, taken apart: level, process, place, message.

(EngineCore pid=8) INFO 11-20 11:34:26 [core.py:131] Loading    vLLM's own logger
INFO:     127.0.0.1:5000 - "GET /ping HTTP/1.1" 200 OK          uvicorn's
Traceback (most recent call last):                              anything else

The engine as a child process: its output comes through a pipe, its news through a socket.
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

from peagle_serve.contract import WrongEnvironment

SOCKET_VARIABLE = "PEAGLE_SUPERVISOR_SOCKET"
"""The number of the engine's end of the socket."""

STARTED_VARIABLE = "PEAGLE_ENGINE_STARTED"
"""When the engine was started, in seconds of the machine's monotonic clock."""

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
    """Takes lines apart, one after the other: a traceback goes over many."""

    def __init__(self) -> None:
        self._in_traceback: set[str] = set()

    def fields(self, line: str) -> dict[str, str]:
        """``level`` and ``message``, and ``process`` and ``place`` where the line has them."""
        found = _LINE.match(line)
        assert found is not None, "the pattern takes every line"
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
        """Level and message of a line that vLLM's logger did not write."""
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
    """What a terminal would show of a line in which a progress bar was drawn again and again."""
    return line.rstrip("\r").rpartition("\r")[2]


_READ_BYTES = 65536
_LONGEST_LINE = 1_000_000
"""Bytes; what has no line end until then is taken for a line."""


class Engine:
    """A running engine, in a process group of its own. End it with ``signal`` and ``close``."""

    def __init__(self, argv: Sequence[bytes], environment: Mapping[bytes, bytes]) -> None:
        reading, writing = os.pipe()
        self.news, theirs = socket.socketpair()
        os.set_blocking(reading, False)
        self.news.setblocking(False)
        theirs.set_inheritable(True)
        self.output = reading
        self.started = time.monotonic()
        self.ended: int | None = None
        """Its exit status once it has ended, as a shell counts: 128 and the signal's number."""
        self._rest = b""
        own = {
            SOCKET_VARIABLE.encode(): b"%d" % theirs.fileno(),
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
            theirs.close()

    def lines(self) -> list[str] | None:
        """The lines that are there now; ``None`` at the end of all output."""
        try:
            read = os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return []
        if not read:
            last, self._rest = self._rest, b""
            return [_text(last)] if last else None
        *lines, self._rest = (self._rest + read).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [_text(line) for line in lines]

    def words(self) -> list[str] | None:
        """What it tells now, in lines; ``None`` when it will tell nothing any more."""
        try:
            heard = self.news.recv(4096)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return heard.decode("utf-8", errors="replace").splitlines() if heard else None

    def drain(self) -> bool:
        """Ask it to answer what it has begun, and nothing new. False if it cannot be asked."""
        try:
            self.news.send(f"{DRAIN}\n".encode())
        except OSError:
            return False
        return True

    def signal(self, number: int) -> None:
        """To the engine itself, which looks after its own children."""
        if self.ended is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End what is left of it at once, children included."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave nothing of it: no process, no open file."""
        self.kill()
        os.close(self.output)
        self.news.close()


def reap(engine: Engine) -> None:
    """Take the exit status of every child that ended. The first process of a container is given
    all orphans, and must take theirs too."""
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
    """Raise WrongEnvironment if something listens there: vLLM finds out only after its imports."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise WrongEnvironment(
                    f"port {port} is in use: Address already in use",
                    "choose another port, or stop what listens on this one",
                ) from None


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")
