"""What a copy would do, found out before anything is written.

What earlier runs left of files that are not whole yet: parts that S3 keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.errors import Refused
from peagle.findings import Finding, warning
from peagle.weights.bucket import Bucket, region_of
from peagle.weights.layout import PARTS, Place, strangers
from peagle.weights.manifest import Manifest, read_manifest, within_a_pair
from peagle.weights.sources import Origin, OriginFile


@dataclass(frozen=True)
class Item:
    """One file on its way: of which part, from where, to which key."""

    part: str
    origin: Origin
    file: OriginFile
    key: str

    @property
    def name(self) -> str:
        """``target/config.json``."""
        return f"{self.part}/{self.file.name}"


@dataclass(frozen=True)
class Survey:
    """The place, the origins by part, and what lies there: size by key."""

    place: Place
    region: str
    origins: Mapping[str, Origin]
    items: tuple[Item, ...]
    makes_bucket: bool = False
    there: Mapping[str, int] = field(default_factory=dict)
    manifest: Manifest = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def size(self) -> int:
        """Everything that should lie there in the end, in bytes."""
        return sum(item.file.size for item in self.items)

    @property
    def present(self) -> tuple[Item, ...]:
        """Files that are there with the right size; whether with the right bytes is to be seen."""
        return tuple(item for item in self.items if self.there.get(item.key) == item.file.size)


def survey(aws: Aws, place: Place, origins: Mapping[str, Origin]) -> Survey:
    """Look at the place. Raises Refused for a bucket of another account or region."""
    items = tuple(_items(place, origins))
    found = region_of(aws, place.bucket)
    if found is None:
        return Survey(place, aws.region, origins, items, makes_bucket=True)
    if found != aws.region:
        raise Refused(
            f"the bucket {place.bucket} is in {found}, and --region is {aws.region}",
            f"say --region {found}: SageMaker reads weights in its own region only",
        )
    bucket = Bucket(aws, place.bucket)
    there = bucket.sizes(place.prefix)
    others = [part for part in PARTS if part not in origins]
    findings = tuple(within_a_pair(bucket, place)) or (
        *strangers(place, there, {item.key for item in items}, others),
        *_replaced(place, items, there),
    )
    manifest = read_manifest(bucket, place) if place.manifest in there else {}
    return Survey(place, aws.region, origins, items, False, there, manifest, findings)


def _items(place: Place, origins: Mapping[str, Origin]) -> Iterable[Item]:
    """Small files first: what is wrong shows early."""
    for part, origin in origins.items():
        for file in sorted(origin.files, key=lambda file: (file.size, file.name)):
            yield Item(part, origin, file, place.key(part, file.name))


def _replaced(place: Place, items: Iterable[Item], there: Mapping[str, int]) -> Iterable[Finding]:
    every = [i for i in items if i.key in there and there[i.key] != i.file.size]
    for part in PARTS:
        other = [item for item in every if item.part == part]
        if not other:
            continue
        yield warning(
            "objects-are-replaced", place.folder(part),
            f"{len(other)} of the files lie there with another size and are written anew: "
            f"{', '.join(item.name for item in other[:3])}",
            "an endpoint that reads this folder would then start with other weights",
        )  # fmt: skip


def from_here(item: Item, manifest: Manifest) -> bool:
    """Whether what lies there of a file is from where it is copied from now."""
    before = manifest.get(item.part)
    return before is not None and before.source == item.origin.location


def kept_bytes(
    bucket: Bucket, items: Iterable[Item], begun: Mapping[str, list[str]]
) -> dict[str, int]:
    """Bytes in the parts of each file's last unfinished upload, by key."""
    found: dict[str, int] = {}
    for item in items:
        for upload in begun.get(item.key, ())[-1:]:
            with suppress(Missing):
                found[item.key] = sum(p.size for p in bucket.kept(item.key, upload).values())
    return found


def half_bytes(aws: Aws, found: Survey) -> int:
    """All bytes in parts that the copy would go on with."""
    ours = [item for item in found.items if from_here(item, found.manifest)]
    if not ours:
        return 0
    bucket = Bucket(aws, found.place.bucket)
    return sum(kept_bytes(bucket, ours, bucket.begun(found.place.prefix)).values())
