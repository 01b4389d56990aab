"""What ``peagle local`` remembers of every engine that it started: ``local/<name>/state.json``.

Where this machine keeps what engines compiled, and how an engine is told of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from peagle.engine.process import LOOPBACK, EngineProcess, is_alive
from peagle.errors import NotFound, UserError, nearest
from peagle.images import Image
from peagle.protocol import WarmStart, digest_in, warm_start_in
from peagle.store import home, read_json, write_json
from peagle_serve.contract import (
    CACHE_VARIABLE,
    COLLECT,
    IMAGE_DIGEST_VARIABLE,
    ML_ROOT,
    WARM_FOLDER,
    WARM_FOLDER_VARIABLE,
    WARM_MODE_VARIABLE,
)

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


def unknown_engine(name: str) -> NotFound:
    """The error for a name of which nothing is here."""
    hint = nearest(name, names())
    return NotFound(f"there is no local engine {name}", hint or "`peagle local list` names them")


def _state_file(name: str) -> Path:
    return folder_of(name) / "state.json"


MOUNTED_AT = f"{ML_ROOT}/{WARM_FOLDER}"
"""Where a container finds the folder."""

_HEAD_BYTES = 256 * 1024
"""Of a log, which can be long: how much of its beginning is searched."""


def warm_folder() -> Path:
    """``$PEAGLE_HOME/warm``; it need not be there."""
    return home() / WARM_FOLDER


def collected_folder(name: str) -> Path:
    """Into what the engine ``name`` of this machine collects; of no use when that has ended."""
    return folder_of(name) / "collected"


def for_process(name: str, compiled: bool, collecting: bool) -> dict[str, str]:
    """Variables that let the engine ``name`` of this machine collect, or restore what is kept
    here. One that is not ``compiled`` has nothing to restore."""
    if collecting:
        return {WARM_MODE_VARIABLE: COLLECT, CACHE_VARIABLE: str(collected_folder(name))}
    if compiled and warm_folder().is_dir():
        return {WARM_FOLDER_VARIABLE: str(warm_folder())}
    return {}


def for_container(
    image: Image, compiled: bool, collecting: bool
) -> tuple[dict[str, str], Mapping[str, Path]]:
    """The same for a container of ``image``: its variables and its mounts."""
    digest = digest_of(image)
    variables = {IMAGE_DIGEST_VARIABLE: digest} if digest else {}
    if collecting:
        return {**variables, WARM_MODE_VARIABLE: COLLECT}, {}
    if compiled and warm_folder().is_dir():
        return {**variables, WARM_FOLDER_VARIABLE: MOUNTED_AT}, {MOUNTED_AT: warm_folder()}
    return variables, {}


def collection_variables(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What a process with that environment is given besides to collect in ``folder``, where no
    other engine's caches are; nothing for one that does not collect."""
    return {CACHE_VARIABLE: str(folder)} if environment.get(WARM_MODE_VARIABLE) == COLLECT else {}


def warm_start_of(log: Path) -> WarmStart | None:
    """What the engine with that log says of its warm start, before anything else that it says."""
    try:
        with log.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except FileNotFoundError:
        return None
    return warm_start_in(head.decode("utf-8", errors="replace").splitlines())


def digest_of(image: Image) -> str:
    """The digest by which a registry knows the image, else its id on this machine; empty for one
    that nobody has looked at."""
    return next(filter(None, map(digest_in, image.digests)), image.id)
