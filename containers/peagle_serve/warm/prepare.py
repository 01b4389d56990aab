"""Prepares a warm start before the engine starts: restore an artifact, or collect a new one.

An artifact is unpacked into a temporary folder and renamed, so it is complete or absent. Meanwhile
the weights are read into the page cache.
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
    ANY,
    ARCHIVE_SUFFIX,
    CACHE_VARIABLE,
    CAPTURE_VARIABLE,
    COLLECT,
    MANIFEST_SUFFIX,
    PREFIX,
    SUBJECT_VARIABLE,
    WARM_FOLDER_VARIABLE,
    WARM_MODE_VARIABLE,
    WARM_PINS_VARIABLE,
    InvalidEnvironment,
    pins_in,
)
from peagle_serve.folder import is_folder_path, names_in
from peagle_serve.json_reader import InvalidJson, read
from peagle_serve.logs import Log, restored_text
from peagle_serve.warm import caches
from peagle_serve.warm.archive import unpack
from peagle_serve.warm.cache_key import (
    UnknownDevice,
    canonical,
    differences,
    key_of,
    subject_of,
)
from peagle_serve.warm.caches import (
    LARGER_DISK,
    archive_of,
    artifact_folder,
    cache_folder,
    make_cache_folder,
)
from peagle_serve.warm.manifest import LARGEST, Damaged, Manifest, open_regular, read_manifest
from peagle_serve.weights import models_in

_WEIGHTS = (".safetensors",)
_STEP = 128 * 1024
"""Bytes per call: the kernel reads at most one read-ahead window for each."""


def read_ahead(folders: Iterable[str]) -> threading.Thread:
    """Start reading the weights in ``folders``, up to half of the free memory, in a thread that
    needs no join and may fail silently."""
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
    """Returns the bytes that the kernel reads."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = min(os.fstat(descriptor).st_size, limit)
        for begin in range(0, size, _STEP):
            os.posix_fadvise(descriptor, begin, _STEP, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)
    return size


def _free_bytes() -> int:
    """Available memory in bytes; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


_PARTIAL = ".partial"
_MARK = "restored.json"
_ABANDONED_SECONDS = 3600.0
"""A partial folder of this age is abandoned."""
_TRIES = 3


def restore(manifest: Manifest, artifacts: Path, cache: Path) -> bool:
    """Unpack the artifact to ``cache/<key>``. False if that was done before.

    Other processes may do the same in the same cache. Raises Damaged, OSError; then nothing is
    left.
    """
    place = cache / manifest.key
    if _is_restored(place, manifest):
        return False
    cache.mkdir(parents=True, exist_ok=True)
    with temporary_folder(cache, manifest.key) as folder:
        free = shutil.disk_usage(cache).free
        if free < manifest.unpacked_bytes:
            needed = manifest.unpacked_bytes
            raise Damaged(
                f"{cache} has {free / 1e6:.1f} MB free, and {needed / 1e6:.1f} MB are needed "
                f"({LARGER_DISK})"
            )
        unpack(artifacts / f"{manifest.key}{ARCHIVE_SUFFIX}", manifest, folder)
        (folder / _MARK).write_text(json.dumps({"sha256": manifest.sha256}), encoding="ascii")
        return _put(folder, place, manifest)


@contextlib.contextmanager
def temporary_folder(cache: Path, key: str) -> Iterator[Path]:
    """A new folder beside the folders of the keys, removed at the end unless it was renamed.
    Abandoned ones are removed too."""
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
    """Remove a key's folder atomically. Raises OSError."""
    with temporary_folder(cache, place.name) as folder, contextlib.suppress(FileNotFoundError):
        os.rename(place, folder / place.name)


def _put(folder: Path, place: Path, manifest: Manifest) -> bool:
    """Rename ``folder`` to ``place``. False if another process restored the same first."""
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
    raise Damaged(f"{place} keeps being changed by other processes")


def _is_restored(place: Path, manifest: Manifest) -> bool:
    try:
        with open_regular(place / _MARK) as file:
            mark = read(file.read(LARGEST), _MARK)
    except (Damaged, OSError, InvalidJson):
        return False
    return bool(mark == {"sha256": manifest.sha256})


_MOST_COMPARED = 100
_VLLM_API_KEY = "VLLM_API_KEY"


def prepare(
    environment: Mapping[str, str], chosen: Mapping[str, str], warm: str, log: Log
) -> dict[str, str]:
    """The additional variables of the engine.

    ``environment`` is as the user set it, ``chosen`` has the model resolved. ``warm`` is ``auto``
    or ``collect``. A problem with artifacts is a warning, and the start is cold. Raises
    InvalidEnvironment if ``warm`` is ``collect`` and the caches cannot be collected.
    """
    if warm == COLLECT:
        return _collect(environment, chosen, log)
    try:
        return _restored(environment, chosen, log)
    except OSError as error:
        reason = _explained(error, environment)
    except (Damaged, UnknownDevice) as error:
        reason = str(error)
    except Exception as error:  # a damaged artifact must never stop the engine
        reason = f"{type(error).__name__}: {error}"
    _log_cold(log, reason)
    return {}


def _log_cold(log: Log, reason: str, **fields: object) -> None:
    log.warning(
        f"no warm start, the engine compiles everything: {reason}",
        event="warm-start", restored=False, reason=reason, **fields,
    )  # fmt: skip


