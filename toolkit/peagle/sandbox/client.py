"""Start, stop and ask the sandbox, from any program of this user."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peagle.engine.process import LOOPBACK, EngineProcess, is_alive, stop_engine
from peagle.errors import EngineError, UserError
from peagle.images import Docker
from peagle.sandbox import state
from peagle.sandbox.state import EngineKind

ACCOUNT = "123456789012"
"""The account that owns everything in the sandbox."""

EXECUTION_ROLE = "peagle-sandbox-role"
"""The role that is there from the start and that SageMaker may take."""

ACCESS_KEY = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
"""Keys that open nothing: the sandbox takes any."""

CONTROL_PATH = "/_peagle"
"""Below it the sandbox answers questions that AWS has no call for."""

HINDERING_VARIABLES = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")
"""Variables that would send a client elsewhere than ``Address.environment`` says."""

_STOP_GRACE_SECONDS = 30.0
_ANSWER_SECONDS = 10.0
_MOTO = (5, 2)
_INSTALL = "pip install 'peagle-toolkit[sandbox]'"


@dataclass(frozen=True)
class Address:
    """Where the running sandbox listens."""

    url: str
    pid: int

    def environment(self, region: str = "us-east-1") -> dict[str, str]:
        """What makes boto3, the AWS CLI and Terraform talk to the sandbox and to nothing else."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            **ACCESS_KEY,
            "AWS_DEFAULT_REGION": region,
            "AWS_REGION": region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@dataclass(frozen=True)
class EndpointStatus:
    """An endpoint in the sandbox and the engine behind it.

    ``stand_in`` names what is served instead of the target, if anything. ``uptime_seconds``
    counts from the start of the engine.
    """

    name: str
    region: str
    state: str
    failure_reason: str | None
    stand_in: str | None
    pid: int | None
    port: int | None
    uptime_seconds: float | None


@dataclass(frozen=True)
class Status:
    """Whether the sandbox runs, and what runs in it.

    ``leftover_engines`` counts engines of a sandbox that ended without cleaning up.
    """

    running: bool
    url: str | None = None
    pid: int | None = None
    uptime_seconds: float | None = None
    endpoints: tuple[EndpointStatus, ...] = ()
    leftover_engines: int = 0


@dataclass(frozen=True)
class Stopped:
    """What ``stop`` found: whether the sandbox ran, and how many engines were alive."""

    was_running: bool
    engines: int


def ensure_started(port: int = 0, engine: EngineKind | None = None) -> Address:
    """The running sandbox's address; starts it when it does not run. ``port`` 0: any free one.

    ``engine`` says as what its endpoints run: as processes if it is not given. Of two that start
    it at once, one does and the other uses it. Raises UserError when moto is not installed, when
    the port is taken, or when the sandbox runs on another port or with another engine already;
    DockerMissing when containers are asked for and no Docker engine answers.
    """
    with state.lock() as lock:
        daemon = state.read_daemon()
        if daemon is None:
            _check_moto()
            if engine == "docker":
                Docker().check()
            state.sweep()
            state.write_engine_kind(engine or "process")
            daemon = _start(port, lock)
    if port not in (0, daemon.port):
        raise UserError(
            f"the sandbox already runs on port {daemon.port}", "peagle sandbox stop, then start"
        )
    if engine not in (None, state.read_engine_kind()):
        raise UserError(
            f"the sandbox already runs its engines as {state.read_engine_kind()}",
            "peagle sandbox stop, then start",
        )
    return _address(daemon)


def stop() -> Stopped:
    """End the sandbox, every engine of it, and all that it kept.

    Also cleans up after a sandbox that was killed.
    """
    with state.lock():
        daemon = state.read_daemon()
        engines = len(state.living_engines())
        if daemon is not None:
            stop_engine(daemon, _STOP_GRACE_SECONDS)
        state.sweep()
    return Stopped(daemon is not None, engines)


def running() -> Address | None:
    """The sandbox's address if it runs."""
    daemon = state.read_daemon()
    return _address(daemon) if daemon else None


