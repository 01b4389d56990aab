"""Weights locations that a user names, and the checkpoints there.

A folder (``./x``, ``/x``, ``~/x``, or ``a/b`` where there is one), ``s3://bucket/prefix``, or
``org/name`` of the Hugging Face Hub, with ``@revision`` or without.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle.checkpoints import Checkpoint, FolderSource, Source, read_checkpoint
from peagle.checkpoints.models import is_location, location_hint, means_folder, split_revision
from peagle.errors import UserError
from peagle.planning.plan import Weights
from peagle.s3uri import S3Uri, is_s3_uri
from peagle.weights.layout import weights_prefix

if TYPE_CHECKING:
    from peagle.aws.client import Aws

AwsOf = Callable[[], "Aws"]


def checkpoint_at(
    location: str, aws_of: AwsOf | None = None, *, config_only: bool = False
) -> Checkpoint:
    """The checkpoint at ``location``; with ``config_only`` only its config.json.

    ``aws_of`` connects to AWS, and is called for ``s3://`` URIs only; without it they are rejected.
    Raises UserError for an invalid location, and the errors of reading.
    """
    return read_checkpoint(source_of(location, aws_of), config_only=config_only)


def source_of(location: str, aws_of: AwsOf | None = None) -> Source:
    """The source at ``location``; nothing is read yet."""
    if is_s3_uri(location):
        if aws_of is None:
            raise UserError(f"{location} cannot be read here", "specify a folder")
        _check_bucket(location)
        from peagle.aws.s3 import S3Source

        return S3Source(aws_of(), location)
    if means_folder(location):
        return FolderSource(Path(location).expanduser())
    if not is_location(location):
        raise _not_a_location(location)
    from peagle.checkpoints.hub import HubSource

    return HubSource(*split_revision(location))


def _not_a_location(location: str) -> UserError:
    fix = location_hint(location) or "use ./folder, s3://bucket/prefix or org/name"
    return UserError(f"{location!r} is not a weights location", fix, "invalid-location")


def _check_bucket(location: str) -> None:
    found = S3Uri.parse(location)
    bucket, lower = found.bucket, S3Uri(found.bucket.lower(), found.key)
    if bucket != bucket.lower():
        raise UserError(
            f"{location}: bucket names are in lower case, not {bucket}",
            f"write {lower} if that is the bucket you mean",
            "invalid-s3-uri",
        )


def own_head(drafter: str, aws_of: AwsOf | None = None) -> dict[str, Any]:
    """The options ``drafter`` and ``drafter_checkpoint``, for a folder, and with ``aws_of`` also
    for S3 and the Hub.

    ``heads/mine`` is a folder if it exists, else a Hugging Face id; a word without a slash is a
    drafter of the catalogue (``./word`` is a folder). Raises UserError for a folder without
    complete weights or config.json, and for a bucket name in capitals.
    """
    if not means_folder(drafter):
        if is_s3_uri(drafter):
            _check_bucket(drafter)
        if aws_of is None or not is_location(drafter):
            return {"drafter": drafter}
        return {"drafter": drafter, "drafter_checkpoint": checkpoint_at(drafter, aws_of)}
    folder = Path(drafter).expanduser()
    if folder.is_dir():
        # An absolute path: the plan is independent of the working directory.
        folder = folder.resolve()
    head = read_checkpoint(FolderSource(folder))
    if head.tensors is None:
        raise UserError(f"{drafter} has no *.safetensors", "use the folder of the head itself")
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
