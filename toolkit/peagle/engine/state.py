"""The engines of ``peagle local`` (``local/<name>/state.json``), and local warm starts."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from peagle.engine.logs import crash_fix
from peagle.engine.process import LOOPBACK, EngineProcess, is_alive
from peagle.engine_log import WarmStart, warm_start_in
from peagle.errors import Fix, NotFound, UserError, nearest
from peagle.proof import SecondTurn
from peagle.store import home, read_record, write_json
from peagle.text import plain
from peagle_serve.contract import MANIFEST_SUFFIX, SPECULATION, WARM_FOLDER
from peagle_serve.json_reader import read_regular
from peagle_serve.warm import LARGEST, read_sha256

EngineState = Literal["starting", "ready", "dead"]

_HEAD_BYTES = 256 * 1024
"""How much of the beginning of a log is searched for the warm start."""


@dataclass(frozen=True)
class LocalEngine:
    """An engine of this machine. ``environment`` identifies its plan; ``notes`` say how a CPU
    differs from it. ``acceptance_length``, ``drafts`` and ``second_turn`` are measured by the
    proof; ``started_at`` is in epoch seconds; ``image`` is the id of the container's image,
    ``gpus`` are the UUIDs of those that a process uses; ``copy_of`` is the plan's name where it
    has several engines."""

    name: str
    pair: str
    served_as: str
    vllm: str
    environment: dict[str, str]
    notes: tuple[str, ...]
    process: EngineProcess
    started_at: float
    ready: bool = False
    image: str | None = None
    acceptance_length: float | None = None
    drafts: int | None = None
    second_turn: SecondTurn | None = None
    chat: bool = True
    gpus: tuple[str, ...] = ()
    copy_of: str = ""

    @property
    def speculates(self) -> bool:
        return SPECULATION in self.environment

    @property
    def state(self) -> EngineState:
        if not is_alive(self.process):
            return "dead"
        return "ready" if self.ready else "starting"

    @property
    def openai_base_url(self) -> str:
        return f"http://{LOOPBACK}:{self.process.port}/v1"


def locate_folder(name: str) -> Path:
    """The engine's folder: state, log, links to weights. Raises UserError for a path."""
    if name in ("", ".", "..") or "/" in name:
        message = f"{name!r} is not a valid engine name"
        raise UserError(message, "use letters, digits and hyphens", "invalid-name")
    return home() / "local" / name


def log_of(name: str) -> Path:
    """The engine's log, which is kept when the engine fails to start."""
    return locate_folder(name) / "engine.log"


def write(engine: LocalEngine) -> None:
    write_json(_state_file(engine.name), plain(engine))


def read_local_engine(name: str) -> LocalEngine | None:
    """The recorded engine. Raises UserError for a record that cannot be read."""
    fix = f"end its process if it still runs, then remove the folder {locate_folder(name)}"
    return read_record(_state_file(name), LocalEngine, fix)


LOCAL = "local"
"""The name by which commands take the only engine of this machine."""


def ready_engine(name: str) -> LocalEngine | None:
    """The engine that answers requests, for ``local`` the only one; ``None`` for an unknown name.
    Raises UserError for one that is not ready or cannot be read, and for the name of several
    copies; NotFound where none is ``local``."""
    names, copies = local_engine_names(), copy_names(name)
    if name not in names and (name == LOCAL or copies):
        ready = [
            engine for engine in local_engines()
            if engine.state == "ready" and (name == LOCAL or engine.name in copies)
        ]  # fmt: skip
        if len(ready) == 1:
            return ready[0]
        if ready:
            running = ", ".join(engine.name for engine in ready)
            message = f"{len(ready)} engines are running: {running}"
            raise UserError(message, "specify only one of them", code="several-engines")
        fix = Fix("start one", ("peagle", "local", "up", "PAIR"))
        raise NotFound("no engine of this machine is running", fix, code="no-such-engine")
    engine = read_local_engine(name) if name in names else None
    if engine is None or engine.state == "ready":
        return engine
    state = "is still starting" if engine.state == "starting" else "is not running"
    fix = crash_fix(engine.process.log, Fix("read its log", ("peagle", "local", "logs", name)))
    raise UserError(f"the local engine {name} {state}", fix, code="local-engine-not-ready")


def remove_record(name: str) -> None:
    """Remove the engine's record and keep its log."""
    _state_file(name).unlink(missing_ok=True)


def local_engine_names() -> tuple[str, ...]:
    """The names of all engines with a record or a log."""
    names = (path.name for path in (home() / "local").glob("*"))
    return tuple(sorted(n for n in names if _state_file(n).exists() or log_of(n).exists()))


def copy_names(name: str) -> tuple[str, ...]:
    """The names of the engines, and of the logs, of the plan ``name`` with several copies."""
    numbered = re.compile(rf"{re.escape(name)}-\d+")
    names = filter(numbered.fullmatch, local_engine_names())
    engines = ((copy, read_local_engine(copy)) for copy in names)
    return tuple(copy for copy, engine in engines if engine is None or engine.copy_of == name)


def local_engines() -> tuple[LocalEngine, ...]:
    """All engines with a record, sorted by name. Raises UserError for one that cannot be read."""
    return tuple(filter(None, map(read_local_engine, local_engine_names())))


def unknown_engine(name: str) -> NotFound:
    hint = nearest(name, local_engine_names())
    fix = Fix(hint) if hint else Fix("list the engines", ("peagle", "local", "list"))
    return NotFound(f"there is no local engine {name}", fix, code="no-such-engine")


def _state_file(name: str) -> Path:
    return locate_folder(name) / "state.json"


def warm_folder() -> Path:
    """``$PEAGLE_HOME/warm``, which may be missing."""
    return home() / WARM_FOLDER


def warm_pins() -> str:
    """The SHA-256s of this machine's archives: what its user's own folder has is trusted."""
    pins = set()
    for path in warm_folder().glob(f"*{MANIFEST_SUFFIX}"):
        with suppress(OSError):
            pins.add(read_sha256(read_regular(path, LARGEST)))
    return ",".join(sorted(filter(None, pins)))


def collected_folder(name: str) -> Path:
    """The cache folder of the collecting engine ``name``; useless after its end."""
    return locate_folder(name) / "collected"


def read_warm_start(log: Path) -> WarmStart | None:
    """The warm start that the beginning of the log reports, if any."""
    try:
        with log.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except FileNotFoundError:
        return None
    return warm_start_in(head.decode("utf-8", errors="replace").splitlines())
