"""A prefix of weights in its bucket: the objects and the manifest.

The manifest ``peagle-weights.json`` says which files belong in the folders, and from which source.
A sync writes it before the first byte (``complete`` false) and after the last one (true), so that
one small object tells a partial copy from a complete one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter

from peagle.aws.client import Aws, translated
from peagle.aws.errors import Missing
from peagle.aws.s3 import ALGORITHM, PART_SIZE
from peagle.errors import PeagleError, UserError
from peagle.planning.company import encrypted_by
from peagle.text import sanitize
from peagle.weights.layout import MANIFEST, PARTS, WeightsPrefix
from peagle_serve import json_reader

_PART_COUNT = re.compile(r"-\d+$")
_FORMAT = 1


@dataclass(frozen=True)
class ObjectInfo:
    """What S3 reports about an object. ``checksum`` is ``SHA256:value``, empty without one. With
    ``part_size`` it is that of the checksums of parts of so many bytes (0: not recorded)."""

    size: int
    etag: str
    checksum: str
    part_size: int | None
    metadata: Mapping[str, str]


class Bucket:
    """A bucket. What is written to it is encrypted with ``kms_key``, or in the bucket's own way."""

    def __init__(self, aws: Aws, name: str, kms_key: str | None = None) -> None:
        self.aws, self.name = aws, name
        self.encryption = encrypted_by(kms_key)
        aws.client("s3")  # created here, before several threads need it

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        more = self.encryption if operation == "put_object" else {}
        return self.aws.call("s3", operation, Bucket=self.name, **parameters, **more)

    def sizes(self, prefix: str) -> dict[str, int]:
        """Every key below the prefix with its size in bytes."""
        return {entry["Key"]: entry["Size"] for entry in self._entries(prefix)}

    def etags(self, prefix: str) -> dict[str, str]:
        """Every key below the prefix with its ETag."""
        return {entry["Key"]: entry["ETag"] for entry in self._entries(prefix)}

    def _entries(self, prefix: str) -> Iterator[dict[str, Any]]:
        return self.aws.items("s3", "list_objects_v2", "Contents", Bucket=self.name, Prefix=prefix)

    def read(self, key: str) -> bytes:
        """The content of a small object, cut off after what the JSON reader accepts. Raises
        Missing."""
        response = self.call("get_object", Key=key)
        with closing(response["Body"]) as body, translated("s3", self.aws.region):
            content: bytes = body.read(json_reader.LIMIT + 1)
        return content

    def head(self, key: str) -> ObjectInfo | None:
        """Size, checksum and metadata of an object; ``None`` where there is none."""
        response = self.aws.find(
            "s3", "head_object", Bucket=self.name, Key=key, ChecksumMode="ENABLED"
        )
        if response is None:
            return None
        metadata, value = response.get("Metadata", {}), response.get(f"Checksum{ALGORITHM}", "")
        part_size = None
        if value and _PART_COUNT.search(response["ETag"].strip('"')):
            text = metadata.get(PART_SIZE, "")
            part_size = int(text) if text.isdecimal() and len(text) < 15 else 0
        checksum = f"{ALGORITHM}:{_PART_COUNT.sub('', value)}" if value else ""
        return ObjectInfo(
            response["ContentLength"], response["ETag"], checksum, part_size, metadata
        )


_Text = Annotated[str, AfterValidator(sanitize)]


@dataclass(frozen=True)
class FileEntry:
    """A file: its size in bytes, the Hub's SHA-256 in hex where it has one, and S3's checksum
    (``ALGORITHM:value``) once the file is there."""

    size: Annotated[int, Field(strict=True, ge=0)]
    sha256: str | None = None
    checksum: str | None = None


@dataclass(frozen=True)
class FolderEntry:
    """The contents of target/ or drafter/, and their source.

    ``pair`` is the catalogue's name of the pair that was synced, and ``given`` says whether the
    user named the source. ``commit`` is the Hub's ``org/name@commit`` of a source in its cache.
    """

    source: _Text
    complete: bool
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    pair: _Text = ""
    given: bool = False
    commit: _Text = ""


Manifest = dict[str, FolderEntry]
"""Folders by part."""

_FOLDER = TypeAdapter(FolderEntry)


def read_manifest(bucket: Bucket, prefix: WeightsPrefix) -> Manifest:
    """The manifest at a prefix; empty when there is none. Raises UserError for an object of that
    name that is something else."""
    try:
        document = json_reader.read(bucket.read(prefix.manifest_key), "the manifest")
        if document["format"] != _FORMAT:
            raise ValueError("another format")
        folders = document["folders"]
        return {part: _FOLDER.validate_python(folders[part]) for part in PARTS if part in folders}
    except Missing:
        return {}
    except (ValueError, LookupError, TypeError) as reason:
        raise UserError(
            f"{prefix.uri}{MANIFEST} is damaged, or was written by a newer version",
            "remove the object; the next sync compares the files again",
            code="manifest-damaged",
        ) from reason


def write_manifest(bucket: Bucket, prefix: WeightsPrefix, manifest: Manifest) -> None:
    folders = {part: asdict(folder) for part, folder in manifest.items()}
    content = json.dumps({"format": _FORMAT, "folders": folders}, indent=2).encode()
    bucket.call("put_object", Key=prefix.manifest_key, Body=content, ContentType="application/json")


def sync_command(
    prefix: WeightsPrefix, manifest: Manifest, parts: Collection[str]
) -> tuple[str, ...]:
    """The command that completes these parts; empty where the manifest does not name the pair."""
    folders = {part: manifest[part] for part in PARTS if part in parts and part in manifest}
    pair = max((folder.pair for folder in folders.values()), key=len, default="")
    if not pair:
        return ()
    command = ["peagle", "weights", "sync", pair, prefix.uri]
    command += [f"--{part}-only" for part in folders if len(folders) == 1]
    for part, folder in folders.items():
        command += [f"--{part}-from", folder.source] if folder.given else []
    return tuple(command)


def copied_pair(aws: Aws, location: str) -> str:
    """The catalogue's pair, in full, whose own head was synced to this ``s3://`` folder; empty for
    another head, and where no manifest can be read."""
    with contextlib.suppress(PeagleError):
        part, above = WeightsPrefix.parse(f"{location.rstrip('/')}/").in_pair
        if part == "drafter":
            entry = read_manifest(Bucket(aws, above.bucket), above).get(part)
            return entry.pair if entry and not entry.given else ""
    return ""
