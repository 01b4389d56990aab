"""The plan as a compose file, which builds the plan's image and runs it on one machine.

``compose.yaml`` needs no image first: its build context is in the same folder. An image of the
user's own is pulled. Weights in folders are mounted; those in S3 are copied next to the file first.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

from peagle.catalog.schema import Catalog
from peagle.checks.facts import parse_ecr_image
from peagle.data import weights_folder
from peagle.planning.plan import MODEL_BUCKET, Plan
from peagle.render.compose import ComposeService, compose_text
from peagle.render.files import RenderedFile, readme, request_example, text_file
from peagle.render.formats import only_sagemaker
from peagle.render.formats.dockerfile import recipe_of
from peagle.render.image import CACHE_FOLDER, context_files, image_name
from peagle.render.image_names import is_own_image
from peagle.render.kubernetes import has_hub_weights, served_names
from peagle.s3uri import S3Uri
from peagle_serve.contract import ADDITIONAL, DEFAULT_PORT, ML_ROOT, MODEL_FOLDER

COMPOSE, CONTEXT = "compose.yaml", "image"
FILES = (COMPOSE, "README.md")
NO_ENDPOINT = True

_FOLDER_VARIABLES = {
    f"{MODEL_FOLDER}/target": "TARGET_FOLDER",
    f"{MODEL_FOLDER}/drafter": "DRAFTER_FOLDER",
}
"""Compose's variables of the folders of weights on this machine; the default is the plan's."""

PORT_VARIABLE = "PORT"
"""Compose's variable of the port on this machine."""

_HUB_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
"""Variables that say where the Hub's client keeps downloads."""

HUB_TOKEN = "HF_TOKEN"  # nosec B105 # the name of a variable


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    has_own_image = is_own_image(plan, catalog.runtimes)
    recipe = recipe_of(plan, catalog)
    context = () if has_own_image else context_files(plan, recipe)
    service = ComposeService(
        name=plan.name,
        image=plan.runtime.image if has_own_image else image_name(plan, recipe),
        environment=_environment(plan),
        mounts={**_folders(plan), **{path: f"./{folder}" for path, folder, _ in _in_s3(plan)}},
        address=f"127.0.0.1:${{{PORT_VARIABLE}:-{DEFAULT_PORT}}}",
        start_seconds=plan.startup_timeout_seconds,
        gpus=plan.fit.tensor_parallel_size,
        build=None if has_own_image else f"./{CONTEXT}",
        labels=plan.company.tags,
        folder_variables=_FOLDER_VARIABLES,
    )
    heading = _HEADING.format(
        pair=plan.pair, vllm=plan.runtime.vllm, instance=plan.instance_type, cuda=plan.runtime.cuda
    )
    how_to = readme(
        plan,
        catalog,
        "compose",
        cuda=plan.runtime.cuda,
        gpus=plan.fit.tensor_parallel_size,
        login=_login(plan),
        copying=_copying(plan),
        folders=_OWN_FOLDERS if _folders(plan) else "",
        token=_TOKEN if has_hub_weights(plan) else "",
        first_start=_PULLED if has_own_image else _BUILT.format(base=recipe.base),
        port=DEFAULT_PORT,
        body=shlex.quote(request_example(plan, model=served_names(plan)[0])),
    )
    return (
        text_file(COMPOSE, compose_text(service, heading)),
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


def _environment(plan: Plan) -> dict[str, str | None]:
    """The plan's environment. Where the engine downloads, the Hub token of the caller, and the
    cache volume as the Hub's folder: ``/tmp``, which the plan names, is in memory here."""
    if not has_hub_weights(plan):
        return {**plan.environment}
    others = {k: v for k, v in plan.environment.items() if k not in _HUB_FOLDERS}
    return {HUB_TOKEN: None, **others, "HF_HOME": f"{CACHE_FOLDER}/huggingface"}


def _folders(plan: Plan) -> dict[str, str]:
    """Path in the container -> folder on this machine, of all local weights."""
    models = (plan.target, plan.drafter)
    return {
        model.weights.engine_path: str(weights_folder(model.weights.location).resolve())
        for model in models
        if model and model.weights and model.weights.kind == "directory"
    }


class _Copy(NamedTuple):
    """Weights of the prefix ``s3_uri``, which are copied to ``folder`` next to the file and mounted
    at ``engine_path``."""

    engine_path: str
    folder: str
    s3_uri: str


def _in_s3(plan: Plan) -> list[_Copy]:
    """All weights in S3."""
    return [
        _Copy(MODEL_FOLDER, "model", mount.s3_uri)
        if mount.channel is None
        else _Copy(f"{ML_ROOT}/{ADDITIONAL}/{mount.channel}", mount.channel, mount.s3_uri)
        for mount in plan.mounts
        if not mount.s3_uri.startswith(str(S3Uri(MODEL_BUCKET)))
    ]


def _login(plan: Plan) -> str:
    """The login to the registry of the plan's image, where that is ECR."""
    image = parse_ecr_image(plan.runtime.image)
    if image is None:
        return ""
    host = plan.runtime.image.partition("/")[0]
    return _LOGIN.format(region=image.region, registry=host)


def _copying(plan: Plan) -> str:
    commands = (["aws", "s3", "sync", uri, f"{folder}/"] for _, folder, uri in _in_s3(plan))
    return "".join(f"{shlex.join(command)}\n" for command in commands)


_HEADING = """\
{pair} with vLLM {vllm}, from `peagle render compose`
The machine: GPUs as {instance} has, and a driver for CUDA {cuda}
"""

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

_OWN_FOLDERS = """

On another machine, `TARGET_FOLDER` and `DRAFTER_FOLDER` say where the folders of weights are."""

_TOKEN = """
The engine downloads the weights from the Hub, once: a volume keeps them. For gated ones, set
`HF_TOKEN`.
"""
