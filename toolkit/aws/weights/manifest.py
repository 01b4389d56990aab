"""peagle-weights.json beside the folders: what should lie in them, from where, and whether it does.

It is written before the first byte (``complete`` false) and after the last one (true), so a prefix
that is only half copied can be told from a whole one by anybody who reads one small object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from toolkit.aws.errors import Missing
from toolkit.aws.weights.bucket import Bucket
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
    """What should lie in target/ or drafter/, and where it is from."""

    source: str
    complete: bool
    files: Mapping[str, Entry] = field(default_factory=dict)


Manifest = dict[str, Folder]
"""Folders by part."""


def read_manifest(bucket: Bucket, place: Place) -> Manifest:
    """What is written there; empty when nothing is.

    Raises UserError for an object of that name that is something else.
    """
    try:
        document = json.loads(bucket.read(place.manifest))
        found = document["folders"]
        return {part: _folder(found[part]) for part in PARTS if part in found}
    except Missing:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{place.uri}{place.manifest.rpartition('/')[2]} is damaged, or of a newer toolkit",
            "remove it; what lies there is then compared anew",
        ) from error


def write_manifest(bucket: Bucket, place: Place, pair: str, manifest: Manifest) -> None:
    """Put it there."""
    document = {
        "format": _FORMAT,
        "pair": pair,
        "folders": {part: asdict(folder) for part, folder in manifest.items()},
    }
    content = json.dumps(document, indent=2).encode()
    bucket.call("put_object", Key=place.manifest, Body=content, ContentType="application/json")


def _folder(document: dict[str, Any]) -> Folder:
    files = {name: Entry(**entry) for name, entry in document["files"].items()}
    return Folder(str(document["source"]), bool(document["complete"]), files)
