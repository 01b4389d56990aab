"""What ``peagle local`` remembers of every engine that it started: ``local/<name>/state.json``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from toolkit.errors import NotFound, UserError, nearest
from toolkit.home import home, read_json, write_json
from toolkit.local.process import LOOPBACK, EngineProcess, is_alive

State = Literal["starting", "ready", "dead"]


@dataclass(frozen=True)
class LocalEngine:
    """An engine of this machine.

    ``environment`` is what it was started with, which tells one plan from another; ``notes`` say
    what of the plan a CPU runs otherwise. ``acceptance_length`` and ``drafts`` are the proof's,
    ``None`` before it and without speculation. ``chat`` is whether the target is made for chat.
    ``started_at`` is in seconds since 1970. ``image``
    is what its container was made from, ``None`` for a process of this machine.
    """

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
    chat: bool = True

    @property
    def speculates(self) -> bool:
        """Whether it was started with a drafter."""
        return "SM_VLLM_SPECULATIVE_CONFIG" in self.environment

    @property
    def state(self) -> State:
        """As of now."""
        if not is_alive(self.process):
            return "dead"
        return "ready" if self.ready else "starting"

    @property
    def openai_base_url(self) -> str:
        """Where OpenAI's clients find it."""
        return f"http://{LOOPBACK}:{self.process.port}/v1"


def folder_of(name: str) -> Path:
    """All that is kept of the engine ``name``: its state, its log, links to its weights.

    Raises UserError for a name that would lead elsewhere.
    """
    if name in ("", ".", "..") or "/" in name:
        raise UserError(f"{name!r} is no name for an engine", "use letters, digits and dashes")
    return home() / "local" / name


def log_of(name: str) -> Path:
    """The engine's log; it outlives an engine that failed to start."""
    return folder_of(name) / "engine.log"


def write(engine: LocalEngine) -> None:
    """Remember the engine."""
    write_json(_state_file(engine.name), asdict(engine))


def read(name: str) -> LocalEngine | None:
    """What is remembered of ``name``; ``None`` if nothing."""
    document = read_json(_state_file(name))
    if document is None:
        return None
    process = EngineProcess(**document.pop("process"))
    notes = tuple(document.pop("notes"))
    return LocalEngine(**document, notes=notes, process=process)


def forget(name: str) -> None:
    """Forget the engine, and keep its log."""
    _state_file(name).unlink(missing_ok=True)


def names() -> tuple[str, ...]:
    """All engines that left anything here, also only a log."""
    return tuple(sorted(path.name for path in (home() / "local").glob("*") if path.is_dir()))


def listing() -> tuple[LocalEngine, ...]:
    """All engines that are remembered, by name."""
    return tuple(engine for name in names() if (engine := read(name)))


def unknown(name: str) -> NotFound:
    """The error for a name of which nothing is here."""
    hint = nearest(name, names())
    return NotFound(f"there is no local engine {name}", hint or "`peagle local list` names them")


def _state_file(name: str) -> Path:
    return folder_of(name) / "state.json"