def _restored(
    environment: Mapping[str, str], chosen: Mapping[str, str], log: Log
) -> dict[str, str]:
    """The variables of a restored artifact; empty without artifacts."""
    folder = artifact_folder(environment)
    if not os.path.isdir(folder):
        raise Damaged(
            f"{WARM_FOLDER_VARIABLE} is {folder}, which does not exist "
            "(mount a folder there, or remove the variable)"
        )
    names = [name for name in names_in(folder) if name.endswith(MANIFEST_SUFFIX)]
    if not names:
        reason = f"{folder} holds no artifact"
        log.info(f"no warm start: {reason}", event="warm-start", restored=False, reason=reason)
        return {}
    pins = pins_in(environment)
    if not pins:
        raise Damaged(
            f"an archive is code, and {WARM_PINS_VARIABLE} does not say which one to restore "
            "(deploy again: the plan then pins it)"
        )
    subject = subject_of(environment, chosen)
    key = key_of(subject)
    if f"{key}{MANIFEST_SUFFIX}" not in names:
        _log_no_match(log, subject, folder, names)
        return {}
    manifest = read_manifest(folder / f"{key}{MANIFEST_SUFFIX}")
    if pins != {ANY} and manifest.sha256 not in pins:
        raise Damaged(
            f"the archive {key} has the SHA-256 {manifest.sha256}, which {WARM_PINS_VARIABLE} does "
            "not list (if `peagle warm` replaced it, deploy again)"
        )
    cache = make_cache_folder(environment)
    begin = time.monotonic()
    read_ahead(path for path in models_in(chosen).values() if is_folder_path(path))
    fresh = restore(manifest, folder, cache)
    seconds = time.monotonic() - begin
    fields = {
        "key": key,
        "files": manifest.files,
        "unpacked_bytes": manifest.unpacked_bytes,
        "seconds": round(seconds, 2) if fresh else None,
        "seconds_cold": manifest.seconds_cold or None,
    }
    message = f"warm start: {restored_text(fields)}"
    log.info(message, event="warm-start", restored=True, **fields)
    return caches.variables(cache / key, environment, "cpu" in subject["device"])


def _explained(error: OSError, environment: Mapping[str, str]) -> str:
    """What went wrong with a file of an artifact or of the cache, and the fix."""
    what = error.strerror or str(error)
    named = str(error.filename or "")
    if named.startswith(f"{artifact_folder(environment)}/"):
        return f"{named}: {what} (copy both files of the artifact again, or remove it)"
    cache = str(cache_folder(environment))
    if named and not (named.startswith(cache) or cache.startswith(named)):
        return f"{named}: {what} (make the file readable)"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = LARGER_DISK if full else f"set {CACHE_VARIABLE} to a writable folder of this user"
    return f"{named or cache}: {what} ({fix})"


def _log_no_match(log: Log, subject: Mapping[str, Any], folder: Path, names: Iterable[str]) -> None:
    """Write how the most similar artifact differs. Raises Damaged if none is readable."""
    found: list[tuple[int, str, list[str]]] = []
    broken: list[str] = []
    for name in sorted(names)[:_MOST_COMPARED]:
        try:
            apart = differences(subject, read_manifest(folder / name).subject)
        except (Damaged, OSError) as error:
            broken.append(str(error))
        else:
            found.append((len(apart), name.removesuffix(MANIFEST_SUFFIX), apart))
    if not found:
        raise Damaged(f"{folder} holds no readable artifact: {broken[0]}")
    _, key, apart = min(found)
    reason = f"no artifact in {folder} matches this container; {key} differs in {'; '.join(apart)}"
    _log_cold(log, reason, nearest=key, differences=apart)


def _collect(environment: Mapping[str, str], chosen: Mapping[str, str], log: Log) -> dict[str, str]:
    try:
        subject = subject_of(environment, chosen)
    except (UnknownDevice, OSError) as error:
        raise InvalidEnvironment(
            f"{WARM_MODE_VARIABLE} is {COLLECT}, but the device is unknown: {error}",
            "collect where the engine can run",
        ) from None
    cache = cache_folder(environment)
    place = cache / key_of(subject)
    try:
        make_cache_folder(environment)
        if place.exists():
            remove(place, cache)
        archive_of(place).unlink(missing_ok=True)
        place.mkdir()
    except OSError as error:
        raise InvalidEnvironment(
            f"{WARM_MODE_VARIABLE} is {COLLECT}, and {cache} is not writable: {error.strerror}",
            f"set {CACHE_VARIABLE} to a writable folder of this user",
        ) from None
    if elsewhere := caches.folders_set_by_user(environment):
        log.warning(f"not collected, because their folders are set: {', '.join(elsewhere)}")
    if environment.get(_VLLM_API_KEY) or environment.get(f"{PREFIX}API_KEY"):
        log.warning(
            "the API key is part of the keys of vLLM's caches: this artifact only helps engines "
            "with the same key"
        )
    log.info(
        f"collecting compile caches for warm starts (key {place.name})",
        event="collect",
        key=place.name,
    )
    return {
        **caches.variables(place, environment, "cpu" in subject["device"]),
        SUBJECT_VARIABLE: canonical(subject).decode(),
        CAPTURE_VARIABLE: str(place),
    }
