"""peagle-weights.json beside the folders: what should lie in them, from where, and whether it does.

It is written before the first byte (``complete`` false) and after the last one (true), so a prefix
that is only half copied can be told from a whole one by anybody who reads one small object.

What a manifest says of one folder, measured by a plan and by what lies there.

The prefix of a synced pair close to an address that is one level too high or too low.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from peagle.aws.errors import AccessDenied, Missing
from peagle.errors import NotFound, UserError
from peagle.findings import Finding
from peagle.planning.plan import Plan
from peagle.text import sanitize
from peagle.weights.bucket import Bucket
from peagle.weights.layout import MANIFEST, PARTS, Place, foreign_objects, synced_below

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
        source=sanitize(document["source"]),
        complete=bool(document["complete"]),
        files={name: _entry(entry) for name, entry in document["files"].items()},
        pair=sanitize(document.get("pair", "")),
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


_SHOWN = 3


def another_pair(plan: Plan, part: str, folder: Folder) -> str:
    """Why the folder is not the plan's; "" when it is, or when nobody knows."""
    target = folder.pair.partition("+")[0]
    if target and target != plan.target.id:
        return f"{MANIFEST} says that the {part} there is that of {folder.pair}"
    speculation = plan.speculation
    if part != "drafter" or speculation is None or folder.parallel_drafting is None:
        return ""
    if folder.parallel_drafting == speculation.parallel_drafting:
        return ""
    kinds = {True: "a P-EAGLE head", False: "a head that drafts one token at a time"}
    return (
        f"{MANIFEST} says that {kinds[folder.parallel_drafting]} lies there, of {folder.pair}, and "
        f"the plan starts {kinds[speculation.parallel_drafting]}"
    )


def incomplete(folder: Folder, below: Mapping[str, int] | None) -> str:
    """What is not there as the manifest has it; "" when all is."""
    seen = below or {}
    missing = [name for name in folder.files if name not in seen]
    other = [n for n, entry in folder.files.items() if n in seen and seen[n] != entry.size]
    if below is not None and missing:
        return f"{_some(missing)} not there"
    if other:
        return f"{_some(other)} of another size than was copied"
    return "" if folder.complete else "the copy has not come to its end"


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_SHOWN])
    if len(names) > _SHOWN:
        return f"{len(names)} files, such as {shown}, are"
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def synced_above(bucket: Bucket, place: Place) -> Place | None:
    """The prefix whose target/ or drafter/ the place is, as the manifest beside it says."""
    for part in PARTS:
        if not f"/{place.prefix}".endswith(f"/{part}/"):
            continue
        above = Place(place.bucket, place.prefix.removesuffix(f"{part}/"))
        with suppress(AccessDenied, UserError):
            return above if part in read_manifest(bucket, above) else None
    return None


def within_a_pair(bucket: Bucket, place: Place) -> Iterator[Finding]:
    """Why nothing may be copied to a folder of a synced pair."""
    if above := synced_above(bucket, place):
        yield foreign_objects(
            place, f"it is a folder of the pair that lies at {above.uri}",
            f"name the prefix above it: peagle weights list {above.uri}",
        )  # fmt: skip


def refuse_beside(bucket: Bucket, place: Place, there: Mapping[str, int]) -> None:
    """Raises NotFound where a pair was synced one level above the place, or below it, and not to
    the place itself."""
    if place.manifest in there:
        return
    if above := synced_above(bucket, place):
        raise NotFound(f"{place.uri} is a folder of the pair that lies at {above.uri}",
                       f"name that: peagle weights list {above.uri}")  # fmt: skip
    if below := synced_below(place, there):
        names = ", ".join(one.prefix.removeprefix(place.prefix) for one in below[:3])
        raise NotFound(f"no pair lies at {place.uri} itself, but below it: {names}",
                       f"name that: peagle weights list {below[0].uri}")  # fmt: skip
