"""The objects in the sandbox's S3, read where moto keeps them: its own process needs no request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from moto.s3.models import FakeKey, s3_backends
from moto.utilities.utils import get_partition

from peagle.s3uri import S3Uri
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.launch_spec import ModelData

_PIECE = 1 << 20
"""Bytes of an object that are read from S3 at a time."""


def objects_of(data: ModelData, region: str) -> Iterator[tuple[str, FakeKey]]:
    """The keys and objects that the model data names; none where there is no such bucket."""
    source = S3Uri.parse(data.uri)
    bucket = s3_backends[ACCOUNT][get_partition(region)].buckets.get(source.bucket)
    exact = data.archive or data.single
    for key, content in list(bucket.keys.items()) if bucket else ():
        is_named = key == source.key if exact else key.startswith(source.key)
        if is_named and isinstance(content, FakeKey):  # not a mark of deletion
            yield key, content


def save_object(content: FakeKey, file: Path) -> None:
    """Write an object to a file, a piece at a time. Raises ValueError when it is deleted
    meanwhile."""
    with file.open("wb") as written:
        at = 0
        while True:
            with content.lock:
                content._value_buffer.seek(at)
                piece = content._value_buffer.read(_PIECE)
            if not piece:
                return
            at += written.write(piece)
