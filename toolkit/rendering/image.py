"""A plan's container image as a build context: the runtime's image, and a small layer on top.

    Dockerfile
    .dockerignore
    peagle/serve/...      containers/serve, as it is
    peagle/pair.json      which pair, runtime and plan this image is for
    cache/                an empty folder that the container's own user may write
    weights/...           only with baked weights: what is below /opt/ml in other images

The environment comes from outside, on SageMaker and on a laptop alike. The same plan and recipe
give the same files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from toolkit import __version__
from toolkit.data import data_folder
from toolkit.errors import Unsupported, UserError
from toolkit.planning.models import Plan, Weights
from toolkit.rendering.document import plan_document
from toolkit.rendering.models import RenderedFile
from toolkit.rendering.text import json_file, text_file

DOCKERFILE = "Dockerfile"
PAIR_FILE = "peagle/pair.json"
LAYER_LIMIT_BYTES = 5 * 10**6
"""What the layer may take beside weights: a scale-out waits for it."""

USER = "10001:10001"
"""The container's user and group; a number, so that no base needs to know it by name."""

CACHE_FOLDER = "/var/cache/peagle"
"""Beside ``/tmp`` the one place that the container writes to: compiled code, downloads."""

BAKED_ROOT = "/opt/peagle/ml"
"""Where baked weights lie. ``/opt/ml`` itself is SageMaker's to mount over."""

RuntimeKind = Literal["gpu", "cpu"]

_HUB = f"{BAKED_ROOT}/hub"
_IMAGE_NAME = re.compile(r"[\w][\w.:/@-]*", re.ASCII)
_DOWNLOAD = (
    "import sys; from huggingface_hub import snapshot_download as get; "
    "get(sys.argv[1], revision=sys.argv[2] or None, cache_dir=sys.argv[3])"
)


@dataclass(frozen=True)
class Recipe:
    """How an image is made of a plan.

    ``base`` is the image that it is FROM, best with its digest (``...@sha256:...``).
    ``revision`` is the commit of the toolkit's source, if there is one. With ``bake_weights`` the
    plan's weights are in the image.
    """

    runtime: RuntimeKind
    base: str
    revision: str | None = None
    bake_weights: bool = False


def context_files(plan: Plan, recipe: Recipe) -> tuple[RenderedFile, ...]:
    """Every file of the build context but weights, in the order of their paths."""
    files = (
        text_file(DOCKERFILE, dockerfile(plan, recipe)),
        text_file(".dockerignore", "*\n!peagle\n!cache\n!weights\n**/__pycache__\n"),
        json_file(PAIR_FILE, pair_document(plan)),
        text_file("cache/README", "What the engine compiles and downloads.\n"),
        *serve_files(),
    )
    return tuple(sorted(files, key=lambda file: file.path))


def serve_files() -> tuple[RenderedFile, ...]:
    """The entrypoint's sources."""
    folder = data_folder("containers") / "serve"
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        RenderedFile(f"peagle/serve/{path.relative_to(folder).as_posix()}", path.read_bytes())
        for path in paths
        if "__pycache__" not in path.parts
    )


def serve_digest() -> str:
    """SHA-256 over the entrypoint's sources: whether an image's entrypoint is today's."""
    return _digest(serve_files())


def context_digest(plan: Plan, recipe: Recipe) -> str:
    """SHA-256 over the whole context; for weights stand the places that they come from."""
    folders = baked_folders(plan) if recipe.bake_weights else {}
    weights = [RenderedFile(path, location.encode()) for path, location in folders.items()]
    return _digest((*context_files(plan, recipe), *weights))


def baked_folders(plan: Plan) -> dict[str, str]:
    """Path in the context -> folder on this machine, of the weights that can be copied in.

    Raises Unsupported for weights that lie in S3 only.
    """
    found = {}
    for weights in _weights(plan):
        if weights.kind == "s3":
            raise Unsupported(
                f"weights in S3 cannot be baked into an image: {weights.location}",
                "leave out --bake-weights (SageMaker mounts them), or copy them to a folder first",
            )
        if weights.kind == "directory":
            below = PurePosixPath(weights.engine_path).relative_to("/opt/ml")
            found[f"weights/{below}"] = weights.location
    return found


def _weights(plan: Plan) -> tuple[Weights, ...]:
    drafter = plan.drafter.weights if plan.drafter else None
    return (plan.target.weights, drafter) if drafter else (plan.target.weights,)


