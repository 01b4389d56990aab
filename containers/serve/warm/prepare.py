"""What is to be done for a warm start, before the engine is started: nothing, restore, collect."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from serve.errors import WrongEnvironment
from serve.folder import is_folder_path, names_in
from serve.logs import Log
from serve.model import MODEL, drafter_of
from serve.settings import COLLECT, OFF, WARM_VARIABLE
from serve.warm import caches
from serve.warm.device import UnknownDevice
from serve.warm.manifest import MANIFEST, Damaged, Manifest, read_manifest
from serve.warm.places import (
    CACHE_VARIABLE,
    FOLDER_VARIABLE,
    LARGER_DISK,
    archive_of,
    artefact_folder,
    cache_folder,
    has_artefact_folder,
    is_folder_named,
)
from serve.warm.readahead import read_ahead
from serve.warm.restore import remove, restore
from serve.warm.subject import canonical, differences, key_of, subject_of
from serve.warm.words import PLACE_VARIABLE, SUBJECT_VARIABLE

_MOST_LOOKED_AT = 100
_OF_VLLMS_OWN_KEY = "VLLM_API_KEY"


def prepare(
    environment: Mapping[str, str], chosen: Mapping[str, str], warm: str, log: Log
) -> dict[str, str]:
    """The variables that the engine is to be given besides its own.

    ``environment`` is as it was given, ``chosen`` with the model found. Whatever is wrong with
    artefacts is a warning, and the start a cold one. Raises WrongEnvironment where it was told to
    collect and cannot.
    """
    if warm == OFF:
        return {}
    if warm == COLLECT:
        return _collect(environment, chosen, log)
    try:
        return _restored(environment, chosen, log)
    except (Damaged, UnknownDevice) as error:
        reason = str(error)
    except OSError as error:
        reason = _with_way_out(error, environment)
    except Exception as error:  # somebody else's file must never keep an engine from its work
        reason = f"{type(error).__name__}: {error}"
    log.warning(f"no warm start, the engine compiles anew: {reason}")
    return {}


def _restored(
    environment: Mapping[str, str], chosen: Mapping[str, str], log: Log
) -> dict[str, str]:
    """The variables of a restored artefact; none where there is nothing to be restored."""
    folder = artefact_folder(environment)
    if not has_artefact_folder(environment):
        if is_folder_named(environment):
            raise Damaged(f"{FOLDER_VARIABLE} is {folder}, and there is no such folder "
                          "(mount one there, or leave the variable out)")  # fmt: skip
        return {}
    names = [name for name in names_in(folder) if name.endswith(MANIFEST)]
    if not names:
        log.info(f"no warm start: {folder} holds no artefact")
        return {}
    subject = subject_of(environment, chosen)
    key = key_of(subject)
    if f"{key}{MANIFEST}" not in names:
        raise Damaged(_nearest(subject, folder, names))
    manifest = read_manifest(folder / f"{key}{MANIFEST}")
    cache = cache_folder(environment)
    begin = time.monotonic()
    read_ahead(_weights(chosen))
    fresh = restore(manifest, folder, cache)
    _say(log, manifest, time.monotonic() - begin, fresh)
    return caches.variables(cache / key, environment, _for_cpu(subject))


def _with_way_out(error: OSError, environment: Mapping[str, str]) -> str:
    """What went wrong with a file, and what helps: with those of an artefact, or of the cache."""
    what = error.strerror or str(error)
    named = str(error.filename or "")
    if named.startswith(f"{artefact_folder(environment)}/"):
        return f"{named}: {what} (copy the artefact again, both of its files, or remove it)"
    cache = str(cache_folder(environment))
    if named and not (named.startswith(cache) or cache.startswith(named)):
        return f"{named}: {what} (make it a file that can be read)"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    helps = LARGER_DISK if full else f"set {CACHE_VARIABLE} to a folder that can be written"
    return f"{named or cache}: {what} ({helps})"


def _weights(chosen: Mapping[str, str]) -> list[str]:
    """The folders of target and drafter, as far as they are folders."""
    models = (chosen[MODEL], drafter_of(chosen))
    return [path for path in models if path and is_folder_path(path)]


def _say(log: Log, manifest: Manifest, seconds: float, fresh: bool) -> None:
    held = f"{manifest.files} files, {manifest.unpacked_bytes / 1e6:.1f} MB"
    did = f"restored {held} in {seconds:.2f} s" if fresh else f"{held} were restored before"
    cold = f"; cold it took {manifest.seconds_cold:.0f} s" if manifest.seconds_cold else ""
    log.info(f"warm start: {did} (key {manifest.key}{cold})", warm=manifest.key)


def _nearest(subject: Mapping[str, Any], folder: Path, names: Iterable[str]) -> str:
    """In what the most similar of the artefacts is not for this container."""
    found: list[tuple[int, str, list[str]]] = []
    broken: list[str] = []
    for name in sorted(names)[:_MOST_LOOKED_AT]:
        try:
            apart = differences(subject, read_manifest(folder / name).subject)
        except (Damaged, OSError) as error:
            broken.append(str(error))
        else:
            found.append((len(apart), name, apart))
    if not found:
        return f"{folder} holds no artefact that can be read: {broken[0]}"
    _, name, apart = min(found)
    return (
        f"no artefact in {folder} is for this container; "
        f"{name.removesuffix(MANIFEST)} differs in {'; '.join(apart)}"
    )


def _collect(environment: Mapping[str, str], chosen: Mapping[str, str], log: Log) -> dict[str, str]:
    try:
        subject = subject_of(environment, chosen)
    except UnknownDevice as error:
        raise WrongEnvironment(
            f"{WARM_VARIABLE} is {COLLECT}, and nobody can tell for what code is compiled: {error}",
            "run it where the engine can run",
        ) from None
    cache = cache_folder(environment)
    place = cache / key_of(subject)
    try:
        _make_empty(place, cache)
    except OSError as error:
        raise WrongEnvironment(
            f"{WARM_VARIABLE} is {COLLECT}, and {cache} cannot be written: {error.strerror}",
            f"set {CACHE_VARIABLE} to a folder that can",
        ) from None
    for warning in _warnings(environment):
        log.warning(warning)
    log.info(f"collecting what the engine compiles, for warm starts (key {place.name})",
             warm=place.name)  # fmt: skip
    return {
        **caches.variables(place, environment, _for_cpu(subject)),
        SUBJECT_VARIABLE: canonical(subject).decode(),
        PLACE_VARIABLE: str(place),
    }


def _make_empty(place: Path, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    if place.exists():
        remove(place, cache)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(archive_of(place))
    place.mkdir()


def _warnings(environment: Mapping[str, str]) -> list[str]:
    elsewhere = caches.folders_set_by_user(environment)
    found = []
    if elsewhere:
        found.append(f"not collected, since they are set to other folders: {', '.join(elsewhere)}")
    if environment.get(_OF_VLLMS_OWN_KEY):
        found.append(
            f"vLLM makes {_OF_VLLMS_OWN_KEY} a part of its caches' own keys: what is collected "
            "helps with the same one only; SM_VLLM_API_KEY does not have that effect"
        )
    return found


def _for_cpu(subject: Mapping[str, Any]) -> bool:
    return "cpu" in subject["device"]
