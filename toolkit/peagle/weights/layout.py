"""Where the files of a pair lie below one prefix, and what must not lie beside them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from peagle.errors import UserError
from peagle.findings import Finding, error
from peagle_serve.contract import WARM_FOLDER

PARTS = ("target", "drafter")
"""The folders below the prefix."""

MANIFEST = "peagle-weights.json"
"""Lies beside the folders, and says what should be in them."""

LOCK = "peagle-weights.lock"
"""Lies there while somebody copies or removes, and says who."""

_ARTEFACT = re.compile(r"([0-9a-f]{32})\.(?:tar\.gz|json)")

_URI = re.compile(r"s3://([a-z0-9][a-z0-9.\-]{1,61}[a-z0-9])((?:/[^\s%/]+)*)/?")
_LONGEST_URI = 1024 - len("/drafter/")
"""Of an S3Uri, from SageMaker's service model, less the folder."""
_SHOWN = 3


@dataclass(frozen=True)
class Place:
    """A bucket, and a prefix in it that is empty or ends with a slash."""

    bucket: str
    prefix: str

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix/``."""
        return f"s3://{self.bucket}/{self.prefix}"

    def folder(self, part: str) -> str:
        """The folder of target or drafter as ``s3://``, with its slash."""
        return f"{self.uri}{part}/"

    def key(self, part: str, name: str) -> str:
        """The key of a file of target or drafter."""
        return f"{self.prefix}{part}/{name}"

    @property
    def manifest(self) -> str:
        """The key of the manifest."""
        return self.prefix + MANIFEST

    @property
    def lock(self) -> str:
        """The key of the lock."""
        return self.prefix + LOCK

    @property
    def mounted(self) -> tuple[Place, ...]:
        """What may be mounted, and holds warm starts then: all of it, or one of its folders, as
        for a target that is served without its drafter."""
        return (self, *(Place(self.bucket, f"{self.prefix}{part}/") for part in PARTS))

    def artefact(self, key: str) -> str | None:
        """Of which warm start an object is a part; ``None`` for other objects."""
        folder = f"{self.prefix}{WARM_FOLDER}/"
        found = _ARTEFACT.fullmatch(key[len(folder) :]) if key.startswith(folder) else None
        return found[1] if found else None


def place_of(uri: str) -> Place:
    """The place that ``uri`` names. Raises UserError for an address that SageMaker cannot mount."""
    found = _URI.fullmatch(uri)
    if found is None or len(uri) > _LONGEST_URI:
        raise UserError(
            f"{uri!r} is not an s3:// prefix that SageMaker mounts",
            "write it like s3://bucket/folder, without spaces, % and empty parts",
        )
    prefix = found[2].strip("/")
    return Place(found[1], f"{prefix}/" if prefix else "")


def synced_below(place: Place, there: Mapping[str, int]) -> tuple[Place, ...]:
    """Prefixes below the place that have a manifest of their own."""
    return tuple(
        Place(place.bucket, key.removesuffix(MANIFEST))
        for key in sorted(there)
        if key.endswith(f"/{MANIFEST}") and key != place.manifest
    )


def strangers(place: Place, there: Mapping[str, int], wanted: Collection[str],
              others: Collection[str]) -> Iterator[Finding]:  # fmt: skip
    """Why the prefix could not be mounted with what lies there already.

    ``there`` is size by key, ``wanted`` the keys that will be written, and ``others`` the parts
    (``target``, ``drafter``) that are left as they are. SageMaker fails a deployment for 0-byte
    folder keys and for keys that are file and folder at once, and mounts every other object too;
    what engines compiled, below ``warm/``, is meant to be mounted.
    """
    warm = (key for key in there if any(at.artefact(key) for at in place.mounted))
    ours = {place.manifest, place.lock, *wanted, *warm}
    folders = sorted(key for key in there if key.endswith("/"))
    if folders:
        yield error(
            "folder-keys", place.uri,
            f"{_some(folders)}: a key that ends with a slash keeps SageMaker from mounting the "
            "prefix (the S3 console makes one with `Create folder`)",
            f"aws s3api delete-object --bucket {place.bucket} --key {folders[0]}",
        )  # fmt: skip
    all_keys = {*there, *ours}
    both = sorted(set(_parents(all_keys)) & all_keys)
    if both:
        yield error(
            "file-and-folder", place.uri,
            f"{_some(both)}: a key that is both a file and a folder keeps SageMaker from mounting "
            "the prefix",
            "choose another prefix, or remove that object",
        )  # fmt: skip
    left = tuple(f"{place.prefix}{part}/" for part in others)
    known = {*ours, *folders, *both}
    foreign = sorted(key for key in there if key not in known and not key.startswith(left))
    pairs = synced_below(place, {key: there[key] for key in there.keys() - ours})
    if pairs:
        yield _pairs_below(place, pairs)
        within = tuple(pair.prefix for pair in pairs)
        # Who is one level too high is told so, and of nothing that could be removed.
        loose = [key for key in foreign if not key.startswith(within)]
        foreign = loose if place.manifest in there else []
    if foreign:
        size = sum(there[key] for key in foreign)
        yield foreign_objects(
            place,
            f"{len(foreign)} other object{'s lie' if len(foreign) > 1 else ' lies'} there "
            f"({size / 1e6:,.1f} MB: {_some(foreign)}), which every start would download too",
            f"choose another prefix, or remove what is not needed: aws s3 rm s3://{place.bucket}/"
            f"{foreign[0]}",
        )  # fmt: skip


def foreign_objects(place: Place, message: str, fix: str) -> Finding:
    """The error that a prefix holds, or is inside, something else than one pair."""
    return error("foreign-objects", place.uri, message, fix)


def _pairs_below(place: Place, pairs: tuple[Place, ...]) -> Finding:
    names = [pair.prefix.removeprefix(place.prefix) for pair in pairs]
    return foreign_objects(
        place,
        f"below it lies what `peagle weights sync` brought to {_some(names)}, which every start "
        "would download too",
        f"name the prefix of one pair: peagle weights list {pairs[0].uri}",
    )  # fmt: skip


def _parents(keys: Collection[str]) -> Iterator[str]:
    for key in keys:
        end = key.find("/")
        while 0 <= end < len(key) - 1:
            yield key[:end]
            end = key.find("/", end + 1)


def _some(keys: list[str]) -> str:
    shown = ", ".join(keys[:_SHOWN])
    return f"{shown}, ..." if len(keys) > _SHOWN else shown
