"""Launch the engine of an endpoint: download its weights, then start a process or a container.

As on SageMaker, weights come from S3 (the sandbox's own) and are at ``/opt/ml`` for the engine.
Objects are read where moto keeps them: the sandbox's process needs no request to itself.
"""

from __future__ import annotations

import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path, PurePosixPath

from moto.s3.models import FakeKey, s3_backends
from moto.utilities.utils import get_partition

from peagle.catalog.schema import Drafter
from peagle.checks.facts import parse_ecr_image
from peagle.engine.container import Container, container_name, start_container
from peagle.engine.cpu import link_folders, model_paths
from peagle.engine.machine import find_engine
from peagle.engine.process import EngineProcess, free_port, refuse_code, start_engine
from peagle.errors import Fix, NotFound, PeagleError
from peagle.images import Docker, Image, list_images, show_image
from peagle.render.image import serve_digest
from peagle.render.requests import tag_value
from peagle.s3uri import S3Uri
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.launch_spec import DRAFTER_PATH, TARGET_PATH, LaunchSpec, ModelData
from peagle.sandbox.state import catalog, engine_version, read_engine_kind
from peagle.store import private_folder
from peagle_serve.contract import (
    CACHE_VARIABLE,
    COLLECT,
    IMAGE_DIGEST_VARIABLE,
    ML_ROOT,
    WARM_MODE_VARIABLE,
)

TINY = "peagle/tiny"

_PIECE = 1 << 20
"""Bytes of an object that are read from S3 at a time."""


def mount_tiny(ml_root: Path, drafter: Drafter | None) -> None:
    """Link tiny's folders below ``ml_root`` where the stand-in's environment expects them."""
    target = catalog().targets[TINY]
    folder = Path(catalog().origins[TINY]).parent
    mounts = {TARGET_PATH: folder / target.weights}
    if drafter is not None and drafter.weights is not None:
        mounts[DRAFTER_PATH] = folder / drafter.weights
    link_folders(mounts, ml_root)


def only_in_image(spec: LaunchSpec, ml_root: Path) -> str | None:
    """Why the engine would not find weights that are baked into the user's own image.

    ``None`` when the weights are here, or when that very image is run; and for AWS's own images,
    which contain none: there, a forgotten mount must fail as it does on AWS.
    """
    found = parse_ecr_image(spec.image)
    of_aws = found is None or found.account in catalog().runtimes.accounts.values()
    if spec.model_data or of_aws:
        return None
    below = [PurePosixPath(path) for path in model_paths(spec.environment).values()]
    named = [path.relative_to(ML_ROOT) for path in below if path.is_relative_to(ML_ROOT)]
    if all((ml_root / path).exists() for path in named):
        return None
    if is_local_image(spec.image):
        return None
    return f"its weights are baked into {spec.image}, which this sandbox does not run"


def is_local_image(name: str) -> bool:
    """Whether the sandbox runs this very image: as a container, from this machine."""
    return read_engine_kind() == "docker" and _cpu_image(Docker(), name) is not None


def _cpu_image(docker: Docker, name: str) -> Image | None:
    """The image of that name if it is on this machine and made for a CPU."""
    try:
        found = show_image(docker, name)
    except PeagleError:
        return None  # an image of AWS, which is not here and would need a GPU
    return found if found.runtime == "cpu" else None


class ModelDataError(Exception):
    """SageMaker would not find or not accept these weights."""


def download(data: ModelData, ml_root: Path, region: str) -> None:
    """Download ``data`` below ``ml_root``. Raises ModelDataError."""
    folder = ml_root / data.into
    private_folder(folder)
    try:
        found = dict(objects_of(data, region))
        if not found:
            raise ModelDataError(_missing(data))
        if data.archive or data.single:
            ((key, content),) = found.items()
            if data.archive:
                _unpack(content, folder)
            else:
                save_object(content, folder / Path(key).name)
        else:
            _save_prefix(found, S3Uri.parse(data.uri).key, folder)
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise ModelDataError(f"{data.uri}: {error}") from error


def _missing(data: ModelData) -> str:
    return f"no object exists {'at' if data.archive or data.single else 'below'} {data.uri}"


def weight_bytes(ml_root: Path) -> int:
    return sum(file.stat().st_size for file in ml_root.rglob("*.safetensors"))


