"""Start, stop and query the sandbox from any program of this user, and rehearse what AWS may do:
faults, quotas, and scaling that passes faster."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from peagle.data import BUNDLED_CATALOG
from peagle.engine.machine import check_compiler, find_engine
from peagle.engine.process import (
    INHERITED_VARIABLES,
    LOOPBACK,
    EngineProcess,
    start_time,
    stop_engine,
    wait_for_end,
)
from peagle.errors import EngineError, Fix, NotFound, UserError, parsing
from peagle.images.docker import Docker
from peagle.sandbox import state
from peagle.sandbox.faults import DEFAULT_SECONDS, Fault
from peagle.sandbox.state import Daemon, EngineKind
from peagle.store import HOME_VARIABLE, home
from peagle_serve import json_reader

ACCOUNT = "123456789012"

EXECUTION_ROLE = "peagle-sandbox-role"
"""The role that exists from the start and that SageMaker may assume."""

SANDBOX_KILLED = "sandbox-killed"
"""The code of the error when a killed sandbox has left engines."""

CONTROL_PATH = "/_peagle"
"""Prefix of the sandbox's own requests, for which AWS has no operation."""

INHERITED = (
    *INHERITED_VARIABLES,
    *("PEAGLE_ENGINE_PYTHON", "PEAGLE_TRAINER_PYTHON", BUNDLED_CATALOG),
    *("XDG_STATE_HOME", "PYTHONPATH"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
    *("DOCKER_API_VERSION", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"),
    "S3_UPLOAD_PART_MIN_SIZE",
)
"""The only variables that the daemon and training jobs inherit: no token, no password, no AWS
credentials. Those from DOCKER_HOST to SSH_AUTH_SOCK are for the ``docker`` command, the last one is
for moto."""

_STOP_GRACE_SECONDS = 30.0
_RESPONSE_SECONDS = 10.0
_ENDING_SECONDS = 2.0


def conflicting_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that would override those of ``Daemon.environment``: some whether or not they are
    set, and of ``environment`` the addresses of single services (other names, which no shell can
    unset, are no service's)."""
    of_a_service = re.compile(r"AWS_ENDPOINT_URL_\w+", re.ASCII).fullmatch
    always = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN")
    ignoring = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"
    return (*always, ignoring, *sorted(filter(of_a_service, environment)))


@dataclass(frozen=True)
class EndpointStatus:
    """An endpoint in the sandbox and the engines behind it: ``instances`` is their number, process,
    port and uptime are those of the first. ``stand_in`` is the pair that is served instead of the
    target, if any; ``not_applied`` lists the engine arguments that the engine did not get."""

    name: str
    region: str
    state: str
    failure_reason: str | None
    stand_in: str | None
    pid: int | None
    port: int | None
    uptime_seconds: float | None
    instances: int = 1
    not_applied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """Whether the sandbox is running, and its endpoints; ``leftover_engines`` is the number of
    engines that still run after it was killed."""

    running: bool
    url: str | None = None
    pid: int | None = None
    uptime_seconds: float | None = None
    endpoints: tuple[EndpointStatus, ...] = ()
    leftover_engines: int = 0


@dataclass(frozen=True)
class Stopped:
    """What ``stop`` ended: whether the sandbox was running, and how many engines were."""

    was_running: bool
    engines: int


def start_sandbox(port: int = 0, engine: EngineKind | None = None) -> Daemon:
    """Start the sandbox unless it is running, on a free port for 0; return it. Raises
    UserError when moto is missing, the port is in use or another sandbox runs, and EngineError."""
    with state.lock():
        daemon = state.read_daemon()
        if daemon is None or _request(daemon, "GET", "/status") is None:
            missing = [name for name in ("moto", "flask_cors") if find_spec(name) is None]
            if missing:
                fix = Fix("install the extra", ("pip", "install", "peagle-toolkit[sandbox]"))
                message = f"the sandbox needs {missing[0]}"
                raise UserError(message, fix, "sandbox-extra-missing")
            if engine == "docker":
                Docker().check()
            state.sweep()
            daemon = _start_daemon(port, engine or "process")
    running = daemon.process.port
    differs = f"on port {running}" if port not in (0, running) else ""
    if differs or engine not in (None, daemon.engine):
        message = f"the sandbox is already running {differs or f'with --engine {daemon.engine}'}"
        fix = Fix("stop the sandbox first", ("peagle", "sandbox", "stop"))
        raise UserError(message, fix, "sandbox-running")
    return daemon


def _start_daemon(port: int, engine: EngineKind) -> Daemon:
    """Start the daemon, detached from this terminal, and wait until it listens: it reports through
    a pipe. Raises UserError and EngineError."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    argv = [sys.executable, *state.SERVER, "--port", str(port), "--ready", str(writing)]
    argv += ["--engine", engine]
    environment = {
        **{name: os.environ[name] for name in INHERITED if name in os.environ},
        HOME_VARIABLE: str(home()),
        # moto calls boto3, which must find no credentials of this machine.
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",
        "MOTO_DISABLE_GLOBAL_CORS": "true",
        # Whole weights pass through its threads: give their memory back.
        "MALLOC_ARENA_MAX": "2",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
        "PYTHONUNBUFFERED": "1",
    }
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = str(state.log_file())
    try:
        pid = os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        )
    finally:
        os.close(writing)
    try:
        with os.fdopen(reading, encoding="utf-8") as stream:
            report = stream.read()
    except BaseException:  # such as Ctrl-C
        stop_engine(EngineProcess(pid, start_time(pid) or 0, 0, log))
        state.sweep()
        raise
    daemon = state.read_daemon()
    if report == "ready" and daemon:
        return daemon
    if report:
        raise UserError(report, "choose another port with --port", "port-in-use")
    raise EngineError("the sandbox exited during startup", f"see {log}", code="sandbox-not-started")


def stop_sandbox() -> Stopped:
    """Stop the sandbox and its engines, and delete its state; also after it was killed."""
    with state.lock():
        daemon = state.read_daemon()
        engines = len(state.living_engines())
        if daemon is not None:
            stop_engine(daemon.process, _STOP_GRACE_SECONDS)
        state.sweep()
    return Stopped(daemon is not None, engines)


def sandbox_status() -> Status:
    """The sandbox and its endpoints. Raises EngineError when its process does not respond."""
    daemon = state.read_daemon()
    answer = _request(daemon, "GET", "/status") if daemon else None
    if daemon is None or answer is None:
        return Status(running=False, leftover_engines=len(state.living_engines()))
    endpoints = tuple(
        EndpointStatus(**endpoint | {"not_applied": tuple(endpoint["not_applied"])})
        for endpoint in answer["endpoints"]
    )
    uptime = answer["uptime_seconds"]
    return Status(True, daemon.url, daemon.pid, uptime, endpoints)


def sandbox_not_running() -> NotFound:
    """The error of a command that needs it; after a kill it says what still runs."""
    if left := state.living_engines():
        message = f"the sandbox was killed; engines still running: {len(left)}"
        return NotFound(message, Fix("end them", ("peagle", "sandbox", "stop")), SANDBOX_KILLED)
    fix = Fix("start it", ("peagle", "sandbox", "start"))
    return NotFound("the sandbox is not running", fix, "sandbox-not-running")


def check_sandbox_engine(compiles: bool = False) -> None:
    """Raise EngineMissing without the sandbox's engine, and UserError where it ``compiles`` without
    a C++ compiler."""
    engine = find_engine(state.engine_version())
    if compiles and state.read_engine_kind() == "process":
        check_compiler(engine.python)


# The functions below raise UserError when the sandbox is not running or rejects the request.


def set_quota(instance_type: str, value: float, region: str = "us-east-1") -> None:
    """Set how many instances of a type the sandbox's account may use for endpoints."""
    _control("PUT", "/quota", {"instance_type": instance_type, "value": value, "region": region})


def changed_quotas() -> list[dict[str, Any]]:
    """The quotas that were set, each with its instance type and region; others are the default."""
    quotas: list[dict[str, Any]] = _control("GET", "/quotas")["quotas"]
    return quotas


def add_fault(
    operation: str,
    kind: str,
    times: int | None = None,
    instance_type: str | None = None,
    seconds: float = DEFAULT_SECONDS,
) -> Fault:
    """Let calls, endpoints or the alarms of updates fail; see ``peagle.sandbox.faults`` for the
    kinds. Raises UserError too for an unknown operation or kind, or for two that do not fit."""
    fault = Fault(operation, kind, times, instance_type, seconds)
    _control("POST", "/faults", asdict(fault))
    return fault


def list_faults() -> tuple[Fault, ...]:
    """The faults added since they were last cleared, also those that will not happen again."""
    return tuple(Fault(**fault) for fault in _control("GET", "/faults")["faults"])


def clear_faults(operation: str | None = None) -> int:
    """Remove the faults of one operation, or all. Returns how many were removed."""
    removed: int = _control("DELETE", "/faults", {"operation": operation})["removed"]
    return removed


def set_scaling_speed(speed: float) -> None:
    """Let the times of automatic scaling pass ``speed`` times as fast: 1 to 1000."""
    _control("PUT", "/scaling", {"speed": speed})


def _control(method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
    """The running sandbox's answer to a request of its own."""
    daemon = state.read_daemon()
    answer = _request(daemon, method, path, document) if daemon else None
    if answer is None:
        raise sandbox_not_running()
    return answer


def _request(
    daemon: Daemon, method: str, path: str, document: Mapping[str, Any] | None = None
) -> Any:
    """The daemon's answer; ``None`` when its process ends instead of answering."""
    port = daemon.process.port
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_RESPONSE_SECONDS)
    try:
        headers = {"Authorization": daemon.key.authorization}
        connection.request(method, f"{CONTROL_PATH}{path}", json.dumps(document or {}), headers)
        response = connection.getresponse()
        body = json_reader.read(response.read(json_reader.LIMIT + 1), "its answer")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if wait_for_end(daemon.process, _ENDING_SECONDS):
            return None
        fix = Fix("stop it", ("peagle", "sandbox", "stop"))
        raise EngineError(
            f"the sandbox does not respond: {error}", fix, code="no-answer"
        ) from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        with parsing("the sandbox's answer", EngineError):
            message, advice = str(body["message"]), str(body.get("fix", ""))
        raise UserError(message, advice)
    return body
