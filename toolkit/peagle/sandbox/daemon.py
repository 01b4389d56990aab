"""Start the sandbox's daemon: a detached process with an environment of its own."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys

from peagle.data import BUNDLED_CATALOG
from peagle.engine.process import (
    INHERITED_VARIABLES,
    EngineProcess,
    start_time,
    stop_engine,
)
from peagle.errors import EngineError, Fix, UserError
from peagle.sandbox import state
from peagle.store import HOME_VARIABLE, home

_INSTALL = Fix("install the sandbox extra", ("pip", "install", "peagle-toolkit[sandbox]"))


def check_moto() -> None:
    """Raise UserError unless moto is installed in the minor version whose internals the sandbox
    extends."""
    try:
        found = importlib.metadata.version("moto")
        importlib.metadata.version("flask-cors")
        problem = "" if found.startswith("5.2.") else f"moto 5.2, but {found} is installed"
    except importlib.metadata.PackageNotFoundError as missing:
        problem = missing.name
    if problem:
        raise UserError(f"the sandbox needs {problem}", _INSTALL, "sandbox-extra-missing")


def start_daemon(port: int, lock: int) -> EngineProcess:
    """Start the daemon, detached from this process and its terminal, and wait until it listens.

    It reports through a pipe; a pipe that is closed without a report means that it died. The
    daemon holds the lock until then, so that no second one starts if this process is killed, and
    ends if no process reads its report. Ends it if this is interrupted.
    Raises UserError when the port is in use, EngineError when the daemon exits during startup.
    """
    reading, writing = os.pipe()
    for descriptor in (writing, lock):
        os.set_inheritable(descriptor, True)
    argv = [
        *(sys.executable, *state.SERVER),
        *("--port", str(port), "--ready", str(writing), "--lock", str(lock)),
    ]
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            argv[0],
            argv,
            _daemon_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(state.log_file()), append, 0o600),
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
        stop_engine(EngineProcess(pid, start_time(pid) or 0, 0, str(state.log_file())))
        state.sweep()
        raise
    daemon = state.read_daemon()
    if report == "ready" and daemon:
        return daemon
    if report:
        raise UserError(report, "choose another port with --port", "port-in-use")
    raise EngineError(
        "the sandbox exited during startup", f"see {state.log_file()}", code="sandbox-not-started"
    )


_INHERITED = (
    *INHERITED_VARIABLES,
    *("PEAGLE_ENGINE_PYTHON", BUNDLED_CATALOG, "XDG_STATE_HOME", "PYTHONPATH"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
    *("DOCKER_API_VERSION", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"),
    "S3_UPLOAD_PART_MIN_SIZE",
)
"""The only variables that the daemon inherits: no token, no password, no AWS credentials. Those
from DOCKER_HOST to SSH_AUTH_SOCK are for the ``docker`` command, the last one is for moto."""


def _daemon_environment() -> dict[str, str]:
    return {
        **{name: os.environ[name] for name in _INHERITED if name in os.environ},
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
