"""The weights read into the page cache while something else is unpacked.

An artefact restored into the cache: whole, or not at all.

What is to be done for a warm start, before the engine is started: nothing, restore, collect.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from peagle_serve.contract import (
    ARCHIVE_SUFFIX,
    CACHE_VARIABLE,
    CAPTURE_VARIABLE,
    COLLECT,
    MANIFEST_SUFFIX,
    MODEL,
    OFF,
    SUBJECT_VARIABLE,
    WARM_FOLDER_VARIABLE,
    WARM_MODE_VARIABLE,
    WrongEnvironment,
)
from peagle_serve.folder import is_folder_path, names_in
from peagle_serve.logs import Log
from peagle_serve.model import drafter_of
from peagle_serve.warm import caches
from peagle_serve.warm.archive import unpack
from peagle_serve.warm.cache_key import canonical, differences, key_of, subject_of
from peagle_serve.warm.caches import (
    LARGER_DISK,
    archive_of,
    artefact_folder,
    cache_folder,
    has_artefact_folder,
    is_folder_named,
)
from peagle_serve.warm.device import UnknownDevice
from peagle_serve.warm.manifest import LARGEST, Damaged, Manifest, open_plain, read_manifest

_WEIGHTS = (".safetensors", ".bin", ".gguf")
_STEP = 128 * 1024
"""Bytes for each call: the kernel reads no more of a wish than one window of its own read-ahead."""


def read_ahead(folders: Iterable[str]) -> threading.Thread:
    """Begin to read all weights in ``folders``, as far as half of the free memory takes them.

    Nobody needs to wait for the thread, and nobody minds if it fails.
    """
    thread = threading.Thread(target=_read, args=(list(folders), _free_bytes() // 2), daemon=True)
    thread.start()
    return thread


def _read(folders: list[str], limit: int) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            for file in sorted(Path(folder).iterdir()):
                if file.name.endswith(_WEIGHTS) and limit > 0:
                    limit -= _read_file(file, limit)


def _read_file(file: Path, limit: int) -> int:
    """How many bytes of the file were asked for."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = min(os.fstat(descriptor).st_size, limit)
        for begin in range(0, size, _STEP):
            os.posix_fadvise(descriptor, begin, _STEP, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)
    return size


def _free_bytes() -> int:
    """The memory that programs could still take; none if nobody says."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


_PARTIAL = ".partial"
_MARK = "restored.json"
_ABANDONED_SECONDS = 3600.0
"""A half unpacked folder of that age has nobody any more who unpacks into it."""
_TRIES = 3


def restore(manifest: Manifest, artefacts: Path, cache: Path) -> bool:
    """Make ``cache/<key>`` what the artefact holds. False if it has been that already.

    Others may do the same in the same cache. Raises Damaged, OSError; then nothing is left.
    """
    place = cache / manifest.key
    if _is_restored(place, manifest):
        return False
    cache.mkdir(parents=True, exist_ok=True)
    with temporary_folder(cache, manifest.key) as folder:
        free = shutil.disk_usage(cache).free
        if free < manifest.unpacked_bytes:
            raise Damaged(f"{cache} has {free / 1e6:.1f} MB free, "
                          f"and {manifest.unpacked_bytes / 1e6:.1f} MB are needed "
                          f"({LARGER_DISK})")  # fmt: skip
        unpack(artefacts / f"{manifest.key}{ARCHIVE_SUFFIX}", manifest, folder)
        (folder / _MARK).write_text(json.dumps({"sha256": manifest.sha256}), encoding="ascii")
        return _put(folder, place, manifest)


@contextlib.contextmanager
def temporary_folder(cache: Path, key: str) -> Iterator[Path]:
    """A new folder beside those of the keys. It is gone at the end, unless it was renamed; those
    that others have left are gone too."""
    for left in cache.glob(f"*{_PARTIAL}"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=_PARTIAL, dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(place: Path, cache: Path) -> None:
    """Remove a folder of a key at one stroke, as others see it. Raises OSError."""
    with temporary_folder(cache, place.name) as folder, contextlib.suppress(FileNotFoundError):
        os.rename(place, folder / place.name)


def _put(folder: Path, place: Path, manifest: Manifest) -> bool:
    """Rename ``folder`` to ``place``. False if somebody else was faster, with the same."""
    for _ in range(_TRIES):
        try:
            os.rename(folder, place)
        except OSError as error:
            if not place.is_dir():
                raise error from None
        else:
            return True
        if _is_restored(place, manifest):
            return False
        remove(place, place.parent)
    raise Damaged(f"{place} is changed by others all the time")


def _is_restored(place: Path, manifest: Manifest) -> bool:
    try:
        with open_plain(place / _MARK) as file:
            mark = json.loads(file.read(LARGEST))
    except (Damaged, OSError, ValueError, RecursionError):
        return False
    return bool(mark == {"sha256": manifest.sha256})


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
            raise Damaged(f"{WARM_FOLDER_VARIABLE} is {folder}, and there is no such folder "
                          "(mount one there, or leave the variable out)")  # fmt: skip
        return {}
    names = [name for name in names_in(folder) if name.endswith(MANIFEST_SUFFIX)]
    if not names:
        log.info(f"no warm start: {folder} holds no artefact")
        return {}
    subject = subject_of(environment, chosen)
    key = key_of(subject)
    if f"{key}{MANIFEST_SUFFIX}" not in names:
        raise Damaged(_nearest(subject, folder, names))
    manifest = read_manifest(folder / f"{key}{MANIFEST_SUFFIX}")
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
        f"{name.removesuffix(MANIFEST_SUFFIX)} differs in {'; '.join(apart)}"
    )


def _collect(environment: Mapping[str, str], chosen: Mapping[str, str], log: Log) -> dict[str, str]:
    try:
        subject = subject_of(environment, chosen)
    except UnknownDevice as error:
        raise WrongEnvironment(
            f"{WARM_MODE_VARIABLE} is {COLLECT}, the device is unknown: {error}",
            "run it where the engine can run",
        ) from None
    cache = cache_folder(environment)
    place = cache / key_of(subject)
    try:
        _make_empty(place, cache)
    except OSError as error:
        raise WrongEnvironment(
            f"{WARM_MODE_VARIABLE} is {COLLECT}, and {cache} cannot be written: {error.strerror}",
            f"set {CACHE_VARIABLE} to a folder that can",
        ) from None
    for warning in _warnings(environment):
        log.warning(warning)
    log.info(f"collecting what the engine compiles, for warm starts (key {place.name})",
             warm=place.name)  # fmt: skip
    return {
        **caches.variables(place, environment, _for_cpu(subject)),
        SUBJECT_VARIABLE: canonical(subject).decode(),
        CAPTURE_VARIABLE: str(place),
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
