"""The system's table of processes: who started when, and who belongs to which session.

Linux: ``/proc/<pid>/stat`` (proc_pid_stat(5)); start times are clock ticks since boot.
Elsewhere: ``ps``; start times are seconds since 1970, and a session is its process group.

The end of a container, also of one whose ``docker`` command was killed.

One engine as a process of this machine: start it, see whether it lives, end all of it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle.data import entrypoint_folder
from peagle.engine.crash import crash_reason
from peagle.engine.installed import Engine
from peagle.errors import DockerMissing, EngineError, NotFound
from peagle.images import Docker

_PROC = Path("/proc")
_DEAD = "ZX"


@dataclass(frozen=True)
class _Row:
    pid: int
    session: int
    started: int


def start_of(pid: int) -> int | None:
    """When the living process ``pid`` started; ``None`` when there is none (a zombie is none)."""
    if _PROC.joinpath("self/stat").exists():
        row = _linux_row(_PROC / str(pid))
        return row.started if row else None
    return next((row.started for row in _ps_rows("-p", str(pid))), None)


def session(leader: int, since: int) -> tuple[int, ...]:
    """The living processes of the session that ``leader`` leads or led, started at or after
    ``since``."""
    rows = _linux_rows() if _PROC.joinpath("self/stat").exists() else _ps_rows("-A")
    return tuple(row.pid for row in rows if row.session == leader and row.started >= since)


def _linux_rows() -> Iterator[_Row]:
    for folder in _PROC.iterdir():
        row = _linux_row(folder) if folder.name.isdigit() else None
        if row:
            yield row


def _linux_row(folder: Path) -> _Row | None:
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The second field is the program's name in brackets, and may hold spaces and brackets.
    fields = text.rpartition(")")[2].split()
    state, session_id, started = fields[0], int(fields[3]), int(fields[19])
    return None if state in _DEAD else _Row(int(folder.name), session_id, started)


def _ps_rows(*selection: str) -> Iterator[_Row]:
    command = ["ps", *selection, "-o", "pid=,pgid=,state=,lstart="]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/bin"}
    )
    for line in done.stdout.splitlines():
        pid, group, state, started = line.split(maxsplit=3)
        if state[0] not in _DEAD:
            when = time.strptime(started, "%a %b %d %H:%M:%S %Y")
            yield _Row(int(pid), int(group), int(time.mktime(when)))


def remove_container(name: str) -> None:
    """Remove the container if it is there. Where no Docker engine answers, nothing runs in it."""
    with contextlib.suppress(DockerMissing, NotFound, EngineError):
        Docker().run("rm", "--force", "--volumes", name, doing=f"removing {name}")


__all__ = [
    "EngineProcess",
    "crash_reason",
    "drain_engine",
    "free_port",
    "is_alive",
    "is_healthy",
    "is_port_free",
    "start_engine",
    "start_program",
    "stop_engine",
]

LOOPBACK = "127.0.0.1"
PASSED_ON = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "SSL_CERT_FILE",
)  # fmt: skip
"""All that the engine gets of this process's environment: no AWS key, no token, no proxy."""

_GATE = Path(__file__).with_name("gate.py")
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class EngineProcess:
    """A running engine, as plain data that can be written down.

    ``pid`` leads a session of its own, which holds all of the engine's processes. ``started`` is
    the leader's start time in the unit of ``peagle.engine.process``; it tells the engine from a
    later process with the same pid. ``container`` names the container that the engine runs in;
    the process is then the ``docker`` command that is attached to it, and ends when it does.
    """

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
) -> EngineProcess:
    """Start ``peagle_serve`` with ``environment``, apart from this process and its terminal.

    ``ml_root`` stands for the container's ``/opt/ml``. For the rest see ``start_program``.
    """
    argv = [str(engine.python), str(entrypoint_folder()), "serve"]
    return start_program(argv, _environment(environment, ml_root, port), port, log, record)


def start_program(
    argv: list[str],
    environment: Mapping[str, str],
    port: int,
    log: Path,
    record: Callable[[EngineProcess], object] = lambda process: None,
    container: str | None = None,
) -> EngineProcess:
    """Start ``argv`` with exactly ``environment``, in a session of its own.

    Output is appended to ``log``. ``record`` is called before the program begins; when it raises,
    or this process dies before it returned, the program never begins: what runs has been written
    down.
    """
    with _gate() as (closed, open_gate):
        process = _spawn(argv, environment, closed, port, log, container)
        record(process)
        open_gate()
    return process


def is_alive(process: EngineProcess) -> bool:
    """Whether the engine's leading process still runs. Reaps it if it was our child."""
    _reap(process.pid)
    return start_of(process.pid) == process.started


def is_healthy(port: int, seconds: float = 2.0) -> bool:
    """Whether the engine answers ``/ping`` on this machine with 200."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=seconds)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def drain_engine(
    process: EngineProcess, seconds: float, waiting: Callable[[], object] = lambda: None
) -> None:
    """Ask the engine's leading process alone to end, and return when it has, at the latest after
    ``seconds``. It lets running requests finish (``peagle_serve``); what is told to end
    itself would cut them off. ``waiting`` is called again and again meanwhile.
    """
    if not is_alive(process):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    until = time.monotonic() + seconds
    while is_alive(process) and time.monotonic() < until:
        waiting()
        time.sleep(_POLL_SECONDS)


def stop_engine(process: EngineProcess, grace_seconds: float = 10.0) -> None:
    """End every process of the engine at once, and return when none is left.

    Asks first, and kills what is still there after ``grace_seconds``. Safe to repeat, and safe
    when the pid belongs to somebody else by now.
    """
    for number, wait_seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 30.0)):
        for pid in _members(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + wait_seconds
        while _members(process) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
    if process.container:
        remove_container(process.container)


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port


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
    """The engine's living processes.

    A pid is not given away again while a session bears its number: a leader with another start
    time means that the session is gone.
    """
    _reap(process.pid)
    leader = start_of(process.pid)
    if leader is not None and leader != process.started:
        return ()
    return session(process.pid, since=process.started)


def _environment(given: Mapping[str, str], ml_root: Path, port: int) -> dict[str, str]:
    base = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    own = {
        "PEAGLE_ML_ROOT": str(ml_root),
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SM_VLLM_HOST": LOOPBACK,
        "PYTHONUNBUFFERED": "1",
    }
    return {**base, **given, **own}


@contextlib.contextmanager
def _gate() -> Iterator[tuple[int, Callable[[], object]]]:
    """A pipe: its reading end, and a function that lets the reader go on."""
    reading, writing = os.pipe()
    try:
        yield reading, lambda: os.write(writing, b"1")
    finally:
        os.close(reading)
        os.close(writing)


def _spawn(
    argv: list[str],
    environment: Mapping[str, str],
    gate: int,
    port: int,
    log: Path,
    container: str | None,
) -> EngineProcess:
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", str(_GATE), str(log.parent), *argv],
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_DUP2, gate, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
    )
    started = start_of(pid)
    since = started if started is not None else -1
    return EngineProcess(pid, since, port, str(log), container)


def _reap(pid: int) -> None:
    """Take the exit status of a dead child, so that it does not linger as a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
