"""Start, stop and query the sandbox from any program of this user."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peagle.catalog.tables import Instance
from peagle.engine.machine import check_compiler, find_engine
from peagle.engine.process import (
    LOOPBACK,
    EngineProcess,
    stop_engine,
    wait_for_end,
)
from peagle.errors import EngineError, EngineMissing, Fix, NotFound, UserError, parsing
from peagle.images import Docker
from peagle.sandbox import state
from peagle.sandbox.daemon import check_moto, start_daemon
from peagle.sandbox.state import AccessKey, EngineKind
from peagle.store import home, private_folder
from peagle_serve import json_reader

ACCOUNT = "123456789012"
"""The account that owns everything in the sandbox."""

EXECUTION_ROLE = "peagle-sandbox-role"
"""The role that exists from the start and that SageMaker may assume."""

SANDBOX_KILLED = "sandbox-killed"
"""The code of the error when a killed sandbox has left engines."""

CONTROL_PATH = "/_peagle"
"""Prefix of the sandbox's own requests, for which AWS has no operation."""

_CONFLICTING = (
    "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
)  # fmt: skip
_OF_A_SERVICE = re.compile(r"AWS_ENDPOINT_URL_\w+", re.ASCII)

_STOP_GRACE_SECONDS = 30.0
_RESPONSE_SECONDS = 10.0
_ENDING_SECONDS = 2.0
_STOP = Fix("stop the sandbox first", ("peagle", "sandbox", "stop"))


@dataclass(frozen=True)
class Address:
    """The address and the process of the running sandbox, and the key that it accepts."""

    url: str
    pid: int
    key: AccessKey

    def environment(self, region: str = "us-east-1") -> dict[str, str]:
        """Variables with which boto3, the AWS CLI and Terraform use only the sandbox."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key.id,
            "AWS_SECRET_ACCESS_KEY": self.key.secret,
            "AWS_DEFAULT_REGION": region,
            "AWS_REGION": region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def conflicting_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that would override those of ``Address.environment``: some whether or not they are
    set, and of ``environment`` the addresses of single services.

    Other names, which no shell can unset, are no service's.
    """
    return (*_CONFLICTING, *sorted(filter(_OF_A_SERVICE.fullmatch, environment)))


@dataclass(frozen=True)
class EndpointStatus:
    """An endpoint in the sandbox and the engines behind it: ``instances`` is their number, process,
    port and uptime are those of the first.

    ``stand_in`` is the pair that is served instead of the target, if any. ``uptime_seconds`` counts
    from the start of the engine. ``not_applied`` lists the engine arguments that the engine did not
    get.
    """

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
    """Whether the sandbox is running, and its endpoints.

    ``leftover_engines`` counts the engines of a sandbox that was killed; ``leftovers`` names them.
    """

    running: bool
    url: str | None = None
    pid: int | None = None
    uptime_seconds: float | None = None
    endpoints: tuple[EndpointStatus, ...] = ()
    leftover_engines: int = 0
    leftovers: tuple[state.LeftoverEngine, ...] = ()


@dataclass(frozen=True)
class Stopped:
    """What ``stop`` ended: whether the sandbox was running, and how many engines were."""

    was_running: bool
    engines: int


def start_sandbox(port: int = 0, engine: EngineKind | None = None) -> Address:
    """Start the sandbox unless it is running; return its address. ``port`` 0 selects a free port.

    ``engine`` selects how its endpoints run; the default is as processes. Concurrent calls start
    one sandbox. Raises UserError when moto is not installed, when the port is in use, or when the
    sandbox already runs on another port or with another kind of engine; EngineError when it runs
    but does not respond; DockerMissing when containers are requested and no Docker engine answers.
    """
    with state.lock() as lock:
        daemon = state.read_daemon()
        if daemon is None or _request(daemon, "GET", "/status") is None:
            state.check_none_unrecorded(_ENDING_SECONDS)
            check_moto()
            if engine == "docker":
                Docker().check()
            state.sweep()
            state.write_engine_kind(engine or "process")
            state.write_access_key()
            daemon = start_daemon(port, lock)
    if port not in (0, daemon.port):
        message = f"the sandbox is already running on port {daemon.port}"
        raise UserError(message, _STOP, "sandbox-running")
    kind = state.read_engine_kind()
    if engine not in (None, kind):
        message = f"the sandbox is already running with --engine {kind}"
        raise UserError(message, _STOP, "sandbox-running")
    return _address(daemon)