def pair_document(plan: Plan) -> dict[str, Any]:
    """What the image is for, as its entrypoint and `peagle image show` can read it."""
    speculation = plan.speculation
    return {
        "pair": plan.pair,
        "target": plan.target.id,
        "drafter": plan.drafter.id if plan.drafter else None,
        "method": speculation.method if speculation else None,
        "parallel_drafting": speculation.parallel_drafting if speculation else None,
        "k": speculation.k if speculation else None,
        "vllm": plan.runtime.vllm,
        "plan": plan_document(plan)["digest"],
    }


def labels(plan: Plan, recipe: Recipe) -> dict[str, str]:
    """The image's labels. OCI's own names where there is one, else ``peagle.*``."""
    drafter = plan.drafter
    found = {
        "org.opencontainers.image.title": "peagle-serve",
        "org.opencontainers.image.description": f"{plan.pair} on vLLM {plan.runtime.vllm}",
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.base.name": recipe.base,
        "org.opencontainers.image.base.digest": recipe.base.partition("@")[2],
        "org.opencontainers.image.revision": recipe.revision,
        "peagle.pair": plan.pair,
        "peagle.runtime": recipe.runtime,
        "peagle.vllm": plan.runtime.vllm,
        "peagle.plan": plan_document(plan)["digest"],
        "peagle.serve": serve_digest(),
        "peagle.weights": "baked" if recipe.bake_weights else "mounted",
        "peagle.licence.target": plan.target.licence,
        "peagle.licence.drafter": drafter.licence if drafter else None,
    }
    return {name: value for name, value in found.items() if value}


def dockerfile(plan: Plan, recipe: Recipe) -> str:
    """The Dockerfile. Raises UserError for a base that is no image's name."""
    if not _IMAGE_NAME.fullmatch(recipe.base):
        raise UserError(f"{recipe.base!r} is no name of an image", "such as debian:bookworm-slim")
    return _DOCKERFILE.format(
        vllm=plan.runtime.vllm,
        base=recipe.base,
        labels=_settings("LABEL", labels(plan, recipe)),
        weights=_baking(plan) if recipe.bake_weights else "",
        environment=_settings("ENV", _environment(recipe)),
        user=USER,
        cache=CACHE_FOLDER,
    )


def _environment(recipe: Recipe) -> dict[str, str]:
    """Where the user's files are, and who the user is for programs that ask for a name."""
    found = {"HOME": CACHE_FOLDER, "USER": "peagle", "LOGNAME": "peagle"}
    if recipe.bake_weights:
        found |= {"PEAGLE_ML_ROOT": BAKED_ROOT, "HF_HUB_CACHE": _HUB, "HF_HUB_OFFLINE": "1"}
    return found


def _baking(plan: Plan) -> str:
    """The instructions that bring the weights in: copied, or downloaded while building."""
    lines = ["", "# Weights of the plan, where other images have them mounted or download them."]
    if baked_folders(plan):
        lines.append(f"COPY weights {BAKED_ROOT}")
    for weights in _weights(plan):
        if weights.kind == "hub":
            argv = ["python3", "-c", _DOWNLOAD, weights.location, weights.revision or "", _HUB]
            lines.append(f"RUN {json.dumps(argv)}")
    return "\n".join([*lines, ""])


def _settings(instruction: str, values: Mapping[str, str]) -> str:
    """One instruction with all values, a line for each."""
    joined = " \\\n      ".join(f"{name}={_quoted(value)}" for name, value in values.items())
    return f"{instruction} {joined}"


def _quoted(value: str) -> str:
    """A value that a Dockerfile reads as it is: quoted, and without variables in it."""
    plain = " ".join(value.split())
    return '"' + "".join(f"\\{c}" if c in '\\"$' else c for c in plain) + '"'


def _digest(files: tuple[RenderedFile, ...]) -> str:
    listed = [[file.path, hashlib.sha256(file.content).hexdigest()] for file in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


_DOCKERFILE = """\
# vLLM {vllm}, with an entrypoint that checks the environment, ends when the engine ends, and can
# say how many drafts were accepted.
ARG BASE={base}
FROM ${{BASE}}

{labels}

COPY peagle /opt/peagle
COPY --chown={user} cache {cache}
{weights}
{environment}

USER {user}
WORKDIR {cache}
EXPOSE 8080
ENTRYPOINT ["python3", "/opt/peagle/serve"]
# SageMaker starts the container with the argument `serve`, which the entrypoint takes or leaves.
CMD ["serve"]
"""
