"""Bring weights from the sandbox's own S3 to where the engine finds them, as SageMaker does."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

from toolkit.errors import PeagleError
from toolkit.sandbox.client import ACCESS_KEY, running
from toolkit.sandbox.hosting.order import ModelData


class NoModelData(Exception):
    """Weights that SageMaker would not find or not accept."""


def download(data: ModelData, ml_root: Path, region: str) -> None:
    """Put ``data`` below ``ml_root``. Raises NoModelData."""
    bucket, _, key = data.uri.removeprefix("s3://").partition("/")
    folder = ml_root / data.into
    folder.mkdir(parents=True, exist_ok=True)
    client = _client(region)
    try:
        if data.archive:
            _unpack(client, bucket, key, folder)
        elif data.single:
            client.download_file(bucket, key, str(folder / Path(key).name))
        else:
            _download_prefix(client, bucket, key, folder)
    except (ClientError, tarfile.TarError) as error:
        raise NoModelData(f"{data.uri}: {error}") from error


def weight_bytes(ml_root: Path) -> int:
    """The size of all safetensors files below ``ml_root``."""
    return sum(file.stat().st_size for file in ml_root.rglob("*.safetensors"))


def _download_prefix(client: Any, bucket: str, prefix: str, folder: Path) -> None:
    """Every object below a prefix. Refuses what makes a deployment fail on AWS."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    if not keys:
        raise NoModelData(f"there is no object below s3://{bucket}/{prefix}")
    for key in keys:
        _check_key(key, prefix, keys)
        file = folder / key.removeprefix(prefix)
        file.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(bucket, key, str(file))


def _check_key(key: str, prefix: str, keys: list[str]) -> None:
    name = key.removeprefix(prefix)
    if not name or name.endswith("/"):
        raise NoModelData(f"the key {key} is an empty folder; SageMaker takes files only")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise NoModelData(f"the key {key} does not name a file below {prefix}")
    if any(other.startswith(f"{key}/") for other in keys):
        raise NoModelData(f"the key {key} is a file and a folder at once")


def _unpack(client: Any, bucket: str, key: str, folder: Path) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as archive:
        client.download_fileobj(bucket, key, archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as content:
            content.extractall(folder, filter="data")


def _client(region: str) -> Any:
    address = running()
    if address is None:
        raise PeagleError("the sandbox has ended")
    return boto3.client(
        "s3",
        endpoint_url=address.url,
        region_name=region,
        aws_access_key_id=ACCESS_KEY["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=ACCESS_KEY["AWS_SECRET_ACCESS_KEY"],
    )
