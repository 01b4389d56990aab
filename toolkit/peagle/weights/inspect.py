"""What lies at a place: file by file, whole or half, with S3's own checksums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from peagle.aws.client import Aws
from peagle.aws.s3 import delete_objects
from peagle.errors import NotFound, Refused
from peagle.findings import Finding
from peagle.weights.bucket import Bucket, region_of
from peagle.weights.layout import PARTS, Place, strangers
from peagle.weights.lock import Held, held, read_lock
from peagle.weights.manifest import Entry, Manifest, command_for, read_manifest, refuse_beside
from peagle.weights.warm_starts import StoredWarmStart, stored_warm_starts

State = Literal["whole", "unchecked", "differs", "half", "missing"]
"""``whole``: size and checksum are those of the manifest; ``unchecked``: the size is, and the copy
has not come to its end yet; ``half``: an upload was begun."""


@dataclass(frozen=True)
class Seen:
    """One file: ``size`` should be there, ``there`` is, in bytes."""

    name: str
    state: State
    size: int
    there: int
    checksum: str


@dataclass(frozen=True)
class Look:
    """A place as it is. ``others`` are objects that nobody of ours has brought, with their sizes;
    ``lock`` is whoever copies or removes there just now."""

    place: Place
    manifest: Manifest
    files: Mapping[str, tuple[Seen, ...]]
    others: Mapping[str, int]
    findings: tuple[Finding, ...]
    warm: tuple[StoredWarmStart, ...] = ()
    lock: Held | None = None

    @property
    def complete(self) -> bool:
        """Whether all that should be there is, and may be mounted."""
        said = [folder.complete for folder in self.manifest.values()]
        seen = [file.state == "whole" for files in self.files.values() for file in files]
        return bool(said) and all(said) and all(seen) and not self.findings

    @property
    def pairs(self) -> tuple[str, ...]:
        """The catalogue's names of the pairs that were copied there, usually one."""
        names = (folder.pair for folder in self.manifest.values())
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def mountable(self) -> bool:
        """Whether nothing is known that keeps it from being mounted; of folders that nobody synced
        nobody knows whether they are whole."""
        return self.complete or not (self.manifest or self.findings)

    @property
    def finish(self) -> str:
        """The command that brings what is not there yet; "" when all is, or nobody knows it."""
        half = [
            part
            for part, folder in self.manifest.items()
            if not folder.complete or any(f.state != "whole" for f in self.files[part])
        ]
        return command_for(self.place, self.manifest, half) if half else ""

    def artefact(self, key: str) -> StoredWarmStart:
        """The warm start with that key. Raises NotFound, with the keys that there are."""
        for one in self.warm:
            if one.key == key:
                return one
        known = ", ".join(one.key for one in self.warm)
        raise NotFound(f"no warm start {key} lies at {self.place.uri}",
                       f"there are {known}" if known else "none is there")  # fmt: skip

    @property
    def size(self) -> int:
        """Bytes that are there and cost, what is half uploaded included."""
        files = (file.there for files in self.files.values() for file in files)
        return sum(self.others.values()) + sum(files) + sum(one.size for one in self.warm)


def look(aws: Aws, place: Place) -> Look:
    """Look at it. Raises NotFound when bucket or prefix hold nothing, or when the pair that is
    meant lies one level above or below."""
    if (found := region_of(aws, place.bucket)) is None:
        raise NotFound(f"there is no bucket {place.bucket}", "check the address")
    if found != aws.region:
        raise Refused(f"the bucket {place.bucket} is in {found}", f"say --region {found}")
    bucket = Bucket(aws, place.bucket)
    begun = bucket.begun(place.prefix)  # first, since an upload can become an object meanwhile
    there = bucket.sizes(place.prefix)
    if not there and not begun:
        raise NotFound(f"nothing lies below {place.uri}", "check the address")
    refuse_beside(bucket, place, there)
    manifest = read_manifest(bucket, place) if place.manifest in there else {}
    named = {place.key(part, name) for part, folder in manifest.items() for name in folder.files}
    warm = tuple(
        one for at in place.mounted for one in stored_warm_starts(bucket, at, there, manifest)
    )
    ours = {*named, place.manifest, place.lock, *(key for one in warm for key in one.objects)}
    return Look(
        place,
        manifest,
        {part: tuple(_seen(bucket, place, part, manifest, there, begun)) for part in manifest},
        {key: size for key, size in there.items() if key not in ours},
        tuple(strangers(place, there, named, PARTS)),
        warm,
        read_lock(bucket, place) if place.lock in there else None,
    )


def remove_warm(aws: Aws, place: Place, one: StoredWarmStart) -> None:
    """Remove one warm start, the manifest first: without it the rest is none."""
    for name in sorted(one.objects):
        delete_objects(aws, place.bucket, [name])


def remove(aws: Aws, found: Look, take_over: bool = False) -> None:
    """Remove what the manifest names, its unfinished uploads, the warm starts, and the manifest
    last; nothing else, so an interrupted removal can be repeated.

    Raises Refused when somebody else is at work there, unless they are to be taken over.
    """
    place = found.place
    keys = [place.key(part, seen.name) for part in found.files for seen in found.files[part]]
    keys += [key for one in found.warm for key in one.objects]
    with held(Bucket(aws, place.bucket), place, "removes what is", take_over) as lock:
        delete_objects(aws, place.bucket, keys)
        lock.keep(now=True)
        delete_objects(aws, place.bucket, [place.manifest])


def _seen(bucket: Bucket, place: Place, part: str, manifest: Manifest, there: Mapping[str, int],
          begun: Mapping[str, list[str]]) -> Iterator[Seen]:  # fmt: skip
    for name, entry in sorted(manifest[part].files.items()):
        key = place.key(part, name)
        if key in there:
            yield _object(bucket, key, name, entry)
            continue
        kept = sum(
            part.size for upload in begun.get(key, ()) for part in bucket.kept(key, upload).values()
        )
        state: State = "half" if key in begun else "missing"
        yield Seen(name, state, entry.size, kept, "")


def _object(bucket: Bucket, key: str, name: str, entry: Entry) -> Seen:
    head = bucket.head(key)
    if head is None:
        return Seen(name, "missing", entry.size, 0, "")
    state: State = "whole"
    if head.size != entry.size or (entry.checksum and head.checksum != entry.checksum):
        state = "differs"
    elif not entry.checksum:
        state = "unchecked"
    return Seen(name, state, entry.size, head.size, head.checksum)
