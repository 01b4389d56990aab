"""What an endpoint launches: its weights from the sandbox's S3, and a process or a container.

``stand_in_for`` replaces a target that this machine cannot run by ``peagle/tiny``; what does not
belong to the target stays as planned. A CPU has no GPU memory, CUDA graphs or ranks: what was left
out was not tested (``not_applied``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from moto.s3.models import FakeKey, s3_backends
from moto.utilities.utils import get_partition

from peagle.catalog.schema import Drafter, Target
from peagle.checks.facts import parse_ecr_image
from peagle.engine.machine import find_engine
from peagle.engine.process import EngineProcess, free_port, refuse_code, start_engine
from peagle.engine.runner import (
    Container,
    container_name,
    link_folders,
    model_paths,
    start_container,
    valid_speculation,
)
from peagle.errors import Fix, NotFound, PeagleError
from peagle.images.docker import Docker, Image, list_images, show_image
from peagle.render.image import serve_digest
from peagle.render.requests import PAIR_TAG, tag_value
from peagle.s3uri import S3Uri
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.state import catalog, engine_version, read_engine_kind
from peagle.store import private_folder
from peagle_serve.contract import (
    CACHE_VARIABLE,
    COLLECT,
    HUB_MODEL,
    IMAGE_DIGEST_VARIABLE,
    ML_ROOT,
    MODEL,
    PREFIX,
    SERVED_NAME,
    SPECULATION,
    WARM_MODE_VARIABLE,
    WEIGHTS_PIN_VARIABLE,
)
from peagle_serve.environment import make_flag, name_variable

TINY = "peagle/tiny"

MAX_ENGINES = 4
"""The largest number of engines of one variant; DescribeEndpoint shows how many run."""

DEFAULT_STARTUP_SECONDS = 600
"""Seconds until /ping must answer when the request sets no limit. Our choice: API_ProductionVariant
gives the range 60-3600 and no default."""

_PIECE = 1 << 20


class LaunchFailed(Exception):
    """The engine does not start; the message is the endpoint's FailureReason."""


@dataclass(frozen=True)
class ModelData:
    """The prefix of weights in S3, and the folder below ``/opt/ml`` that they are downloaded to."""

    uri: str
    into: PurePosixPath


@dataclass(frozen=True)
class LaunchSpec:
    """An engine to launch. ``vllm``: the version that the image names; ``pair``: the model's pair
    tag; ``count``: engines to start; ``plain``: AWS's own image, without the toolkit's entrypoint;
    ``component``: whose copies these are; ``capture``: the endpoint's DataCaptureConfig."""

    region: str
    endpoint: str
    variant: str
    environment: Mapping[str, str]
    model_data: tuple[ModelData, ...]
    startup_seconds: int
    vllm: str | None = None
    image: str = ""
    pair: str = ""
    count: int = 1
    plain: bool = False
    component: str = ""
    capture: Mapping[str, Any] | None = None


def launch_spec(
    region: str,
    endpoint: str,
    variant: Mapping[str, Any],
    containers: Sequence[Mapping[str, Any]],
    tags: Iterable[Mapping[str, str]] = (),
    component: str = "",
) -> LaunchSpec:
    """The specification for ``variant``, which serves a model with these containers and tags."""
    container = containers[0]
    image = container.get("Image", "")
    tagged, named = re.search(r":(\d+\.\d+\.\d+)(-|$)", image), parse_ecr_image(image)
    runtimes = catalog().runtimes
    of_digest = {runtime.digest: runtime.vllm for runtime in runtimes.runtimes if runtime.digest}
    timeout = variant.get("ContainerStartupHealthCheckTimeoutInSeconds")
    instances = int(variant.get("InitialInstanceCount") or 1)
    return LaunchSpec(
        region=region,
        endpoint=endpoint,
        variant=variant["VariantName"],
        environment=dict(container.get("Environment") or {}),
        model_data=tuple(model_data(container)),
        startup_seconds=int(timeout or DEFAULT_STARTUP_SECONDS),
        vllm=tagged[1] if tagged else of_digest.get(image.partition("@")[2]),
        image=image,
        pair=next((tag["Value"] for tag in tags if tag["Key"] == PAIR_TAG), ""),
        count=min(instances, MAX_ENGINES),
        plain=named is not None and named.account in runtimes.accounts.values(),
        component=component,
    )