def status() -> Status:
    """What runs. Raises EngineError when the sandbox is there but does not answer."""
    daemon = state.read_daemon()
    if daemon is None:
        return Status(running=False, leftover_engines=len(state.living_engines()))
    answer = _ask(daemon, "GET", "/status")
    return Status(
        running=True,
        url=_address(daemon).url,
        pid=daemon.pid,
        uptime_seconds=answer["uptime_seconds"],
        endpoints=tuple(EndpointStatus(**endpoint) for endpoint in answer["endpoints"]),
    )


def set_quota(instance_type: str, value: float, region: str = "us-east-1") -> None:
    """Set how many instances of a type the sandbox's account may use for endpoints.

    Raises UserError when the sandbox does not run.
    """
    given = {"instance_type": instance_type, "value": value, "region": region}
    _tell("/quota", given)
    state.forget_answers()


def set_fault(operation: str, code: str) -> None:
    """Let every call of ``operation``, such as ``GetProducts``, fail with this error code, such as
    ``AccessDeniedException`` or ``ThrottlingException``; an empty code ends it.

    Works for prices, quotas, SageMaker and logs. Raises UserError when the sandbox does not run.
    """
    _tell("/fault", {"operation": operation, "code": code})


def not_running() -> UserError:
    """The error for who needs a running sandbox."""
    return UserError("the sandbox does not run", "peagle sandbox start")


def _address(daemon: EngineProcess) -> Address:
    return Address(f"http://{LOOPBACK}:{daemon.port}", daemon.pid)


def _check_moto() -> None:
    """moto's insides are extended here, so its minor version matters."""
    try:
        found = importlib.metadata.version("moto")
        importlib.metadata.version("flask-cors")
    except importlib.metadata.PackageNotFoundError as missing:
        raise UserError(f"the sandbox needs {missing.name}", _INSTALL) from None
    if tuple(int(part) for part in found.split(".")[:2]) != _MOTO:
        raise UserError(f"the sandbox needs moto 5.2, and {found} is installed", _INSTALL)


def _start(port: int, lock: int) -> EngineProcess:
    """Start the daemon and wait for its word that it listens.

    The word comes through a pipe, whose end without a word means that the daemon died. The
    daemon keeps the lock until then, so that nobody starts a second one if we are killed.
    """
    reading, writing = os.pipe()
    argv = [
        *(sys.executable, "-m", "peagle.sandbox.server"),
        *("--port", str(port), "--ready", str(writing), "--lock", str(lock)),
    ]
    try:
        _spawn(argv, keep_open=(writing, lock))
    finally:
        os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        word = stream.read()
    daemon = state.read_daemon()
    if word == "ready" and daemon:
        return daemon
    if word:
        raise UserError(word, "choose another one with --port")
    raise EngineError("the sandbox ended while it started", f"its log: {state.log_file()}")


def _spawn(argv: list[str], keep_open: tuple[int, ...]) -> None:
    """Start ``argv`` apart from this process and its terminal."""
    for descriptor in keep_open:
        os.set_inheritable(descriptor, True)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.posix_spawn(
        argv[0],
        argv,
        _daemon_environment(os.environ),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(state.log_file()), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
    )


def _daemon_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what would make AWS's libraries inside the daemon look outside of it."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("AWS_", "MOTO_", "WERKZEUG_"))
    }
    return {
        **kept,
        **ACCESS_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
        "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",
        "MOTO_DISABLE_GLOBAL_CORS": "true",
        "PYTHONUNBUFFERED": "1",
    }


def _tell(path: str, document: Any) -> None:
    daemon = state.read_daemon()
    if daemon is None:
        raise not_running()
    _ask(daemon, "PUT", path, document)


def _ask(daemon: EngineProcess, method: str, path: str, document: Any = None) -> Any:
    connection = http.client.HTTPConnection(LOOPBACK, daemon.port, timeout=_ANSWER_SECONDS)
    try:
        connection.request(method, f"{CONTROL_PATH}{path}", json.dumps(document))
        answer = connection.getresponse()
        body = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        alive = "does not answer" if is_alive(daemon) else "has just ended"
        raise EngineError(f"the sandbox {alive}: {error}", "peagle sandbox stop") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise UserError(body["message"], body.get("fix", ""))
    return body
