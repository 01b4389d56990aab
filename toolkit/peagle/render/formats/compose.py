"""One engine as a service of Docker Compose: a container with the environment and the mounts of
SageMaker, and no more rights than it needs.

The format builds the plan's image and runs it on one machine. ``compose.yaml`` needs no image
first: its build context is in the same folder. An image of the user's own is pulled. Weights in
folders are mounted; those in S3 are copied next to the file first.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Literal

from peagle.catalog.schema import Catalog
from peagle.checks.facts import parse_ecr_image
from peagle.data import weights_folder
from peagle.planning.plan import MODEL_BUCKET, Plan
from peagle.planning.weights import local_weights
from peagle.render.files import RenderedFile, readme, request_example, text_file, yaml_text
from peagle.render.formats import only_sagemaker
from peagle.render.formats.dockerfile import choose_recipe
from peagle.render.image import CACHE_FOLDER, context_files, image_name, is_own_image
from peagle.render.kubernetes import has_hub_weights, served_names
from peagle.s3uri import S3Uri
from peagle_serve.contract import ADDITIONAL, DEFAULT_PORT, ML_ROOT, MODEL_FOLDER

SHARED_MEMORY = "1g"
"""For communication between ranks; NCCL fails with Docker's default of 64 MB."""

CACHE_VOLUME = "peagle-cache"
"""Keeps the compile caches and downloads of all containers of one Docker engine."""

TMPFS = "/tmp:exec,mode=1777"  # nosec B108 # the container's own, in memory
"""Docker mounts a tmpfs noexec by default; compiled code is loaded from here."""

_HEALTH = (
    "import urllib.request as r; "
    f"r.build_opener(r.ProxyHandler({{}})).open('http://127.0.0.1:{DEFAULT_PORT}/ping', timeout=5)"
)
HEALTH_COMMAND = ("python3", "-c", _HEALTH)

_CACHE = "cache"


