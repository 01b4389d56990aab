"""The prefix of a synced pair close to an address that is one level too high or too low."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from toolkit.aws.errors import AccessDenied
from toolkit.aws.weights.bucket import Bucket
from toolkit.aws.weights.layout import PARTS, Place, synced_below
from toolkit.aws.weights.manifest import read_manifest
from toolkit.errors import NotFound, UserError
from toolkit.findings import Finding, error


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
        yield error(
            "foreign-objects", place.uri, f"it is a folder of the pair that lies at {above.uri}",
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
