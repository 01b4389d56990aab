"""Weights that deploy uploaded to S3, found through the models that mount them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from peagle.aws import s3
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.deploy.desired import UPLOADS
from peagle.deploy.served import Served, settings_of
from peagle.deploy.state import Resource
from peagle.s3uri import S3Uri
from peagle.weights.bucket import Bucket
from peagle_serve.contract import is_s3_uri

_NO_VARIANT: Mapping[str, Any] = {"ProductionVariants": [{}]}
"""For a model without a configuration: its deploy ended before creating one."""


def uploaded_weights(
    aws: Aws, models: Iterable[tuple[Mapping[str, Any], str]]
) -> Iterator[Resource]:
    """The uploaded weights of ``models`` (descriptions and fingerprints of their revisions), and
    their buckets where deploy created them or that cannot be read."""
    uploaded = {
        uri: fingerprint
        for model, fingerprint in models
        for uri in filter(_is_uploaded, settings_of(model, _NO_VARIANT)["weights"].values())
    }
    for uri, fingerprint in uploaded.items():
        keys = _keys(aws, S3Uri.parse(uri))
        yield Resource(type="S3Objects", name=uri, made=True, revision=fingerprint, keys=keys)
    for bucket in sorted({S3Uri.parse(uri).bucket for uri in uploaded}):
        if _may_be_ours(aws, bucket):
            yield Resource(type="S3Bucket", name=bucket, made=True, revision="")


def bucket_of_weights(served: Served) -> str | None:
    """The bucket of uploaded weights."""
    uploaded = filter(_is_uploaded, served.weights.values())
    return next((S3Uri.parse(uri).bucket for uri in uploaded), None)


def _keys(aws: Aws, prefix: S3Uri) -> tuple[str, ...]:
    try:
        return tuple(Bucket(aws, prefix.bucket).sizes(prefix.folder.key))
    except Missing:  # without its bucket
        return ()


def _may_be_ours(aws: Aws, bucket: str) -> bool:
    """Whether deploy created the bucket; true where reading its tags is denied."""
    try:
        return s3.is_our_bucket(aws, bucket)
    except AccessDenied:
        return True


def _is_uploaded(uri: str) -> bool:
    """Whether the prefix is one below which deploy uploads, so that destroy removes it."""
    return is_s3_uri(uri) and f"/{S3Uri.parse(uri).key}".startswith(UPLOADS)
