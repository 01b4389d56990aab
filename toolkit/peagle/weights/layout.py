"""Where weights are: the locations that a user names, and the layout of a pair below one S3 prefix.

A location is a folder (``./x``, ``/x``, ``~/x``, or ``a/b`` where there is one),
``s3://bucket/prefix``, or ``org/name`` of the Hugging Face Hub, with ``@revision`` or without.

    s3://bucket/prefix/target/...            the target's files
    s3://bucket/prefix/drafter/...           the drafter's files
    s3://bucket/prefix/peagle-weights.json   the manifest: what belongs there, and its state
    s3://bucket/prefix/warm/...              warm starts (``peagle warm``)

One prefix, so one mount: /opt/ml/model/target and /opt/ml/model/drafter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle.checkpoints import Checkpoint, FolderSource, Source, read_checkpoint
from peagle.checkpoints.models import (
    is_location,
    location_fix,
    means_folder,
    s3_prefix,
    split_revision,
)
from peagle.errors import Fix, UserError
from peagle.findings import Finding, error
from peagle.planning.plan import Weights
from peagle.s3uri import PREFIX_FORMAT, S3Uri
from peagle_serve.checkpoint import first_names
from peagle_serve.contract import HEX_32, WARM_FOLDER, is_s3_uri

if TYPE_CHECKING:
    from peagle.aws.client import Aws

PARTS = ("target", "drafter")
"""The folders below the prefix."""

MANIFEST = "peagle-weights.json"

_WARM_START = re.compile(rf"({HEX_32.pattern})\.(?:tar\.gz|json)")


@dataclass(frozen=True)
class WeightsPrefix(S3Uri):
    """A prefix for the weights of a pair; its key is empty or ends with a slash."""

    def part_uri(self, part: str) -> str:
        """``s3://bucket/prefix/target/``."""
        return f"{self.uri}{part}/"

    def file_key(self, part: str, name: str) -> str:
        return f"{self.key}{part}/{name}"

    @property
    def manifest_key(self) -> str:
        return self.key + MANIFEST

    @property
    def in_pair(self) -> tuple[str, WeightsPrefix]:
        """The part whose folder this would be in a synced pair, and that pair's prefix; "" and the
        prefix itself for any other name."""
        for part in PARTS:
            if f"/{self.key}".endswith(f"/{part}/"):
                return part, WeightsPrefix(self.bucket, self.key.removesuffix(f"{part}/"))
        return "", self

    @property
    def mountable_prefixes(self) -> tuple[WeightsPrefix, ...]:
        """The prefixes that a deployment may mount, and beside which warm starts may be: all of
        it, or one of its folders."""
        return (self, *(WeightsPrefix(self.bucket, f"{self.key}{part}/") for part in PARTS))

    def warm_start_id(self, key: str) -> str | None:
        """The warm start that an object is a part of; ``None`` for other objects."""
        folder = f"{self.key}{WARM_FOLDER}/"
        match = _WARM_START.fullmatch(key[len(folder) :]) if key.startswith(folder) else None
        return match[1] if match else None


def weights_prefix(uri: str) -> WeightsPrefix:
    """The prefix of a URI. Raises UserError for one that SageMaker cannot mount."""
    try:
        return WeightsPrefix.mountable(uri, reserve=len("drafter/"))
    except ValueError as reason:
        raise UserError(str(reason), PREFIX_FORMAT, "invalid-s3-uri") from reason


