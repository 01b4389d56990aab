"""Warm starts: what an engine has compiled, fetched from its container in pieces.

    <key>.tar.gz   the engine's compile and kernel caches, packed by ``peagle_serve``
    <key>.json     the manifest: what they were made with, size, sha256; written last

The two are an artefact. A container that finds one of its own key starts with warm caches. The
transport is the caller's: SageMaker's InvokeEndpoint, or HTTP to an engine of this machine.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from peagle.errors import EngineError, PeagleError, Refused, UserError
from peagle.protocol import log_text
from peagle.store import replacing

FOLDER = "warm"
"""Where artefacts lie: a folder of this name beside the weights, or in the toolkit's home."""

MODE_VARIABLE = "PEAGLE_WARM"
"""Of the container: ``auto`` (restore what matches; the default), ``collect`` or ``off``."""

COLLECT = "collect"
FOLDER_VARIABLE = "PEAGLE_WARM_FOLDER"
CACHE_VARIABLE = "PEAGLE_CACHE"
DIGEST_VARIABLE = "PEAGLE_IMAGE_DIGEST"
"""``sha256:...`` of the image that a container was made from; a part of the key, unless the image
knows its own content."""

PIECE_BYTES = 4 * 1024 * 1024
"""The most that a container gives at once: InvokeEndpoint answers with no more than 6 MB."""

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before asking again after no whole answer came."""

_FORMAT = 1
_KEY = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RESTORED = re.compile(r"serve: warm start: (.*\(key ([0-9a-f]{32})\b.*\))")
_NOT_RESTORED = re.compile(r"serve: no warm start(?:, the engine compiles anew)?: (.*)")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_REBUILD = "build the image anew with this toolkit: peagle image build PAIR --push"


class Interrupted(Exception):
    """A transport got no whole answer, and asking again may help. ``error`` says why."""

    def __init__(self, error: PeagleError) -> None:
        self.error = error
        super().__init__(str(error))


@dataclass(frozen=True)
class Answer:
    """What the container said: an HTTP status and a body."""

    status: int
    body: bytes


Ask = Callable[[dict[str, Any]], Answer]
"""Sends a body to the container's route. Raises Interrupted, or a PeagleError that will stay."""

Progress = Callable[[int, int], object]
"""Called with the bytes that are here, and all bytes."""


@dataclass(frozen=True)
class Artefact:
    """An artefact on this machine.

    ``size`` is of the packed file and ``unpacked_bytes`` of what is in it, in bytes;
    ``seconds_cold`` is how long the engine took to be healthy without it.
    """

    key: str
    archive: Path
    manifest: Path
    size: int
    sha256: str
    files: int
    unpacked_bytes: int
    seconds_cold: float


@dataclass(frozen=True)
class WarmStart:
    """How a container said that it started: from the artefact ``key``, or without one (``None``);
    ``detail`` is what was restored and how quickly, or why nothing was."""

    key: str | None
    detail: str

    @property
    def words(self) -> str:
        """One line for people."""
        return f"{'Warm' if self.key else 'No warm'} start: {self.detail}"

    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {"restored": self.key is not None, "key": self.key, "detail": self.detail}


def warm_start_in(log: Iterable[str]) -> WarmStart | None:
    """What the last start in a container's log says of it; ``None`` where there was nothing that
    could have been restored."""
    last = None
    for line in map(log_text, log):
        if found := _RESTORED.match(line):
            last = WarmStart(found[2], found[1])
        elif found := _NOT_RESTORED.match(line):
            last = WarmStart(None, found[1])
    return last


def fetch(
    ask: Ask,
    folder: Path,
    progress: Progress = lambda done, size: None,
    sleep: Callable[[float], object] = time.sleep,
) -> Artefact:
    """Bring the container's artefact into ``folder``, in place of one of the same key.

    It is there whole or not at all. Raises Refused when there is nothing to fetch or the image is
    too old, EngineError when the container fails or sends something else than it said, UserError
    when the disk is full.
    """
    text = _patiently(ask, {}, sleep)
    artefact = _described(text, folder)
    with _full_disk_told(folder, artefact.size):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(artefact.archive) as draft:
            with draft.open("wb") as stream:
                _write_pieces(ask, stream, artefact, progress, sleep)
            draft.chmod(0o644)  # a container's own user reads it
            # Without a manifest it is no artefact, so no reader takes old for new.
            artefact.manifest.unlink(missing_ok=True)
        with replacing(artefact.manifest) as draft:
            draft.write_bytes(text)
            draft.chmod(0o644)
    return artefact


