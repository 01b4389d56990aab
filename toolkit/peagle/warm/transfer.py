"""Fetch what an engine compiled from its container, in parts, and keep it as a warm start.

    <key>.tar.gz   the engine's compile and kernel caches, packed by ``peagle_serve``
    <key>.json     the manifest: what they were compiled for, size, SHA-256; written last

The two files are one artifact. A container that finds an artifact with its own key starts with warm
caches. The caller passes the transport: SageMaker's InvokeEndpoint, or HTTP to a local engine.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peagle.errors import EngineError, Fix, PeagleError, Refused, UserError, count_of, parsing
from peagle.protocol import engine_message
from peagle.store import replacing
from peagle_serve import json_reader
from peagle_serve.contract import COLLECT, HEX_32, SHA256, WARM_MODE_VARIABLE

PART_BYTES = 4 * 1024 * 1024
"""The most that a container sends at once: InvokeEndpoint responses are limited to 6 MB."""

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between attempts after an incomplete response."""

_FORMAT = 1
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_REPEAT = "nothing was stored; run the command again"
_REBUILD = Fix(
    "build the image again with this version", ("peagle", "image", "build", "PAIR", "--push")
)


class IncompleteResponse(Exception):
    """A transport received no complete response; a retry may help. ``error`` is the reason."""

    def __init__(self, error: PeagleError) -> None:
        self.error = error
        super().__init__(str(error))


@dataclass(frozen=True)
class WarmReply:
    """HTTP status and body of a response of the container."""

    status: int
    body: bytes


SendRequest = Callable[[dict[str, Any]], WarmReply]
"""Sends a body to the container's route. Raises IncompleteResponse, or a PeagleError that no retry
changes."""

OnBytes = Callable[[int, int], object]
"""Called with bytes received and bytes in total."""


@dataclass(frozen=True)
class WarmArtifact:
    """An artifact on this machine.

    ``size`` (of the archive) and ``unpacked_bytes`` (of its contents) are in bytes;
    ``seconds_cold`` is how long the engine took to become healthy without it.
    """

    key: str
    archive: Path
    manifest: Path
    size: int
    sha256: str
    files: int
    unpacked_bytes: int
    seconds_cold: float


def fetch(
    send: SendRequest,
    folder: Path,
    progress: OnBytes = lambda done, size: None,
    sleep: Callable[[float], object] = time.sleep,
    log: str = "the container's log",
) -> WarmArtifact:
    """Bring the container's artifact into ``folder``, replacing one with the same key.

    The artifact is stored completely or not at all. ``log`` names the log that errors refer to.
    Raises Refused when there is nothing to fetch or the image is too old, EngineError when the
    container fails or sends other bytes than its manifest lists, UserError when the disk is full.
    """
    request = partial(_request, send, sleep, log)
    text = request({})
    artifact = _read_manifest(text, folder)
    full = UserError(
        f"the disk of {folder} is full: the artifact needs {artifact.size / 1e6:,.1f} MB",
        "free some space or choose another folder; nothing was stored",
        code="disk-full",
    )
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if shutil.disk_usage(existing).free < artifact.size:
        raise full
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _store(request, artifact, text, progress)
    except OSError as error:
        raise full if error.errno in _DISK_FULL else error from error
    return artifact


def _store(
    request: Callable[..., bytes], artifact: WarmArtifact, manifest: bytes, progress: OnBytes
) -> None:
    with replacing(artifact.archive) as draft:
        sha256 = hashlib.sha256()
        progress(0, artifact.size)
        with draft.open("wb") as stream:
            for done in range(0, artifact.size, PART_BYTES):
                length = min(PART_BYTES, artifact.size - done)
                part = request({"offset": done, "length": length}, length)
                stream.write(part)
                sha256.update(part)
                progress(done + length, artifact.size)
        if sha256.hexdigest() != artifact.sha256:
            message = f"the fetched bytes of {artifact.key} do not match the container's manifest"
            raise EngineError(message, _REPEAT, "checksum-mismatch")
        draft.chmod(0o644)  # the container's own user reads it
        # Without a manifest there is no artifact: no reader combines an old one with new bytes.
        artifact.manifest.unlink(missing_ok=True)
    with replacing(artifact.manifest) as draft:
        draft.write_bytes(manifest)
        draft.chmod(0o644)


def _request(
    send: SendRequest,
    sleep: Callable[[float], object],
    log: str,
    body: dict[str, Any],
    length: int | None = None,
) -> bytes:
    """The response to ``body``, of ``length`` bytes where given; retried after pauses while the
    container fails, or no or only a part of a response arrives."""
    for pause in (*PAUSES, None):
        try:
            response = send(body)
            if response.status != 200:
                failure = _refusal(response, log)
            elif length in (None, len(response.body)):
                return response.body
            else:
                size = f"{len(response.body):,} of {length:,} bytes"
                message = f"a part of the artifact is truncated: {size}"
                failure = EngineError(message, _REPEAT, "incomplete-response")
        except IncompleteResponse as incomplete:
            failure = incomplete.error
        if pause is None or isinstance(failure, Refused):
            raise failure
        sleep(pause)
    raise AssertionError("the last attempt raises")


def _refusal(response: WarmReply, log: str) -> PeagleError:
    text = response.body[:2000].decode("utf-8", errors="replace")
    reason = engine_message(text)[:300] or "empty response"
    if response.status >= 500:
        message = f"the container failed to collect ({response.status}): {reason}"
        return EngineError(message, f"see {log}", "collection-failed")
    if response.status == 409:
        return Refused(f"there is nothing to collect: {reason}", f"see {log}", "nothing-compiled")
    if response.status == 403:
        message = f"the container does not offer compile caches: {reason}"
        return Refused(message, f"start it with {WARM_MODE_VARIABLE}={COLLECT}", "not-collecting")
    message = f"the container does not support warm starts ({response.status}: {reason})"
    return Refused(message, _REBUILD, "image-too-old")


def _read_manifest(text: bytes, folder: Path) -> WarmArtifact:
    """The artifact of a manifest. Raises Refused for a format of another version."""
    with parsing("the container's manifest", Refused, _REBUILD, "manifest-format"):
        document = json_reader.read(text, "the manifest")
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}")
        key, sha256 = str(document["key"]), str(document["sha256"])
        if not HEX_32.fullmatch(key) or not SHA256.fullmatch(sha256):
            raise ValueError(f"key {key!r}, sha256 {sha256!r}")
        return WarmArtifact(
            key=key,
            archive=folder / f"{key}.tar.gz",
            manifest=folder / f"{key}.json",
            size=count_of(document["size"]),
            sha256=sha256,
            files=count_of(document["files"]),
            unpacked_bytes=count_of(document["unpacked_bytes"]),
            seconds_cold=float(document["seconds_cold"]),
        )