def stop_sandbox() -> Stopped:
    """Stop the sandbox and its engines, and delete its state; also after it was killed."""
    with state.lock():
        daemon = state.read_daemon() or state.unrecorded_daemon()
        engines = len(state.living_engines())
        if daemon is not None:
            stop_engine(daemon, _STOP_GRACE_SECONDS)
        state.sweep()
    return Stopped(daemon is not None, engines)


def running_sandbox() -> Address | None:
    """The sandbox's address; ``None`` if it is not running. Raises UserError when its record is
    damaged."""
    daemon = state.find_daemon()
    return _address(daemon) if daemon else None


def has_ended() -> bool:
    """Whether the sandbox does not run, or ends within some seconds: a process that is being killed
    closes its connections before it disappears."""
    daemon = state.read_daemon()
    return daemon is None or wait_for_end(daemon, _ENDING_SECONDS)


def sandbox_status() -> Status:
    """The sandbox and its endpoints. Raises EngineError when its process does not respond, and
    UserError when it runs and its record is damaged."""
    daemon = state.find_daemon()
    found = _request(daemon, "GET", "/status") if daemon else None
    if daemon is None or found is None:
        left = state.leftovers()
        return Status(running=False, leftover_engines=len(left), leftovers=left)
    return Status(
        running=True,
        url=_address(daemon).url,
        pid=daemon.pid,
        uptime_seconds=found["uptime_seconds"],
        endpoints=tuple(
            EndpointStatus(**endpoint | {"not_applied": tuple(endpoint["not_applied"])})
            for endpoint in found["endpoints"]
        ),
    )


def set_quota(instance_type: str, value: float, region: str = "us-east-1") -> None:
    """Set how many instances of a type the sandbox's account may use for endpoints.

    Raises UserError when the sandbox is not running.
    """
    control("PUT", "/quota", {"instance_type": instance_type, "value": value, "region": region})
    state.forget_cached_answers()


def set_minute(seconds: float) -> None:
    """Let a minute of alarms and rollouts last so many seconds in the sandbox, until it stops.

    Raises UserError when the sandbox is not running.
    """
    control("PUT", "/minute", {"seconds": seconds})


def add_instances(instances: Iterable[Instance]) -> None:
    """Let the sandbox offer these instance types as well, at their prices, until it stops.

    Raises UserError when the sandbox is not running.
    """
    control("PUT", "/instances", [one.model_dump(mode="json") for one in instances])
    state.forget_cached_answers()


def sandbox_not_running() -> NotFound:
    """The error of a command that needs it; after a kill it says what still runs."""
    left = state.leftovers()
    if left:
        fix = Fix("end them", ("peagle", "sandbox", "stop"))
        names = ", ".join(one.text for one in left)
        message = f"the sandbox was killed; engines still running: {len(left)}: {names}"
        return NotFound(message, fix, SANDBOX_KILLED)
    fix = Fix("start it", ("peagle", "sandbox", "start"))
    return NotFound("the sandbox is not running", fix, "sandbox-not-running")


def _address(daemon: EngineProcess) -> Address:
    return Address(f"http://{LOOPBACK}:{daemon.port}", daemon.pid, state.read_access_key())


def control(method: str, path: str, document: Any = None) -> Any:
    """The running sandbox's answer to a request of its own, such as ``GET /faults``.

    Raises UserError when the sandbox is not running or rejects the request.
    """
    daemon = state.find_daemon()
    answer = _request(daemon, method, path, document) if daemon else None
    if answer is None:
        raise sandbox_not_running()
    return answer


def _request(daemon: EngineProcess, method: str, path: str, document: Any = None) -> Any:
    """The daemon's answer; ``None`` when its process ends instead of answering.

    A process that is being killed closes its connections before it disappears.
    """
    key = state.read_access_key()
    connection = http.client.HTTPConnection(LOOPBACK, daemon.port, timeout=_RESPONSE_SECONDS)
    try:
        headers = {"Authorization": key.authorization}
        connection.request(method, f"{CONTROL_PATH}{path}", json.dumps(document), headers)
        response = connection.getresponse()
        body = json_reader.read(response.read(json_reader.DEFAULT.size + 1), "its answer")
    except (OSError, ValueError, http.client.HTTPException) as error:
        if wait_for_end(daemon, _ENDING_SECONDS):
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


def check_sandbox_engine(compiles: bool = False) -> None:
    """Raise EngineMissing when the sandbox's engine is not installed on this machine, and UserError
    when it ``compiles`` as a process and no C++ compiler is found, or nothing can be installed as
    $PEAGLE_HOME cannot be written."""
    try:
        engine = find_engine(state.engine_version())
    except EngineMissing:
        with state.writing():
            private_folder(home())
        raise
    if compiles and state.read_engine_kind() == "process":
        check_compiler(engine.python)