def _save_prefix(found: Mapping[str, FakeKey], prefix: str, folder: Path) -> None:
    """Every object below a prefix; rejects keys with which a deployment fails on AWS."""
    for key, content in sorted(found.items(), key=itemgetter(0)):
        _check_key(key, prefix, found)
        file = folder / key.removeprefix(prefix)
        file.parent.mkdir(parents=True, exist_ok=True)
        save_object(content, file)


def _check_key(key: str, prefix: str, keys: Iterable[str]) -> None:
    name = key.removeprefix(prefix)
    if not name or name.endswith("/"):
        raise ModelDataError(f"the key {key} is an empty folder; SageMaker accepts only files")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ModelDataError(f"the key {key} does not name a file below {prefix}")
    if any(other.startswith(f"{key}/") for other in keys):
        raise ModelDataError(f"the key {key} is both a file and a folder")


def _unpack(content: FakeKey, folder: Path) -> None:
    with tempfile.NamedTemporaryFile(suffix=".tar.gz") as archive:
        save_object(content, Path(archive.name))
        with tarfile.open(archive.name, mode="r:gz") as opened:
            opened.extractall(folder, filter="data")


def launch(
    spec: LaunchSpec,
    instance: str,
    environment: Mapping[str, str],
    ml_root: Path,
    log: Path,
    record: Callable[[EngineProcess], object],
) -> None:
    """Start an engine; ``ml_root`` stands for ``/opt/ml``; ``record`` is called before it begins.

    A process is the CPU engine of this machine, whatever image the model names. A container is the
    named image if it is on this machine and made for a CPU; else the newest such image, of the same
    pair if there is one. Raises PeagleError.
    """
    variables = dict(environment)
    if read_engine_kind() == "docker":
        docker = Docker()
        image = _cpu_image(docker, spec.image) or _newest_image(docker, spec.pair)
        variables[IMAGE_DIGEST_VARIABLE] = image.digest
        name = container_name("sandbox", instance)
        container = Container(name, image.id, variables, _mounts(ml_root), free_port())
        start_container(docker, container, log, record)
    else:
        refuse_code(spec.environment)
        if environment.get(WARM_MODE_VARIABLE) == COLLECT:
            variables[CACHE_VARIABLE] = str(ml_root.parent / "collected")  # and no other cache
        engine = find_engine(engine_version())
        start_engine(engine, variables, ml_root, free_port(), log, record)


def _mounts(ml_root: Path) -> dict[str, Path]:
    """Path in the container -> folder, for everything below ``ml_root``.

    The targets of links are mounted themselves: a link would lead nowhere in the container.
    """
    links = [path for path in sorted(ml_root.rglob("*")) if path.is_symlink()]
    folders = links or [path for path in sorted(ml_root.glob("*")) if path.is_dir()]
    if not links:  # the container's own user reads them; nobody else gets below $PEAGLE_HOME
        for path in ml_root.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    return {f"{ML_ROOT}/{path.relative_to(ml_root).as_posix()}": path.resolve() for path in folders}


def _newest_image(docker: Docker, pair: str) -> Image:
    found = list_images(docker, runtime="cpu", vllm=engine_version(), weights="mounted",
                   serve=serve_digest())  # fmt: skip
    if not found:
        command = ("peagle", "image", "build", "tiny", "--runtime", "cpu")
        raise NotFound(
            "no CPU image exists on this machine", Fix("build one", command), code="image-missing"
        )
    return nearest_image(pair, found)


def nearest_image(pair: str, found: Sequence[Image]) -> Image:
    """The first image of the pair, else the first of its target, which also serves the target
    alone, else the first: its own entrypoint reports the mismatch.

    ``pair`` is the value of a tag, in which some characters are replaced.
    """
    target = pair.partition("+")[0]
    of_pair = (image for image in found if tag_value(image.pair) == pair)
    of_target = (image for image in found if image.pair.partition("+")[0] == target)
    return next(of_pair, None) or next(of_target, found[0])


def objects_of(data: ModelData, region: str) -> Iterator[tuple[str, FakeKey]]:
    """The keys and objects that the model data names; none where there is no such bucket."""
    source = S3Uri.parse(data.uri)
    bucket = s3_backends[ACCOUNT][get_partition(region)].buckets.get(source.bucket)
    exact = data.archive or data.single
    for key, content in list(bucket.keys.items()) if bucket else ():
        is_named = key == source.key if exact else key.startswith(source.key)
        if is_named and isinstance(content, FakeKey):  # not a delete marker
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
