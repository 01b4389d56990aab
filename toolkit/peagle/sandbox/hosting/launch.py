"""Where ``peagle/tiny`` lies on this machine, and how an engine is given it.

Weights that only an image of the user's own can have, since nothing is mounted for them.

Bring weights from the sandbox's own S3 to where the engine finds them, as SageMaker does.

As what the sandbox's engines run: as processes, or in containers, as on SageMaker.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import boto3
from botocore.exceptions import ClientError

from peagle.catalog.schema import Drafter
from peagle.checks.facts import in_ecr
from peagle.engine.container import Container, container_name, start_container
from peagle.engine.cpu import model_paths
from peagle.engine.installed import find_engine
from peagle.engine.process import EngineProcess, free_port, start_engine
from peagle.engine.state import collection_variables, digest_of
from peagle.errors import NotFound, PeagleError
from peagle.images import Docker, Image, images, show
from peagle.render.image import serve_digest
from peagle.render.requests import tag_value
from peagle.s3uri import S3Uri
from peagle.sandbox.client import ACCESS_KEY, running
from peagle.sandbox.hosting.spec import DRAFTER_PATH, TARGET_PATH, ModelData, Order
from peagle.sandbox.state import EngineKind, catalog, engine_version
from peagle_serve.contract import IMAGE_DIGEST_VARIABLE, ML_ROOT

TINY = "peagle/tiny"


def mount_tiny(ml_root: Path, drafter: Drafter | None) -> None:
    """Make tiny's folders appear below ``ml_root`` where ``stand_in`` says they are."""
    target = catalog().targets[TINY]
    folder = Path(catalog().origins[TINY]).parent
    places = {TARGET_PATH: target.weights}
    if drafter is not None and drafter.weights is not None:
        places[DRAFTER_PATH] = drafter.weights
    for path, weights in places.items():
        place = ml_root / PurePosixPath(path).relative_to(ML_ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to((folder / weights).resolve(), target_is_directory=True)


def only_in_image(order: Order, ml_root: Path, kind: EngineKind) -> str | None:
    """Why the engine would not find its weights here, where an image would have them.

    ``None`` when they are here, or when that very image is run; and for AWS's own images, which
    have none: there a forgotten mount must fail as it does on AWS.
    """
    if order.model_data or _is_amazons(order.image):
        return None
    below = [PurePosixPath(path) for path in model_paths(order.environment).values()]
    named = [path.relative_to(ML_ROOT) for path in below if path.is_relative_to(ML_ROOT)]
    if all((ml_root / path).exists() for path in named):
        return None
    if kind == "docker" and _is_run_here(order.image):
        return None
    return f"its weights are baked into {order.image}, which this sandbox does not run"


def _is_amazons(image: str) -> bool:
    found = in_ecr(image)
    return found is None or found.account in catalog().runtimes.accounts.values()


def _is_run_here(image: str) -> bool:
    try:
        return show(Docker(), image).runtime == "cpu"
    except PeagleError:
        return False


class NoModelData(Exception):
    """Weights that SageMaker would not find or not accept."""


def download(data: ModelData, ml_root: Path, region: str) -> None:
    """Put ``data`` below ``ml_root``. Raises NoModelData."""
    source = S3Uri.parse(data.uri)
    bucket, key = source.bucket, source.key
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


Record = Callable[[EngineProcess], object]
Launch = Callable[[Order, str, Mapping[str, str], Path, Path, Record], object]
"""Start the engine for an order, with a name of its own, its environment, what is below
``/opt/ml``, its log, and whom to tell before it begins. Raises PeagleError."""


def launcher(kind: EngineKind) -> Launch:
    """How engines of that kind are started."""
    return as_container if kind == "docker" else as_process


def as_process(
    order: Order,
    name: str,
    environment: Mapping[str, str],
    ml_root: Path,
    log: Path,
    record: Record,
) -> None:
    """The CPU engine of this machine, whatever image is named."""
    engine = find_engine(engine_version())
    given = {**environment, **collection_variables(environment, ml_root.parent / "collected")}
    start_engine(engine, given, ml_root, free_port(), log, record=record)


def as_container(
    order: Order,
    name: str,
    environment: Mapping[str, str],
    ml_root: Path,
    log: Path,
    record: Record,
) -> None:
    """The image that is named, if it is on this machine and made for a CPU; else the newest one
    that is, of the pair that is asked for if there is one."""
    docker = Docker()
    image = _image(docker, order.image, order.pair)
    chosen = Container(
        name=container_name("sandbox", name),
        image=image.id,
        environment={**environment, IMAGE_DIGEST_VARIABLE: digest_of(image)},
        mounts=mounts_of(ml_root),
        port=free_port(),
    )
    start_container(docker, chosen, log, record)


def mounts_of(ml_root: Path) -> dict[str, Path]:
    """Path in the container -> folder, for all that lies below ``ml_root``.

    Where links stand for folders of weights these are mounted themselves: a link would lead
    nowhere in the container.
    """
    links = [path for path in sorted(ml_root.rglob("*")) if path.is_symlink()]
    folders = links or [path for path in sorted(ml_root.glob("*")) if path.is_dir()]
    return {f"{ML_ROOT}/{path.relative_to(ml_root).as_posix()}": path.resolve() for path in folders}


def _image(docker: Docker, named: str, pair: str) -> Image:
    try:
        found = show(docker, named)
        if found.runtime == "cpu":
            return found
    except PeagleError:
        pass  # Images of AWS are not here, and would want a GPU.
    fitting = images(docker, runtime="cpu", vllm=engine_version(), weights="mounted",
                     serve=serve_digest())  # fmt: skip
    if not fitting:
        raise NotFound(
            "there is no image for a CPU on this machine", "peagle image build tiny --runtime cpu"
        )
    return nearest_to(pair, fitting)


def nearest_to(pair: str, found: Sequence[Image]) -> Image:
    """The first of the pair, else the first of its target: that one also serves the target alone.
    Else simply the first; its own entrypoint says what is wrong with it.

    ``pair`` is what a tag says, in which some characters are replaced.
    """
    target = pair.partition("+")[0]
    of_pair = (image for image in found if tag_value(image.pair) == pair)
    of_target = (image for image in found if image.pair.partition("+")[0] == target)
    return next(of_pair, None) or next(of_target, found[0])