def digest_in(image: str) -> str | None:
    """``sha256:...`` of an image that is named with it; ``None`` for one that is not."""
    name, _, digest = image.partition("@")
    return digest if name and digest.startswith("sha256:") else None


def _write_pieces(
    ask: Ask,
    stream: BinaryIO,
    artefact: Artefact,
    progress: Progress,
    sleep: Callable[[float], object],
) -> None:
    sha256, done = hashlib.sha256(), 0
    progress(done, artefact.size)
    while done < artefact.size:
        length = min(PIECE_BYTES, artefact.size - done)
        piece = _patiently(ask, {"offset": done, "length": length}, sleep, length)
        stream.write(piece)
        sha256.update(piece)
        done += length
        progress(done, artefact.size)
    if sha256.hexdigest() != artefact.sha256:
        raise EngineError(
            f"what was fetched of {artefact.key} is not what the container packed: its sha256 is "
            "another",
            "nothing was kept; repeat the command",
        )


def _patiently(
    ask: Ask, body: dict[str, Any], sleep: Callable[[float], object], length: int | None = None
) -> bytes:
    """The answer to ``body``, ``length`` bytes long if that is given; asked for again, after
    pauses, as long as the container fails, or none or a part of it comes."""
    for pause in (*PAUSES, None):
        try:
            answer = ask(body)
            if answer.status == 200 and length in (None, len(answer.body)):
                return answer.body
            lost = _refusal(answer) if answer.status != 200 else _cut_short(answer, length or 0)
        except Interrupted as interrupted:
            lost = interrupted.error
        if pause is None or isinstance(lost, Refused):
            raise lost
        sleep(pause)
    raise AssertionError("the last round raises")


def _cut_short(answer: Answer, length: int) -> PeagleError:
    return EngineError(
        f"a piece of the artefact came cut short: {len(answer.body):,} of {length:,} bytes",
        "nothing was kept; repeat the command",
    )


def _refusal(answer: Answer) -> PeagleError:
    words = _words(answer.body)
    if answer.status == 409:
        return Refused(f"there is nothing to collect: {words}", "see the container's log")
    if answer.status == 403:
        return Refused(f"the container does not collect: {words}",
                       f"it must be started with {MODE_VARIABLE}={COLLECT}")  # fmt: skip
    if answer.status < 500:
        return Refused(f"the container does not know warm starts ({answer.status}: {words})",
                       _REBUILD)  # fmt: skip
    return EngineError(f"the container failed to collect ({answer.status}): {words}", "see its log")


def _words(body: bytes) -> str:
    """What a container says in ``{"error": ...}``, which may be a text or hold a message."""
    text = body[:2000].decode("utf-8", errors="replace")
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return text[:300] or "without a word"


def _described(text: bytes, folder: Path) -> Artefact:
    """What the manifest says. Raises Refused for one of another toolkit."""
    try:
        told = json.loads(text)
        if told["format"] != _FORMAT:
            raise ValueError(f"format {told['format']}")
        key, sha256 = str(told["key"]), str(told["sha256"])
        if not _KEY.fullmatch(key) or not _SHA256.fullmatch(sha256):
            raise ValueError(f"key {key!r}, sha256 {sha256!r}")
        return Artefact(
            key=key,
            archive=folder / f"{key}.tar.gz",
            manifest=folder / f"{key}.json",
            size=int(told["size"]),
            sha256=sha256,
            files=int(told["files"]),
            unpacked_bytes=int(told["unpacked_bytes"]),
            seconds_cold=float(told["seconds_cold"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            f"the container's manifest is not one that this toolkit reads: {error!r}", _REBUILD
        ) from error


@contextmanager
def _full_disk_told(folder: Path, size: int) -> Iterator[None]:
    """Say beforehand when there is too little room, and also when it ends on the way."""
    there = folder
    while not there.exists():
        there = there.parent
    full = UserError(
        f"the disk of {folder} is full: the artefact takes {size / 1e6:,.1f} MB",
        "make room there, or choose another place; nothing was kept",
    )
    if shutil.disk_usage(there).free < size:
        raise full
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise full from error
