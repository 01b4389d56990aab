"""The engine as a child process: its output comes through a pipe, its news through a socket."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence

from serve.errors import WrongEnvironment
from serve.words import DRAIN, SOCKET_VARIABLE, STARTED_VARIABLE

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
