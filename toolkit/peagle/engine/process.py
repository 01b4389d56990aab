"""One engine as a process of this machine: start it, watch it, end all of it.

A process is identified by its pid and its start time, so a pid that the system gives to another
process later is never taken for the engine.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil

from peagle.data import entrypoint_folder
from peagle.engine.machine import Engine
from peagle.errors import DockerMissing, EngineError, NotFound, Refused
from peagle.images.docker import Docker
from peagle.store import private_folder
from peagle_serve.checks import check_no_code
from peagle_serve.contract import PORT_VARIABLE, PREFIX, ROOT_VARIABLE, InvalidEnvironment

LOOPBACK = "127.0.0.1"

_PORTS = range(20_000, 32_768)

INHERITED_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "SSL_CERT_FILE",
)  # fmt: skip
"""All that the engine gets of this process's environment: no AWS key, no token, no proxy."""

HUB_VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "REQUESTS_CA_BUNDLE", "CUDA_HOME", "TIKTOKEN_ENCODINGS_BASE",
)  # fmt: skip
"""What an engine on a GPU gets besides: it may download its weights."""

_GATE = """
import os, sys
if not os.read(0, 1):
    sys.exit("the parent process ended before it recorded this engine")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.umask(0o077)
os.chdir(sys.argv[1])
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Waits until the parent has recorded this process, then becomes the program in its arguments. One
byte on stdin opens the gate; end of file means that the parent died or failed, and nothing runs."""

_POLL_SECONDS = 0.02
_KILL_SECONDS = 30.0


@dataclass(frozen=True)
class EngineProcess:
    """A running engine, as plain data for a state file. ``pid`` leads a session of its own;
    ``started`` is its ``start_time``. With ``container`` the process is the attached ``docker``
    command."""

    pid: int
    started: int
    port: int
    log: str
    container: str | None = None


def start_engine(
    engine: Engine,
    environment: Mapping[str, str],
    ml_root: Path,
    port: int,
    log: Path,
    record: Callable[[EngineProcess], object] = lambda process: None,
    inherited: Sequence[str] = INHERITED_VARIABLES,
) -> EngineProcess:
    """Start ``peagle_serve``, detached; ``ml_root`` stands for ``/opt/ml``, and the engine gets the
    variables ``inherited`` of this process. See ``start_program``."""
    argv = [str(engine.python), str(entrypoint_folder()), "serve"]
    variables = {
        **{name: os.environ[name] for name in inherited if name in os.environ},
        **environment,
        ROOT_VARIABLE: str(ml_root),
        PORT_VARIABLE: str(port),
        f"{PREFIX}HOST": LOOPBACK,
        "PYTHONUNBUFFERED": "1",
    }
    return start_program(argv, variables, port, log, record)


def refuse_code(environment: Mapping[str, str]) -> None:
    """Raise Refused for a variable that chooses the code that a process of this user loads."""
    try:
        check_no_code(environment)
    except InvalidEnvironment as error:
        raise Refused(error.message, error.fix, "code-variable") from None


def start_program(
    argv: list[str],
    environment: Mapping[str, str],
    port: int,
    log: Path,
    record: Callable[[EngineProcess], object] = lambda process: None,
    container: str | None = None,
) -> EngineProcess:
    """Start ``argv`` with exactly ``environment``, in a session of its own, with its output
    appended to ``log``. ``record`` is called before the program begins; if it raises, or this
    process dies before it returns, the program never begins."""
    private_folder(log.parent)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    reading, writing = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _GATE, str(log.parent), *argv],
            dict(environment),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        )
        process = EngineProcess(pid, start_time(pid) or -1, port, str(log), container)
        record(process)
        os.write(writing, b"1")  # opens the gate
    finally:
        os.close(reading)
        os.close(writing)
    return process


def run_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    watch: Callable[[], object],
    grace_seconds: float = 0.0,
) -> int:
    """Run ``argv`` in the folder of ``log``, to which its output is appended; return its exit
    status. ``watch`` is called until it ends. What that raises, or an interrupt, ends it: by
    SIGTERM, and after ``grace_seconds`` by SIGKILL."""
    with (
        log.open("ab") as stream,
        subprocess.Popen(
            argv, env=environment, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=stream,
            stderr=subprocess.STDOUT, start_new_session=True,
        ) as program,
    ):  # fmt: skip
        try:
            while program.poll() is None:
                watch()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(0.5)
        finally:
            try:
                if program.poll() is None:
                    program.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        program.wait(grace_seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):  # its workers
                    os.killpg(program.pid, signal.SIGKILL)
    return program.returncode


