"""The sandbox's state on disk: its daemon and the engines that it started.

    $PEAGLE_HOME/sandbox/
        lock                      held while the sandbox is started or stopped
        daemon.json               the running daemon, its engines and its access key, for this user
        daemon.log                one line per AWS call
        engines/<pid>.json        one per engine, written before the engine begins
        endpoints/<region>/<name>/<instance>/   weights and log of one engine, or of a training job

A process is identified by pid and start time, so a stale file never names an unrelated process. An
unreadable file counts as a missing one.
"""

from __future__ import annotations

import functools
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.engine.process import LOOPBACK, EngineProcess, is_alive, stop_engine
from peagle.errors import UserError
from peagle.store import SANDBOX, home, locked, read_record, write_json

SERVER = ("-m", "peagle.sandbox.server")
"""The daemon's command line, after Python."""

EngineKind = Literal["process", "docker"]

Record = TypeVar("Record")

ENGINE_GRACE_SECONDS = 5.0
"""Seconds that an engine has to end before it is killed; it has no state worth keeping."""


@functools.cache
def catalog() -> Catalog:
    """The bundled catalogue, loaded once: prices, quota codes, runtimes, and ``peagle/tiny``."""
    return load_catalog()


def engine_version() -> str:
    """The version of vLLM that the sandbox runs, whatever version an image names."""
    return catalog().runtimes.default


def folder() -> Path:
    return home() / "sandbox"


def log_file() -> Path:
    return folder() / "daemon.log"


def endpoints_folder() -> Path:
    return folder() / "endpoints"


@contextmanager
def lock() -> Iterator[None]:
    """Hold the lock for starting and stopping the sandbox. Raises UserError when the folder is not
    writable."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder() / "lock"))
        except OSError as error:
            message = f"cannot write to {folder()}: {error.strerror}"
            fix = "set PEAGLE_HOME to a writable folder"
            raise UserError(message, fix, "home-not-writable") from error
        yield


@dataclass(frozen=True)
class AccessKey:
    """The key that a sandbox accepts; a new one for every start. Its id alone identifies the owner,
    so it is a secret too."""

    id: str = field(repr=False)
    secret: str = field(repr=False)

    @classmethod
    def create(cls) -> AccessKey:
        return cls(f"PEAGLE{secrets.token_hex(16).upper()}", secrets.token_hex(20))

    @property
    def authorization(self) -> str:
        """The Authorization header of the sandbox's own requests."""
        return f"Peagle {self.secret}"


@dataclass(frozen=True)
class Daemon:
    """The daemon's process, how it runs engines, and the key that it accepts."""

    process: EngineProcess
    engine: EngineKind
    key: AccessKey

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.process.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

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


def write_daemon(daemon: Daemon) -> None:
    write_json(folder() / "daemon.json", asdict(daemon))


def read_daemon() -> Daemon | None:
    """The running daemon; ``None`` when none runs."""
    daemon = _read(folder() / "daemon.json", Daemon)
    return daemon if daemon and is_alive(daemon.process) else None


def read_engine_kind() -> EngineKind:
    """How engines run in the running sandbox, and in the next one without a choice."""
    daemon = read_daemon()
    return daemon.engine if daemon else "process"


def register_engine(process: EngineProcess) -> None:
    """Record an engine that is about to begin."""
    write_json(folder() / "engines" / f"{process.pid}.json", asdict(process))


def forget_engine(process: EngineProcess) -> None:
    (folder() / "engines" / f"{process.pid}.json").unlink(missing_ok=True)


def _records() -> list[Path]:
    return sorted((folder() / "engines").glob("[0-9]*.json"))


def living_engines() -> tuple[EngineProcess, ...]:
    """The engines that run."""
    engines = (_read(record, EngineProcess) for record in _records())
    return tuple(engine for engine in engines if engine and is_alive(engine))


def sweep() -> None:
    """End and remove everything that a stopped sandbox left: engines, weights, records. Records of
    deployments and cached prices and quotas go too: what they describe existed only in the
    sandbox's memory."""
    for record in _records():
        if process := _read(record, EngineProcess):
            stop_engine(process, ENGINE_GRACE_SECONDS)
        record.unlink(missing_ok=True)
    (folder() / "daemon.json").unlink(missing_ok=True)
    shutil.rmtree(endpoints_folder(), ignore_errors=True)
    shutil.rmtree(home() / "deployments" / SANDBOX, ignore_errors=True)


def _read(file: Path, shape: type[Record]) -> Record | None:
    """``None`` also for a file that is damaged, or that another version of the toolkit wrote."""
    try:
        return read_record(file, shape, "")
    except UserError:
        return None
