"""peagle-weights.json beside the folders: what should lie in them, from where, and whether it does.

It is written before the first byte (``complete`` false) and after the last one (true), so a prefix
that is only half copied can be told from a whole one by anybody who reads one small object.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from toolkit.aws.errors import Missing
from toolkit.aws.weights.bucket import Bucket
from toolkit.aws.weights.foreign import printable
from toolkit.aws.weights.layout import PARTS, Place
from toolkit.errors import UserError

_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """A file: its size in bytes, the hub's SHA-256 in hex where it has one, and S3's checksum
    (``ALGORITHM:value``) once it is there."""

    size: int
    sha256: str | None = None
    checksum: str | None = None


@dataclass(frozen=True)
class Folder:
    """What should lie in target/ or drafter/, and where it is from.

    ``pair`` is the catalogue's name of the pair that it was copied for, ``parallel_drafting`` how
    a drafter is started (``None``: nobody said), and ``given`` whether the source was named by
    the user and not by the catalogue.
    """

    source: str
    complete: bool
    files: Mapping[str, Entry] = field(default_factory=dict)
    pair: str = ""
    parallel_drafting: bool | None = None
    given: bool = False


Manifest = dict[str, Folder]
"""Folders by part."""


@dataclass(frozen=True)
class Copied:
    """The pair that is copied, in the words of ``Folder``; ``given`` are the parts whose source the
    user named."""

    pair: str
    parallel_drafting: bool | None = None
    given: frozenset[str] = frozenset()


def read_manifest(bucket: Bucket, place: Place) -> Manifest:
    """What is written there; empty when nothing is.

    Raises UserError for an object of that name that is something else.
    """
    try:
        document = json.loads(bucket.read(place.manifest))
        if document["format"] != _FORMAT:
            raise ValueError("another format")
        found = document["folders"]
        return {part: _folder(found[part]) for part in PARTS if part in found}
    except Missing:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{place.uri}{place.manifest.rpartition('/')[2]} is damaged, or of a newer toolkit",
            "remove it; what lies there is then compared anew",
        ) from error


def write_manifest(bucket: Bucket, place: Place, manifest: Manifest) -> None:
    """Put it there."""
    document = {
        "format": _FORMAT,
        "folders": {part: asdict(folder) for part, folder in manifest.items()},
    }
    content = json.dumps(document, indent=2).encode()
    bucket.call("put_object", Key=place.manifest, Body=content, ContentType="application/json")


def _folder(document: dict[str, Any]) -> Folder:
    drafting = document.get("parallel_drafting")
    return Folder(
        source=printable(document["source"]),
        complete=bool(document["complete"]),
        files={name: _entry(entry) for name, entry in document["files"].items()},
        pair=printable(document.get("pair", "")),
        parallel_drafting=drafting if isinstance(drafting, bool) else None,
        given=bool(document.get("given", False)),
    )


def _entry(document: dict[str, Any]) -> Entry:
    entry = Entry(**document)
    if type(entry.size) is not int or entry.size < 0:
        raise ValueError("no size")
    return entry


def command_for(place: Place, manifest: Manifest, parts: Collection[str]) -> str:
    """The command that brings these parts there, as far as the manifest tells; else ""."""
    folders = {part: manifest[part] for part in PARTS if part in parts and part in manifest}
    pair = max((folder.pair for folder in folders.values()), key=len, default="")
    if not pair:
        return ""
    words = ["peagle", "weights", "sync", pair, place.uri]
    words += [f"--{part}-only" for part in folders if len(folders) == 1]
    for part, folder in folders.items():
        words += [f"--{part}-from", folder.source] if folder.given else []
    return shlex.join(words)