class AppendedLines:
    """The lines that a program appends to a file."""

    def __init__(self, file: Path) -> None:
        self._file, self._at = file, 0

    def read(self) -> Iterator[bytes]:
        """The complete lines that are new."""
        with contextlib.suppress(FileNotFoundError), self._file.open("rb") as stream:
            stream.seek(self._at)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._at += len(line)
                yield line


def is_alive(process: EngineProcess) -> bool:
    """Whether the engine's leading process still runs. Reaps it if it was our child."""
    if process.pid > 0:  # a record may be damaged, and -1 is any child
        with contextlib.suppress(ChildProcessError, OverflowError):
            os.waitpid(process.pid, os.WNOHANG)
    return start_time(process.pid) == process.started


def wait_for_end(process: EngineProcess, seconds: float) -> bool:
    """Whether the leading process ends within ``seconds``."""
    until = time.monotonic() + seconds
    while is_alive(process):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def start_time(pid: int) -> int | None:
    """When the process started, ``None`` for none or a zombie: on Linux in clock ticks since boot,
    which no change of the clock affects, elsewhere in seconds since 1970."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        created = process.create_time()
    except (psutil.Error, ValueError):  # no process has a negative number
        return None
    if not psutil.LINUX:
        return int(created)
    return round((created - psutil.boot_time()) * os.sysconf("SC_CLK_TCK"))


def session_members(leader: int, since: int) -> tuple[int, ...]:
    """The living processes of the session of ``leader`` that started at ``since`` or later."""
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # the process has ended
            if os.getsid(pid) == leader and (start_time(pid) or -1) >= since:
                members.append(pid)
    return tuple(members)


@contextlib.contextmanager
def response(
    port: int, path: str, seconds: float, body: bytes | None = None,
    headers: Mapping[str, str] = {},
) -> Iterator[http.client.HTTPResponse]:  # fmt: skip
    """The open response of the engine on ``port``; a request with a ``body`` is a POST. Raises
    OSError, HTTPException and, for a chunk of negative length, ValueError."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=seconds)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        with connection.getresponse() as reply:
            yield reply
    finally:
        connection.close()


NO_RESPONSE = (OSError, ValueError, http.client.HTTPException)
"""What ``response`` raises."""


def is_healthy(port: int, seconds: float = 2.0) -> bool:
    """Whether the engine answers ``/ping`` on this machine with 200."""
    with contextlib.suppress(*NO_RESPONSE), response(port, "/ping", seconds) as reply:
        return reply.status == http.HTTPStatus.OK
    return False


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C: a cancelled pipeline, or a spot instance that is taken back, must
    not leave an endpoint or an engine."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def drain_engine(process: EngineProcess, seconds: float) -> None:
    """Send SIGTERM to the leading process only, so that running requests finish, and wait until it
    ends, at most ``seconds``."""
    if is_alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        wait_for_end(process, seconds)


def stop_engine(process: EngineProcess, grace_seconds: float = 10.0) -> None:
    """End every process of the engine: SIGTERM, and SIGKILL after ``grace_seconds``. Can be
    repeated."""
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, _KILL_SECONDS)):
        for pid in _members(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + seconds
        while _members(process) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
    if process.container:
        remove_container(process.container)


def remove_container(name: str) -> None:
    """Remove the container if it exists. Where no Docker engine answers, none runs."""
    with contextlib.suppress(DockerMissing, NotFound, EngineError):
        Docker().run("rm", "--force", "--volumes", name, doing=f"removing {name}")


def free_port() -> int:
    """A free port below the ephemeral ones, which an outgoing connection could take meanwhile."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many different ports as ``free_port`` finds."""
    return list(islice(filter(is_port_free, random.sample(_PORTS, len(_PORTS))), count))


def is_port_free(port: int) -> bool:
    """Whether an engine could listen on ``port`` of the loopback address."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _members(process: EngineProcess) -> tuple[int, ...]:
    """Its living processes. The system reuses no pid while a session has that number, so a leader
    with another start time means that the session is gone. A damaged record names no session."""
    if process.pid < 2 or (not is_alive(process) and start_time(process.pid) is not None):
        return ()
    return session_members(process.pid, since=process.started)
