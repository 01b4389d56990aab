"""What earlier runs left of files that are not whole yet: parts that S3 keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from toolkit.aws.errors import Missing
from toolkit.aws.session import Aws
from toolkit.aws.weights.bucket import Bucket
from toolkit.aws.weights.manifest import Manifest
from toolkit.aws.weights.surveying import Item, Survey


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
