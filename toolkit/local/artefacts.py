"""Where this machine keeps what engines compiled, and how an engine is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toolkit.home import home
from toolkit.images import Image
from toolkit.local import records
from toolkit.warm import (
    CACHE_VARIABLE,
    COLLECT,
    DIGEST_VARIABLE,
    FOLDER,
    FOLDER_VARIABLE,
    MODE_VARIABLE,
    WarmStart,
    digest_in,
    warm_start_in,
)

MOUNTED_AT = "/opt/ml/warm"
"""Where a container finds the folder."""

_HEAD_BYTES = 256 * 1024
"""Of a log, which can be long: how much of its beginning is searched."""


def warm_folder() -> Path:
    """``$PEAGLE_HOME/warm``; it need not be there."""
    return home() / FOLDER


def collected_by(name: str) -> Path:
    """Into what the engine ``name`` of this machine collects; of no use when that has ended."""
    return records.folder_of(name) / "collected"


def for_process(name: str, compiled: bool, collecting: bool) -> dict[str, str]:
    """Variables that let the engine ``name`` of this machine collect, or restore what is kept
    here. One that is not ``compiled`` has nothing to restore."""
    if collecting:
        return {MODE_VARIABLE: COLLECT, CACHE_VARIABLE: str(collected_by(name))}
    if compiled and warm_folder().is_dir():
        return {FOLDER_VARIABLE: str(warm_folder())}
    return {}


def for_container(
    image: Image, compiled: bool, collecting: bool
) -> tuple[dict[str, str], Mapping[str, Path]]:
    """The same for a container of ``image``: its variables and its mounts."""
    digest = digest_of(image)
    variables = {DIGEST_VARIABLE: digest} if digest else {}
    if collecting:
        return {**variables, MODE_VARIABLE: COLLECT}, {}
    if compiled and warm_folder().is_dir():
        return {**variables, FOLDER_VARIABLE: MOUNTED_AT}, {MOUNTED_AT: warm_folder()}
    return variables, {}


def apart(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What a process with that environment is given besides to collect in ``folder``, where no
    other engine's caches are; nothing for one that does not collect."""
    return {CACHE_VARIABLE: str(folder)} if environment.get(MODE_VARIABLE) == COLLECT else {}


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