def model_data(container: Mapping[str, Any]) -> Iterator[ModelData]:
    """What SageMaker downloads below ``/opt/ml`` before it starts the container. Raises ValueError
    for archives and single objects."""
    sources = [("model", container["ModelDataSource"])] if container.get("ModelDataSource") else []
    for source in container.get("AdditionalModelDataSources") or []:
        sources.append((f"additional-model-data-sources/{source['ChannelName']}", source))
    for into, source in sources:
        data = source["S3DataSource"]
        if (data["CompressionType"], data["S3DataType"]) != ("None", "S3Prefix"):
            raise ValueError("the sandbox has only model data of S3Prefix without compression")
        yield ModelData(data["S3Uri"], PurePosixPath(into))
    if container.get("ModelDataUrl"):
        raise ValueError("the sandbox has no ModelDataUrl, but ModelDataSource")


TARGET_PATH = "/opt/ml/model/target"
DRAFTER_PATH = "/opt/ml/model/drafter"
P_EAGLE, EAGLE3 = "p-eagle", "eagle3"
"""The names of tiny's drafters in the catalogue."""

_BELONGS_TO_TARGET = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("REVISION", "CODE_REVISION", "TOKENIZER", "TOKENIZER_REVISION", "TOKENIZER_MODE"),
        *("HF_CONFIG_PATH", "HF_OVERRIDES", "CONFIG_FORMAT", "LOAD_FORMAT", "MODEL_IMPL"),
        *("DTYPE", "QUANTIZATION", "ROPE_SCALING", "ROPE_THETA", "GENERATION_CONFIG"),
        *("CHAT_TEMPLATE", "REASONING_PARSER", "TOOL_CALL_PARSER", "ENABLE_AUTO_TOOL_CHOICE"),
        *("LIMIT_MM_PER_PROMPT", "LANGUAGE_MODEL_ONLY", "MM_PROCESSOR_KWARGS"),
    )
)
_DRAFTER_KEYS = (
    "revision", "code_revision", "quantization", "max_model_len", "parallel_drafting",
)  # fmt: skip
_NUMBER, _LENGTH = "num_speculative_tokens", f"{PREFIX}MAX_MODEL_LEN"


def stand_in_for(
    environment: Mapping[str, str], tiny: Target
) -> tuple[dict[str, str], Drafter | None]:
    """``environment`` with ``tiny`` as its target and tiny's drafter of the same kind, and that
    drafter, if any."""
    target = environment.get(MODEL) or environment.get(HUB_MODEL) or "the model"
    removed = {*_BELONGS_TO_TARGET, HUB_MODEL, WEIGHTS_PIN_VARIABLE}
    changed = {name: value for name, value in environment.items() if name not in removed}
    changed |= {MODEL: TARGET_PATH, SERVED_NAME: environment.get(SERVED_NAME, target)}
    longest, length = tiny.architecture.max_positions, changed.get(_LENGTH)
    if length is not None and not (length.isdecimal() and int(length[:20]) <= longest):
        changed[_LENGTH] = str(longest)
    drafter, config = None, valid_speculation(changed)
    if config and config.get("method") != "ngram":
        is_eagle = config.get("method") in ("eagle", "eagle3")
        is_eagle3 = is_eagle and config.get("parallel_drafting") is not True
        name = EAGLE3 if is_eagle3 else P_EAGLE
        drafter = next(drafter for drafter in tiny.drafters if drafter.name == name)
        config = {key: value for key, value in config.items() if key not in _DRAFTER_KEYS}
        config |= {"method": drafter.method, "model": DRAFTER_PATH}
        if drafter.parallel_drafting:
            config["parallel_drafting"] = True
        k, trained = config.get(_NUMBER), drafter.k_trained
        if trained is not None and isinstance(k, int):
            config[_NUMBER] = min(k, trained)
        changed[SPECULATION] = json.dumps(config, ensure_ascii=False)
    for setting in (*tiny.engine_arguments, *(drafter.engine_arguments if drafter else ())):
        value = str(setting.value)
        value = value.lower() if isinstance(setting.value, bool) else value
        changed[name_variable(setting.name)] = value
    return changed, drafter


