"""The bundled catalogue, read once.

What the sandbox writes down: who it is, and which engines it started.

    $PEAGLE_HOME/sandbox/
        lock                      held while somebody starts or stops the sandbox
        daemon.json               the running sandbox
        engine                    as what its engines run: process or docker
        daemon.log                what it said, one line per AWS call
        engines/<pid>.json        one per engine, written before the engine begins
        endpoints/<region>/<name>/<instance>/   weights and log of one engine

A process is known by pid and start time together, so a stale file never names somebody else.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.engine.process import EngineProcess, is_alive, stop_engine
from peagle.errors import UserError
from peagle.store import home, locked, read_json, write_json


@functools.cache
def catalog() -> Catalog:
    """Instances with prices and quota codes, runtimes, and ``peagle/tiny``."""
    return load_catalog()


def engine_version() -> str:
    """The vLLM that runs here, whatever version an image names."""
    return catalog().runtimes.default


EngineKind = Literal["process", "docker"]

DEPLOYMENTS_SCOPE = "sandbox"
"""The scope below ``$PEAGLE_HOME/deployments`` of what was deployed into the sandbox."""

ENGINE_GRACE_SECONDS = 5.0
"""How long an engine may take to end by itself. Nothing it holds is worth more waiting."""


def folder() -> Path:
    """Where all of it lies."""
    return home() / "sandbox"


def log_file() -> Path:
    """The daemon's log."""
    return folder() / "daemon.log"


def endpoints_folder() -> Path:
    """Weights and logs of the endpoints' engines."""
    return folder() / "endpoints"


@contextmanager
def lock() -> Iterator[int]:
    """Hold the right to start or stop the sandbox; gives the lock's file descriptor.

    A child that inherits the descriptor holds the lock as well, until it closes it. Raises
    UserError when nothing can be written there.
    """
    with ExitStack() as held:
        try:
            descriptor = held.enter_context(locked(folder() / "lock"))
        except OSError as error:
            raise UserError(
                f"cannot write to {folder()}: {error.strerror}",
                "set PEAGLE_HOME to a folder of yours",
            ) from error
        yield descriptor


def write_daemon(daemon: EngineProcess) -> None:
    """Say that ``daemon`` is the sandbox."""
    write_json(_daemon_file(), asdict(daemon))


def read_daemon() -> EngineProcess | None:
    """The running sandbox; ``None`` when there is none, or only the trace of a dead one."""
    daemon = _read(_daemon_file())
    return daemon if daemon and is_alive(daemon) else None


def write_engine_kind(kind: EngineKind) -> None:
    """Say as what engines run here."""
    folder().mkdir(parents=True, exist_ok=True)
    (folder() / "engine").write_text(kind, encoding="ascii")


def read_engine_kind() -> EngineKind:
    """As what engines run in the sandbox that was started last."""
    try:
        kind = (folder() / "engine").read_text(encoding="ascii")
    except FileNotFoundError:
        return "process"
    return "docker" if kind == "docker" else "process"


def register_engine(process: EngineProcess) -> None:
    """Write down an engine that is about to begin."""
    write_json(_engine_file(process.pid), asdict(process))


def forget_engine(process: EngineProcess) -> None:
    """The engine has ended."""
    _engine_file(process.pid).unlink(missing_ok=True)


def registered_engines() -> tuple[EngineProcess, ...]:
    """Every engine that was started and not yet seen to end."""
    files = sorted((folder() / "engines").glob("[0-9]*.json"))
    return tuple(process for file in files if (process := _read(file)))


def living_engines() -> tuple[EngineProcess, ...]:
    """Those of the registered engines that still run."""
    return tuple(process for process in registered_engines() if is_alive(process))


def sweep() -> None:
    """End and remove whatever a sandbox that no longer runs has left: engines, weights, records.

    The records of what was deployed go too, and its prices and quotas that were kept: all of it
    lived in the sandbox's memory.
    """
    for process in registered_engines():
        stop_engine(process, ENGINE_GRACE_SECONDS)
        forget_engine(process)
    _daemon_file().unlink(missing_ok=True)
    (folder() / "engine").unlink(missing_ok=True)
    shutil.rmtree(endpoints_folder(), ignore_errors=True)
    shutil.rmtree(home() / "deployments" / DEPLOYMENTS_SCOPE, ignore_errors=True)
    forget_answers()


def forget_answers() -> None:
    """Remove the prices and quotas of the sandbox that were kept for a day."""
    shutil.rmtree(home() / "online" / DEPLOYMENTS_SCOPE, ignore_errors=True)


def _read(file: Path) -> EngineProcess | None:
    """``None`` also for what another version of the toolkit wrote, or somebody's editor."""
    try:
        return EngineProcess(**read_json(file))
    except (TypeError, ValueError):
        return None


def _daemon_file() -> Path:
    return folder() / "daemon.json"


def _engine_file(pid: int) -> Path:
    return folder() / "engines" / f"{pid}.json"
