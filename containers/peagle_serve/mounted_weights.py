"""Compare the mounted weights with the manifest that the plan pins.

``peagle weights sync`` writes a manifest beside the folders, and a deploy pins its SHA-256 in
``PEAGLE_WEIGHTS_SHA256``. Names and sizes are compared at every start, contents with
``PEAGLE_VERIFY=full``: SHA-256 of the file, or of the SHA-256s of its parts, as S3 computes it for
an object in parts.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import time
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from peagle_serve import json_reader
from peagle_serve.contract import (
    FULL,
    MODEL_FOLDER,
    SHA256,
    VERIFY_VARIABLE,
    WEIGHTS_MANIFEST,
    WEIGHTS_PIN_VARIABLE,
    InvalidEnvironment,
)
from peagle_serve.json_reader import open_regular, read_regular
from peagle_serve.logs import Log
from peagle_serve.safetensors import first_names
from peagle_serve.weights import local_folders, ml_root, real_path

_FORMAT = 1
_CHUNK = 1 << 20
_THREADS = 8
_FIX = "copy the weights again with `peagle weights sync`; if the change is meant, deploy again"


class _ManifestEntry(NamedTuple):
    """An entry of the manifest, ``size`` in bytes. ``digest`` is a SHA-256: of the file, or with a
    ``part`` size in bytes of the SHA-256s of its parts. Empty where the content is unknown."""

    size: int
    digest: bytes = b""
    part: int = 0


def check_mounted_weights(environment: Mapping[str, str], verify: str, log: Log) -> None:
    """Raise InvalidEnvironment for weights that differ from the manifest, for a served folder of
    the mount that it does not list, and for another manifest than the pinned one.

    ``environment`` names the model and resolved paths. Without a pin nothing is compared unless
    ``verify`` is ``full``.
    """
    pin = environment.get(WEIGHTS_PIN_VARIABLE, "").strip()
    if not pin and verify != FULL:
        return
    if pin and not SHA256.fullmatch(pin):
        raise InvalidEnvironment(f"{WEIGHTS_PIN_VARIABLE} is {pin[:80]!r}", "deploy again")
    folder = Path(real_path(MODEL_FOLDER, ml_root(environment)))
    folders = _read(folder / WEIGHTS_MANIFEST, pin)
    _check_listed(environment, folder, folders)
    for part, files in folders.items():
        _compare(folder / part, files)
    if verify == FULL:
        begin = time.monotonic()
        size = sum(file.size for files in folders.values() for file in files.values())
        log.info(f"hashing {size:,} bytes of weights ({VERIFY_VARIABLE}={FULL})", event="verify")
        _hash_all(folder, folders)
        seconds = round(time.monotonic() - begin, 1)
        log.info(f"all weights match their manifest ({seconds} s)", event="verify", seconds=seconds)


def _check_listed(environment: Mapping[str, str], mount: Path, listed: Container[str]) -> None:
    """Raise InvalidEnvironment for a served folder of the mount that the manifest does not list.

    A link counts as the folder where it is, and as the one it leads to.
    """
    for where, path in local_folders(environment).items():
        for real in (os.path.abspath, os.path.realpath):
            folder, root = Path(real(path)), Path(real(mount))
            part = folder.relative_to(root).parts[:1] if folder.is_relative_to(root) else None
            if part is not None and (not part or part[0] not in listed):
                raise InvalidEnvironment(
                    f"{where} is {path}, which {mount / WEIGHTS_MANIFEST} does not list: nothing "
                    "shows that these are the weights of the deploy",
                    "copy these weights with `peagle weights sync` too, and deploy again",
                )


def _read(file: Path, pin: str) -> dict[str, dict[str, _ManifestEntry]]:
    """The files of the manifest, by folder and name. Raises InvalidEnvironment."""
    try:
        content = read_regular(file, json_reader.DEFAULT.size)
    except OSError as error:
        reason = error.strerror
        needed = WEIGHTS_PIN_VARIABLE if pin else f"{VERIFY_VARIABLE}={FULL}"
        raise InvalidEnvironment(f"{needed} needs {file}: {reason}", _FIX) from None
    found = hashlib.sha256(content).hexdigest()
    if pin and found != pin:
        raise InvalidEnvironment(
            f"{file} has the SHA-256 {found}, and {WEIGHTS_PIN_VARIABLE} is {pin}: the weights "
            "were changed after the deploy",
            _FIX,
        )
    try:
        document = json_reader.read(content, str(file))
        if document["format"] != _FORMAT:
            raise ValueError(f"{file} has another format")
        folders: dict[str, Any] = document["folders"]
        for part, folder in folders.items():
            if part not in ("target", "drafter") or folder["complete"] is not True:
                raise ValueError(f"the copy of the {part} is not complete")
        return {
            part: {str(name): _file(entry) for name, entry in folder["files"].items()}
            for part, folder in folders.items()
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidEnvironment(f"{file} cannot be used: {error}", _FIX) from None


def _file(entry: Any) -> _ManifestEntry:
    """An entry of the manifest. Raises ValueError, LookupError or TypeError for an invalid one."""
    size, sha256, part = entry["size"], entry.get("sha256"), entry.get("part_size")
    if type(size) is not int or size < 0 or not (part is None or (type(part) is int and part > 0)):
        raise ValueError("an entry has no valid size")
    if isinstance(sha256, str) and SHA256.fullmatch(sha256):
        return _ManifestEntry(size, bytes.fromhex(sha256))
    algorithm, _, value = (entry.get("checksum") or "").partition(":")
    if algorithm != "SHA256":
        return _ManifestEntry(size)
    return _ManifestEntry(size, base64.b64decode(value, validate=True), part or 0)


def _compare(folder: Path, files: Mapping[str, _ManifestEntry]) -> None:
    """Raise InvalidEnvironment unless the folder holds these files, of these sizes, and no more."""
    try:
        sizes = dict(_sizes(folder))
    except OSError as error:
        raise InvalidEnvironment(f"{folder} cannot be read: {error.strerror}", _FIX) from None
    differing = [name for name, file in files.items() if sizes.get(name, file.size) != file.size]
    problems = {
        "lacks": sorted(files.keys() - sizes.keys()),
        "has what its manifest does not list:": sorted(sizes.keys() - files.keys()),
        "has other sizes than its manifest lists:": sorted(differing),
    }
    for problem, names in problems.items():
        if names:
            raise InvalidEnvironment(f"{folder} {problem} {first_names(names)}", _FIX)


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """Name and size of every file below the folder, or of what a link leads to. Raises OSError."""
    for parent, folders, files in os.walk(folder, onerror=_raise):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        for name in (*files, *linked):
            path = Path(parent, name)
            yield path.relative_to(folder).as_posix(), path.stat().st_size


def _raise(error: OSError) -> None:
    raise error


def _hash_all(folder: Path, folders: Mapping[str, Mapping[str, _ManifestEntry]]) -> None:
    """Raise InvalidEnvironment for the first file with another content, or an unknown one."""
    every = {folder / part / name: file for part in folders for name, file in folders[part].items()}
    if unknown := [path.name for path, file in every.items() if not file.digest]:
        raise InvalidEnvironment(
            f"{VERIFY_VARIABLE} is {FULL}; the manifest has no SHA-256 of {first_names(unknown)}",
            "copy the weights again with `peagle weights sync`, or remove the variable",
        )
    with ThreadPoolExecutor(_THREADS) as pool:
        for path, same in zip(every, pool.map(_is_same, every.items()), strict=True):
            if not same:
                raise InvalidEnvironment(f"{path} has other content than its manifest lists", _FIX)


def _is_same(entry: tuple[Path, _ManifestEntry]) -> bool:
    path, file = entry
    try:
        with open_regular(path) as stream:
            begins = range(0, file.size, file.part or max(file.size, 1)) or range(1)
            parts = [_digest(stream, min(begins.step, file.size - begin)) for begin in begins]
            if stream.read(1):
                return False
    except OSError:
        return False
    return file.digest == (hashlib.sha256(b"".join(parts)).digest() if file.part else parts[0])


def _digest(stream: BinaryIO, size: int) -> bytes:
    """SHA-256 of the next ``size`` bytes. Raises OSError where there are fewer."""
    found = hashlib.sha256()
    while size > 0:
        chunk = stream.read(min(size, _CHUNK))
        if not chunk:
            raise OSError(errno.EIO, "the file is truncated")
        found.update(chunk)
        size -= len(chunk)
    return found.digest()
