"""The manifest of an artifact: its subject, size and checksum, read without trust."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from peagle_serve import json_reader
from peagle_serve.contract import ARTIFACT_FORMAT, MANIFEST_SUFFIX, SHA256
from peagle_serve.json_reader import InvalidJson, Limits, read
from peagle_serve.warm.cache_key import key_of

LARGEST = 1 << 20
"""Bytes of a manifest."""

_MOST = 1 << 50
_NUMBERS = (
    ("size", (int,), _MOST),
    ("files", (int,), _MOST),
    ("unpacked_bytes", (int,), _MOST),
    ("seconds_cold", (int, float), 1e9),
)
"""Key, types, largest value."""
_LONGEST_SHOWN = 40


class Damaged(Exception):
    """An artifact that is damaged or invalid; the message says how."""


class Manifest(NamedTuple):
    """``size`` and ``sha256`` are those of the archive, ``files`` and ``unpacked_bytes`` of its
    content. ``seconds_cold``: how long the engine that compiled it took from start to healthy."""

    key: str
    subject: Mapping[str, Any]
    size: int
    sha256: str
    files: int
    unpacked_bytes: int
    seconds_cold: float
    made: str

    def document(self) -> dict[str, Any]:
        """The content of the file."""
        return {"format": ARTIFACT_FORMAT, **self._asdict()}


def open_regular(file: Path) -> BufferedReader:
    """Open a regular file for reading, without waiting for a pipe.

    Raises Damaged for anything but a regular file, OSError.
    """
    try:
        return json_reader.open_regular(file)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Damaged(f"{file.name} is not a regular file") from None
        raise


def read_manifest(file: Path) -> Manifest:
    """The manifest in ``file``, whose name is its key. Raises Damaged, OSError."""
    with open_regular(file) as stream:
        text = stream.read(LARGEST + 1)
    try:
        return manifest_of(read(text, file.name, limits=Limits(size=LARGEST)), file.name)
    except InvalidJson as error:
        raise Damaged(str(error)) from None


def sha256_in(content: bytes) -> str | None:
    """The SHA-256 of the archive, from a manifest of which nothing else is checked; ``None``
    without a valid one."""
    try:
        found = read(content, "the manifest", limits=Limits(size=LARGEST))["sha256"]
    except (InvalidJson, LookupError, TypeError):
        return None
    return found if isinstance(found, str) and SHA256.fullmatch(found) else None


def manifest_of(document: Any, name: str) -> Manifest:
    """The manifest in ``document``; ``name`` is its file name. Raises Damaged."""
    if not isinstance(document, dict):
        raise Damaged(f"{name} is not a JSON object")
    if document.get("format") != ARTIFACT_FORMAT:
        raise Damaged(
            f"{name} has the format {_shown(document.get('format'))}, not {ARTIFACT_FORMAT}"
        )
    for key, kinds, most in _NUMBERS:
        value: Any = document.get(key, 0 if key == "seconds_cold" else None)
        if type(value) not in kinds or not 0 <= value <= most:
            raise Damaged(f"{name} has the {key} {_shown(value)}")
    subject, digest = document.get("subject"), document.get("sha256")
    if not isinstance(subject, dict) or key_of(subject) != document.get("key"):
        raise Damaged(f"{name} has a key that does not match its subject")
    if name != f"{document['key']}{MANIFEST_SUFFIX}":
        raise Damaged(f"{name} has the key {document['key']}")
    if not isinstance(digest, str) or not SHA256.fullmatch(digest):
        raise Damaged(f"{name} has no sha256")
    return Manifest(
        key=document["key"],
        subject=subject,
        size=document["size"],
        sha256=digest,
        files=document["files"],
        unpacked_bytes=document["unpacked_bytes"],
        seconds_cold=float(document.get("seconds_cold", 0)),
        made=str(document.get("made", ""))[:_LONGEST_SHOWN],
    )


def _shown(value: object) -> str:
    return repr(value)[:_LONGEST_SHOWN]