_OF_THE_ENGINE = (PREFIX, "VLLM_", "CUDA_", "NCCL_")
_REPLACED_KNOWINGLY = (MODEL, HUB_MODEL, SERVED_NAME)
_OF_THE_DRAFTER = ("model", "revision", "code_revision")
"""What a stand-in replaces; the stand-in itself is reported elsewhere."""


def not_applied(planned: Mapping[str, str], run: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments of the environment ``planned`` that ``run`` has not, or with another value.
    Each as on vLLM's command line, followed by the value that is used instead."""
    differences = []
    for name, value in sorted(planned.items()):
        if not name.startswith(_OF_THE_ENGINE) or name in _REPLACED_KNOWINGLY:
            continue
        flag = make_flag(name) if name.startswith(PREFIX) else name
        if name == SPECULATION:
            now = valid_speculation(run)
            for key, part in valid_speculation(planned).items():
                if key not in _OF_THE_DRAFTER and now.get(key) != part:
                    instead = json.dumps(now[key]) if key in now else None
                    differences.append((f"{flag}.{key}", json.dumps(part), instead))
        elif run.get(name) != value:
            differences.append((flag, "" if value == "true" else value, run.get(name)))
    return tuple(
        f"{flag} {value}".rstrip() + (f" ({instead} instead)" if instead else "")
        for flag, value, instead in differences
    )


def mount_tiny(ml_root: Path, drafter: Drafter | None) -> None:
    """Link tiny's folders below ``ml_root`` where the stand-in's environment expects them."""
    folder = Path(catalog().origins[TINY]).parent
    mounts = {TARGET_PATH: folder / catalog().targets[TINY].weights}
    if drafter is not None and drafter.weights is not None:
        mounts[DRAFTER_PATH] = folder / drafter.weights
    link_folders(mounts, ml_root)


def only_in_image(spec: LaunchSpec, ml_root: Path) -> str | None:
    """Why the engine would not find weights that are baked into the user's own image. ``None`` when
    the weights are here, or when that very image is run; and for AWS's own images, which contain
    none: there, a forgotten mount must fail as it does on AWS."""
    if spec.model_data or spec.plain or parse_ecr_image(spec.image) is None:
        return None
    below = [PurePosixPath(path) for path in model_paths(spec.environment).values()]
    named = [path.relative_to(ML_ROOT) for path in below if path.is_relative_to(ML_ROOT)]
    if all((ml_root / path).exists() for path in named) or is_local_image(spec.image):
        return None
    return f"its weights are baked into {spec.image}, which this sandbox does not run"


def is_local_image(name: str) -> bool:
    """Whether the sandbox runs this very image: as a container, from this machine."""
    return read_engine_kind() == "docker" and _cpu_image(Docker(), name) is not None


def _cpu_image(docker: Docker, name: str) -> Image | None:
    """The image of that name if it is on this machine and made for a CPU."""
    try:
        image = show_image(docker, name)
    except PeagleError:
        return None  # an image of AWS, which is not here and would need a GPU
    return image if image.runtime == "cpu" else None


def download(data: ModelData, ml_root: Path, region: str) -> None:
    """Download ``data`` below ``ml_root``. Raises LaunchFailed for weights that SageMaker would not
    find or not accept."""
    try:
        if not save_objects(data.uri, ml_root / data.into, region):
            raise ValueError(f"no object exists below {data.uri}")
    except (OSError, ValueError) as error:
        raise LaunchFailed(
            f'Failed to download model data for container "container_1" from URL: "{data.uri}". '
            "Please ensure that there is an object located at the URL and that the role passed to "
            f"CreateModel has permissions to download it. ({error})"
        ) from error


def launch(
    spec: LaunchSpec,
    instance: str,
    environment: Mapping[str, str],
    ml_root: Path,
    log: Path,
    record: Callable[[EngineProcess], object],
) -> None:
    """Start an engine; ``ml_root`` stands for ``/opt/ml``; ``record`` is called before it begins. A
    process is the CPU engine of this machine, whatever image the model names. A container is the
    named image if it is on this machine and made for a CPU; else the newest such image, of the same
    pair if there is one. Raises PeagleError."""
    variables = dict(environment)
    if read_engine_kind() == "docker":
        docker = Docker()
        image = _cpu_image(docker, spec.image) or _newest_image(docker, spec.pair)
        variables[IMAGE_DIGEST_VARIABLE] = image.digest
        # The targets of links are mounted themselves: a link would lead nowhere in the container.
        links = [path for path in sorted(ml_root.rglob("*")) if path.is_symlink()]
        folders = links or [path for path in sorted(ml_root.glob("*")) if path.is_dir()]
        if not links:  # the container's own user reads them; nobody else gets below $PEAGLE_HOME
            for path in ml_root.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
        mounts = {
            f"{ML_ROOT}/{path.relative_to(ml_root).as_posix()}": path.resolve() for path in folders
        }
        name = container_name("sandbox", instance)
        container = Container(name, image.id, variables, mounts, free_port())
        start_container(docker, container, log, record)
    else:
        refuse_code(spec.environment)
        if environment.get(WARM_MODE_VARIABLE) == COLLECT:
            variables[CACHE_VARIABLE] = str(ml_root.parent / "collected")  # and no other cache
        engine = find_engine(engine_version())
        start_engine(engine, variables, ml_root, free_port(), log, record)


def _newest_image(docker: Docker, pair: str) -> Image:
    """The newest image of the pair, else the newest, whose entrypoint refuses another pair."""
    images = list_images(docker, runtime="cpu", vllm=engine_version(), weights="mounted",
                         serve=serve_digest())  # fmt: skip
    if not images:
        fix = Fix("build one", ("peagle", "image", "build", "tiny", "--runtime", "cpu"))
        raise NotFound("no CPU image exists on this machine", fix, code="image-missing")
    return next((image for image in images if tag_value(image.pair) == pair), images[0])


def find_objects(uri: str, region: str) -> Iterator[tuple[str, FakeKey]]:
    """The keys and objects that begin with an S3 URI; none where there is no such bucket."""
    source = S3Uri.parse(uri)
    bucket = s3_backends[ACCOUNT][get_partition(region)].buckets.get(source.bucket)
    for key, content in list(bucket.keys.items()) if bucket else ():
        if key.startswith(source.key) and isinstance(content, FakeKey):  # not a delete marker
            yield key, content


def put_object(place: S3Uri, content: bytes, region: str) -> None:
    """Write an object. Raises MissingBucket."""
    s3_backends[ACCOUNT][get_partition(region)].put_object(place.bucket, place.key, content)


def save_objects(uri: str, folder: Path, region: str) -> int:
    """Write the objects whose keys begin with an S3 URI into ``folder``, by the rest of their keys,
    and a single object by its name; how many. Raises ValueError for a key that names no file, and
    for an object that is deleted meanwhile."""
    private_folder(folder)
    prefix, objects = S3Uri.parse(uri).key, list(find_objects(uri, region))
    for key, content in objects:
        name = key.removeprefix(prefix).lstrip("/") or key.rpartition("/")[2]
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"the key {key} names no file; SageMaker accepts only files")
        file, at = folder / name, 0
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as written:
            piece = b"-"
            while piece:
                with content.lock:
                    content._value_buffer.seek(at)
                    piece = content._value_buffer.read(_PIECE)
                at += written.write(piece)
    return len(objects)
