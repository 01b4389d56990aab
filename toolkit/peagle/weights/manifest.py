"""The manifest ``peagle-weights.json``: which files belong in the folders, and from which source.

A sync writes it before the first byte (``complete`` false) and after the last one (true), so that
one small object tells a partial copy from a complete one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.errors import Fix, NotFound, PeagleError, UserError
from peagle.planning.plan import Plan
from peagle.text import sanitize
from peagle.weights.bucket import Bucket
from peagle.weights.layout import MANIFEST, PARTS, WeightsPrefix, synced_below
from peagle_serve import json_reader
from peagle_serve.checkpoint import first_names

_FORMAT = 1


@dataclass(frozen=True)
class FileEntry:
    """A file: its size in bytes, the Hub's SHA-256 in hex where it has one, and S3's checksum
    (``ALGORITHM:value``) once the file is there. With ``part_size``, that is the checksum of the
    checksums of parts of so many bytes."""

    size: int
    sha256: str | None = None
    checksum: str | None = None
    part_size: int | None = None


@dataclass(frozen=True)
class FolderEntry:
    """The contents of target/ or drafter/, and their source.

    ``pair`` is the catalogue's name of the pair that was synced, ``parallel_drafting`` how the
    drafter drafts (``None``: unknown), and ``given`` whether the user named the source. ``commit``
    is the Hub's ``org/name@commit`` of a source in its cache.
    """

    source: str
    complete: bool
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    pair: str = ""
    parallel_drafting: bool | None = None
    given: bool = False
    commit: str = ""


Manifest = dict[str, FolderEntry]
"""Folders by part."""


def read_manifest(bucket: Bucket, prefix: WeightsPrefix) -> Manifest:
    """The manifest at a prefix; empty when there is none.

    Raises UserError for an object of that name that is something else.
    """
    try:
        document = json_reader.read(bucket.read(prefix.manifest_key), "the manifest")
        if document["format"] != _FORMAT:
            raise ValueError("another format")
        folders = document["folders"]
        return {part: _read_folder(folders[part]) for part in PARTS if part in folders}
    except Missing:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError) as reason:
        raise UserError(
            f"{prefix.uri}{MANIFEST} is damaged, or was written by a newer version",
            "remove the object; the next sync compares the files again",
            code="manifest-damaged",
        ) from reason


def write_manifest(bucket: Bucket, prefix: WeightsPrefix, manifest: Manifest) -> None:
    document = {
        "format": _FORMAT,
        "folders": {part: asdict(folder) for part, folder in manifest.items()},
    }
    content = json.dumps(document, indent=2).encode()
    bucket.call("put_object", Key=prefix.manifest_key, Body=content, ContentType="application/json")


def _read_folder(document: Mapping[str, Any]) -> FolderEntry:
    files = {name: FileEntry(**entry) for name, entry in document["files"].items()}
    if any(type(entry.size) is not int or entry.size < 0 for entry in files.values()):
        raise ValueError("no size")
    drafting = document.get("parallel_drafting")
    return FolderEntry(
        source=sanitize(document["source"]),
        complete=bool(document["complete"]),
        files=files,
        pair=sanitize(document.get("pair", "")),
        parallel_drafting=drafting if isinstance(drafting, bool) else None,
        given=bool(document.get("given", False)),
        commit=sanitize(document.get("commit", "")),
    )


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


def mismatch(plan: Plan, part: str, folder: FolderEntry) -> str:
    """Why the folder holds other weights than the plan's; "" when it does not, or is unknown."""
    target = folder.pair.partition("+")[0]
    if target and target != plan.target.id:
        return f"according to {MANIFEST}, the {part} there is from {folder.pair}"
    speculation = plan.speculation
    if part != "drafter" or speculation is None or folder.parallel_drafting is None:
        return ""
    if folder.parallel_drafting == speculation.parallel_drafting:
        return ""
    kinds = {True: "a P-EAGLE head", False: "a head that drafts one token at a time"}
    return (
        f"according to {MANIFEST}, the folder holds {kinds[folder.parallel_drafting]} of "
        f"{folder.pair}; the plan needs {kinds[speculation.parallel_drafting]}"
    )


def incomplete(folder: FolderEntry, below: Mapping[str, int] | None) -> str:
    """What is missing compared with the manifest; "" when nothing is. ``below`` is size by name,
    or ``None`` where the prefix was not listed."""
    present = below or {}
    missing = [name for name in folder.files if name not in present]
    differing = [
        name for name, entry in folder.files.items() if present.get(name, entry.size) != entry.size
    ]
    if below is not None and missing:
        return f"it lacks {first_names(missing)}"
    if differing:
        return f"other sizes than the source have {first_names(differing)}"
    return "" if folder.complete else "the sync has not finished"


def _synced_above(bucket: Bucket, prefix: WeightsPrefix) -> WeightsPrefix | None:
    """The prefix whose target/ or drafter/ ``prefix`` is, according to the manifest there."""
    for part in PARTS:
        if not f"/{prefix.key}".endswith(f"/{part}/"):
            continue
        above = WeightsPrefix(prefix.bucket, prefix.key.removesuffix(f"{part}/"))
        with suppress(AccessDenied, UserError):
            return above if part in read_manifest(bucket, above) else None
    return None


def copied_pair(aws: Aws, location: str) -> str:
    """The catalogue's pair, in full, whose own head was synced to this ``s3://`` folder; empty for
    another head, and where no manifest can be read."""
    with suppress(PeagleError):
        folder = WeightsPrefix.parse(f"{location.rstrip('/')}/")
        bucket = Bucket(aws, folder.bucket)
        above = _synced_above(bucket, folder)
        entry = read_manifest(bucket, above).get("drafter") if above else None
        if entry and above and folder.uri == above.part_uri("drafter") and not entry.given:
            return entry.pair
    return ""


def refuse_neighbors(bucket: Bucket, prefix: WeightsPrefix, present: Collection[str]) -> None:
    """Raises NotFound where a pair was synced one level above the prefix or below it, and not to
    the prefix itself."""
    if prefix.manifest_key in present:
        return
    if above := _synced_above(bucket, prefix):
        neighbor, where = above, f"{prefix.uri} is a folder of the pair at {above.uri}"
    elif below := synced_below(prefix, present):
        names = first_names([pair.key.removeprefix(prefix.key) for pair in below])
        neighbor, where = below[0], f"no pair was synced to {prefix.uri}, but below it: {names}"
    else:
        return
    fix = Fix("use that prefix", ("peagle", "weights", "list", neighbor.uri))
    raise NotFound(where, fix, code="other-prefix")