def compose_text(
    heading: str,
    *,
    name: str,
    image: str,
    environment: Mapping[str, str | None],
    mounts: Mapping[str, str],
    address: str,
    start_seconds: int,
    gpus: int | Literal["all"] | None = None,
    build: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> str:
    """The text of the compose file of one service, below comments. The service has a name of its
    own, as the folder names the project and may hold several such files.

    ``mounts`` maps a path in the container to a folder, relative to the file; ``build`` is the
    folder of the build context of ``image``. A variable that is ``None`` gets the value of
    Compose's own environment. ``address`` is where Compose publishes the port, with references to
    its variables."""
    binds = [
        {"type": "bind", "source": folder, "target": path, "read_only": True}
        for path, folder in sorted(mounts.items())
    ]
    described: dict[str, Any] = {
        "image": image,
        **({"build": {"context": build}} if build is not None else {}),
        "command": ["serve"],
        **({"labels": dict(labels)} if labels else {}),
        "environment": dict(sorted(environment.items())),
        "ports": [],
        "read_only": True,
        "tmpfs": [TMPFS],
        "shm_size": SHARED_MEMORY,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "volumes": [{"type": "volume", "source": _CACHE, "target": CACHE_FOLDER}, *binds],
        "healthcheck": {
            "test": ["CMD-SHELL", shlex.join(HEALTH_COMMAND)],
            "interval": "10s",
            "start_period": f"{start_seconds}s",
        },
        "stop_grace_period": "120s",
    }
    if gpus is not None:
        device = {"driver": "nvidia", "count": gpus, "capabilities": ["gpu"]}
        described["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    described = _literal(described)
    described["ports"] = [f"{address}:{DEFAULT_PORT}"]
    document = {
        "services": {name: described},
        "volumes": {_CACHE: {"name": CACHE_VOLUME}},
    }
    return yaml_text([document], heading.splitlines())


def _literal(value: Any) -> Any:
    """``value`` with ``$``, which begins a variable in a compose file, escaped in all texts."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


COMPOSE, CONTEXT = "compose.yaml", "image"
FILES = (COMPOSE, "README.md")
NO_ENDPOINT = True

_HUB_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
"""Variables that say where the Hub's client keeps downloads."""


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    has_own_image, from_hub = is_own_image(plan, catalog.runtimes), has_hub_weights(plan)
    recipe, runtime = choose_recipe(plan, catalog), plan.runtime
    context = () if has_own_image else context_files(plan, recipe)
    environment: dict[str, str | None] = {**plan.environment}
    if from_hub:
        # The Hub token of the caller, and the cache volume as the Hub's folder: ``/tmp``, which the
        # plan names, is in memory here.
        others = {k: v for k, v in environment.items() if k not in _HUB_FOLDERS}
        environment = {"HF_TOKEN": None, **others, "HF_HOME": f"{CACHE_FOLDER}/huggingface"}
    folders = {
        weights.engine_path: str(weights_folder(weights.location).resolve())
        for weights in local_weights(plan)
    }
    copied: dict[str, str] = {}
    syncs = []
    for mount in plan.mounts:
        if not mount.s3_uri.startswith(str(S3Uri(MODEL_BUCKET))):  # weights in S3 are copied
            path = f"{ML_ROOT}/{ADDITIONAL}/{mount.channel}" if mount.channel else MODEL_FOLDER
            folder = mount.channel or "model"
            copied[path] = f"./{folder}"
            syncs.append(shlex.join(["aws", "s3", "sync", mount.s3_uri, f"{folder}/"]) + "\n")
    heading = (
        f"{plan.pair} with vLLM {runtime.vllm}, from `peagle render compose`\n"
        f"The machine: GPUs as {plan.instance_type} has, and a driver for CUDA {runtime.cuda}\n"
    )
    text = compose_text(
        heading,
        name=plan.name,
        image=runtime.image if has_own_image else image_name(plan, recipe),
        environment=environment,
        mounts={**folders, **copied},
        address=f"127.0.0.1:${{PORT:-{DEFAULT_PORT}}}",
        start_seconds=plan.startup_timeout_seconds,
        gpus=plan.fit.tensor_parallel_size,
        build=None if has_own_image else f"./{CONTEXT}",
        labels=plan.company.tags,
    )
    registry, ecr = runtime.image.partition("/")[0], parse_ecr_image(runtime.image)
    how_to = readme(
        plan,
        catalog,
        "compose",
        cuda=runtime.cuda,
        gpus=plan.fit.tensor_parallel_size,
        login=_LOGIN.format(region=ecr.region, registry=registry) if ecr else "",
        copying="".join(syncs),
        token=_TOKEN if from_hub else "",
        first_start=_PULLED if has_own_image else _BUILT.format(base=recipe.base),
        port=DEFAULT_PORT,
        body=shlex.quote(request_example(plan, model=served_names(plan)[0])),
    )
    return (
        text_file(COMPOSE, text),
        *(RenderedFile(f"{CONTEXT}/{file.path}", file.content) for file in context),
        how_to,
    )


def unsupported(plan: Plan) -> str:
    """Several engines, and what SageMaker does around an engine."""
    if plan.scaling is not None:
        return "one machine has nothing to scale"
    if plan.engines > 1:
        return f"it runs one engine on one machine, and the plan has {plan.engines}"
    if plan.observe and plan.observe.capture:
        return "--capture-data is done by SageMaker"
    return only_sagemaker(plan, "this machine is the host")


_LOGIN = """\
aws ecr get-login-password --region {region} |
  docker login --username AWS --password-stdin {registry}
"""

_BUILT = """\
The first `up` builds the image: the base, larger than 10 GB, and a small layer. Another base with
the same vLLM: `docker compose build --build-arg BASE=IMAGE`. The base is
`{base}`.
"""

_PULLED = "The first `up` pulls the image.\n"

_TOKEN = """
The engine downloads the weights from the Hub, once: a volume keeps them. For gated ones, set
`HF_TOKEN`.
"""