def unknown_objects(
    prefix: WeightsPrefix,
    present: Mapping[str, int],
    expected: Collection[str],
    untouched: Collection[str],
) -> Iterator[Finding]:
    """Why the prefix cannot be mounted with the objects ``present`` (size by key), beside the keys
    ``expected`` and the parts ``untouched``. SageMaker fails on 0-byte folder keys, and downloads
    every other object too."""
    warm = (
        key for key in present if any(at.warm_start_id(key) for at in prefix.mountable_prefixes)
    )
    ours = {prefix.manifest_key, *expected, *warm}
    folders = sorted(key for key in present if key.endswith("/"))
    if folders:
        yield error(
            "folder-keys", prefix.uri,
            "SageMaker cannot mount a prefix with a key that ends with a slash: "
            f"{first_names(folders)} (`Create folder` in the S3 console makes such keys)",
            Fix("delete the key", ("aws", "s3api", "delete-object", "--bucket", prefix.bucket,
                                   "--key", folders[0])),
        )  # fmt: skip
    skipped = tuple(f"{prefix.key}{part}/" for part in untouched)
    covered = {*ours, *folders}
    unknown = sorted(key for key in present if key not in covered and not key.startswith(skipped))
    if unknown:
        size = sum(present[key] for key in unknown)
        yield error(
            "foreign-objects", prefix.uri,
            f"{len(unknown)} other objects below the prefix ({size / 1e6:,.1f} MB: "
            f"{first_names(unknown)}), which every start would download too",
            "use another prefix, or remove what is not needed",
        )  # fmt: skip


AwsOf = Callable[[], "Aws"]


def checkpoint_at(location: str, aws_of: AwsOf | None = None) -> Checkpoint:
    """The checkpoint at ``location``; ``aws_of`` connects to AWS for ``s3://`` URIs, which are
    rejected without it."""
    return read_checkpoint(choose_source(location, aws_of))


def choose_source(location: str, aws_of: AwsOf | None = None) -> Source:
    """The source at ``location``; nothing is read yet."""
    if is_s3_uri(location):
        if aws_of is None:
            message = f"{location} cannot be read here"
            raise UserError(message, "specify a folder", code="invalid-location")
        from peagle.aws.s3 import S3Source

        return S3Source(aws_of(), location)
    if means_folder(location):
        return FolderSource(Path(location).expanduser())
    if not is_location(location):
        raise _not_a_location(location)
    from peagle.checkpoints.hub import HubSource

    return HubSource(*split_revision(location))


def _not_a_location(location: str) -> UserError:
    fix = location_fix(location) or "use ./folder, s3://bucket/prefix or org/name"
    return UserError(f"{location!r} is not a weights location", fix, "invalid-location")


def own_head(drafter: str, aws_of: AwsOf | None = None) -> dict[str, Any]:
    """The options ``drafter`` and ``drafter_checkpoint``, for a folder, and with ``aws_of`` also
    for S3 and the Hub. ``heads/mine`` is a folder if it exists, else a Hugging Face id; a word
    without a slash is a drafter of the catalogue."""
    if not means_folder(drafter):
        if is_s3_uri(drafter):
            s3_prefix(drafter)
        if aws_of is None or not is_location(drafter):
            return {"drafter": drafter}
        return {"drafter": drafter, "drafter_checkpoint": checkpoint_at(drafter, aws_of)}
    folder = Path(drafter).expanduser()
    if folder.is_dir():
        # An absolute path: the plan is independent of the working directory.
        folder = folder.resolve()
    head = read_checkpoint(FolderSource(folder))
    if head.tensors is None and not head.other_weights:  # else a finding says how to convert them
        message = f"{drafter} has no *.safetensors"
        raise UserError(message, "use the folder of the head itself", "weights-missing")
    return {"drafter": str(folder), "drafter_checkpoint": head}


def weights_at(location: str) -> Weights:
    """The weights at ``location``; nothing is read. Raises UserError for an invalid location."""
    if is_s3_uri(location):
        prefix = weights_prefix(location)
        return Weights(kind="s3", location=prefix.uri, engine_path=location)
    if means_folder(location):
        folder = str(Path(location).expanduser().resolve())
        return Weights(kind="directory", location=folder, engine_path=folder)
    if not is_location(location):
        raise _not_a_location(location)
    repository, revision = split_revision(location)
    return Weights(kind="hub", location=repository, revision=revision, engine_path=repository)
