"""A plan's container image as a build context: the runtime's image, and a small layer on top.

    Dockerfile
    .dockerignore
    peagle/peagle_serve/...   the entrypoint
    peagle/pair.json          the pair and runtime of the image
    cache/                    a folder that the container's user can write to
    weights/...               baked weights: what other images have below /opt/ml

The environment comes from outside, on SageMaker and on a laptop alike. The same plan and recipe
give the same files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from peagle import __version__
from peagle.catalog.schema import Target
from peagle.data import entrypoint_folder
from peagle.errors import Unsupported
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, json_file, template, text_file
from peagle.render.image_names import repository_of, split_image
from peagle.render.plan_file import plan_document
from peagle_serve.contract import IMAGE_CONTENT_VARIABLE, ROOT_VARIABLE, VOCABULARY_VARIABLE

DOCKERFILE = "Dockerfile"
PAIR_FILE = "peagle/pair.json"
LAYER_LIMIT_BYTES = 5 * 10**6
"""The most bytes of the layer without weights: a scale-out waits for it."""

DIGITS = 12
"""Of the content's digest, in the name of an image."""

USER = "10001:10001"
"""The container's user and group; numeric, so that no base needs an entry for it."""

CACHE_FOLDER = "/var/cache/peagle"
"""The one folder other than ``/tmp`` that the container writes to: compiled code, downloads."""

CONTENT_LABEL = "peagle.content"
"""The label with ``content_digest``."""

RuntimeKind = Literal["gpu", "cpu"]

_PROVENANCE_LABELS = (
    "org.opencontainers.image.revision",
    "org.opencontainers.image.version",
    "peagle.plan",
)
"""Labels about the build, not about the contents."""


BAKED_ROOT = "/opt/peagle/ml"
"""The folder of baked weights. SageMaker mounts over ``/opt/ml`` itself."""

_HUB = f"{BAKED_ROOT}/hub"
VOCABULARY = "weights/vocabulary"
"""The folder of the build context with the vocabulary of a target that is downloaded."""


@dataclass(frozen=True)
class Download:
    """Weights to download from the Hub during the build: ``files`` of ``commit``.

    The engine asks for them as ``name``: a branch, a tag or that commit.
    """

    repo: str
    name: str
    commit: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Copied:
    """Weights to copy into an image: ``files`` of a local ``folder``, as the folder ``path`` of the
    build context. ``digest`` covers their contents."""

    path: str
    folder: str
    files: tuple[str, ...]
    digest: str


Baked = Download | Copied


def weight_instructions(weights: Sequence[Baked]) -> str:
    """The Dockerfile lines that add the weights; empty without weights."""
    if not weights:
        return ""
    lines = ["", "# Weights of the plan; other images mount or download them."]
    if any(isinstance(baked, Copied) for baked in weights):
        lines.append(f"COPY weights {BAKED_ROOT}")
    for baked in weights:
        if isinstance(baked, Download):
            program = template("download.py.txt")
            arguments = (baked.repo, baked.commit, baked.name, _HUB, *baked.files)
            argv = ["python3", "-c", program, *arguments]
            lines.append(f"RUN {json.dumps(argv)}")
    return "\n".join([*lines, ""])


@dataclass(frozen=True)
class Recipe:
    """How an image is made of a plan.

    ``base`` is the base image, preferably with its digest (``name:tag@sha256:...``). ``target`` is
    the catalogue's entry for the plan's target, ``None`` without one. ``revision`` is the commit
    of the toolkit's source, if there is one. ``weights`` are the baked weights, as
    ``peagle.images.build`` finds them for a plan.
    """

    runtime: RuntimeKind
    base: str
    target: Target | None
    revision: str | None = None
    weights: tuple[Baked, ...] = ()


def context_files(plan: Plan, recipe: Recipe) -> tuple[RenderedFile, ...]:
    """Every file of the build context except weights, sorted by path."""
    files = (text_file(DOCKERFILE, dockerfile(plan, recipe)), *_copied_files(plan, recipe))
    return tuple(sorted(files, key=lambda file: file.path))


def _copied_files(plan: Plan, recipe: Recipe) -> tuple[RenderedFile, ...]:
    """The files that the Dockerfile copies, and .dockerignore."""
    return (
        text_file(".dockerignore", "*\n!peagle\n!cache\n!weights\n**/__pycache__\n"),
        json_file(PAIR_FILE, pair_document(plan, recipe.target)),
        text_file("cache/README", "Compiled code and downloads of the engine.\n"),
        *serve_files(),
    )


def serve_files() -> tuple[RenderedFile, ...]:
    folder = entrypoint_folder()
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return tuple(
        RenderedFile(f"peagle/peagle_serve/{path.as_posix()}", (folder / path).read_bytes())
        for path in paths
        if "__pycache__" not in path.parts
    )


def serve_digest() -> str:
    """SHA-256 of the entrypoint's sources, to tell whether an image has the current ones."""
    return _digest(serve_files())


def content_digest(plan: Plan, recipe: Recipe) -> str:
    """SHA-256 of the image's contents: base, entrypoint, pair, weights.

    The plan's other choices and the toolkit's commit do not count, and neither does the name of a
    base with a known digest: the result is the same in every region.
    """
    base, digest = split_image(recipe.base)
    counted = replace(recipe, base=digest or base, revision=None)
    kept = {k: v for k, v in _labels(plan, counted).items() if k not in _PROVENANCE_LABELS}
    weights = [
        RenderedFile(baked.path, baked.digest.encode())
        for baked in recipe.weights
        if isinstance(baked, Copied)
    ]
    text = text_file(DOCKERFILE, _text(plan, counted, kept, {}))
    return _digest((text, *_copied_files(plan, recipe), *weights))


def image_name(plan: Plan, recipe: Recipe) -> str:
    """``peagle-tiny:0.28.0-cpu-<digest of the content>``.

    Each content has its own tag, so a repository with immutable tags can hold all of them; plans
    with the same content share an image.
    """
    digest = content_digest(plan, recipe)[:DIGITS]
    return f"{repository_of(plan)}:{plan.runtime.vllm}-{recipe.runtime}-{digest}"


def pair_document(plan: Plan, target: Target | None) -> dict[str, Any]:
    """The pair that the image is for, as its entrypoint reads it.

    ``facts`` are values of config.json, by which the entrypoint identifies models in mounted
    folders; they come from ``target``, the catalogue's entry.
    """
    speculation = plan.speculation
    return {
        "pair": plan.pair,
        "target": plan.target.id,
        "drafter": plan.drafter.id if plan.drafter else None,
        "method": speculation.method if speculation else None,
        "parallel_drafting": speculation.parallel_drafting if speculation else None,
        "k": speculation.k if speculation else None,
        "vllm": plan.runtime.vllm,
        "facts": _facts(plan, target),
    }


def _facts(plan: Plan, target: Target | None) -> dict[str, dict[str, Any]]:
    if target is None:
        return {}
    numbers = target.architecture
    facts: dict[str, dict[str, Any]] = {
        "target": {
            "architecture": numbers.class_name,
            "hidden_size": numbers.hidden_size,
            "num_hidden_layers": numbers.layers,
            "vocab_size": numbers.vocab_size,
        }
    }
    for drafter in target.drafters:
        same = plan.drafter is not None and plan.drafter.name == drafter.name
        if same and drafter.format == "vllm" and drafter.hidden_layers:
            facts["drafter"] = {"num_hidden_layers": drafter.hidden_layers}
    return facts


def labels(plan: Plan, recipe: Recipe) -> dict[str, str]:
    """The image's labels: OCI's names where they exist, else ``peagle.*``.

    An unknown value is an empty label, since the image would otherwise inherit the base's.
    """
    return {**_labels(plan, recipe), CONTENT_LABEL: content_digest(plan, recipe)}


def _labels(plan: Plan, recipe: Recipe) -> dict[str, str]:
    drafter = plan.drafter
    base, _, digest = recipe.base.partition("@")
    values = {
        "org.opencontainers.image.title": "peagle-serve",
        "org.opencontainers.image.description": f"{plan.pair} on vLLM {plan.runtime.vllm}",
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.base.name": base,
        "org.opencontainers.image.base.digest": digest,
        "org.opencontainers.image.revision": recipe.revision,
        "peagle.pair": plan.pair,
        "peagle.runtime": recipe.runtime,
        "peagle.vllm": plan.runtime.vllm,
        "peagle.plan": plan_document(plan)["digest"],
        "peagle.serve": serve_digest(),
        "peagle.weights": "baked" if recipe.weights else "mounted",
        "peagle.licence.target": plan.target.licence,
        "peagle.licence.drafter": drafter.licence if drafter else None,
    }
    return {name: value or "" for name, value in values.items()}


def dockerfile(plan: Plan, recipe: Recipe) -> str:
    """The Dockerfile. Raises UserError for an invalid base, and Unsupported for a plan whose image
    already contains the weights."""
    if plan.target.weights.kind == "image":
        raise Unsupported(
            f"the plan uses an existing image with baked weights: {plan.runtime.image}",
            "omit --baked-weights; use --bake-weights to build such an image",
            code="weights-baked",
        )
    _, digest = split_image(recipe.base)
    labelled = labels(plan, recipe)
    # A tag may point to another image tomorrow; that of the CPU engine ends in a digest. The
    # variable is set even when empty: a base built by the toolkit has its own value.
    is_exact = recipe.runtime == "cpu" or digest is not None
    content = f"sha256:{labelled[CONTENT_LABEL]}" if is_exact else ""
    return _text(plan, recipe, labelled, {IMAGE_CONTENT_VARIABLE: content})


def _text(plan: Plan, recipe: Recipe, labelled: Mapping[str, str], more: Mapping[str, str]) -> str:
    environment = {"HOME": CACHE_FOLDER, "USER": "peagle", "LOGNAME": "peagle"}
    if recipe.weights:
        environment |= {ROOT_VARIABLE: BAKED_ROOT, "HF_HUB_CACHE": _HUB, "HF_HUB_OFFLINE": "1"}
    if any(isinstance(baked, Copied) and baked.path == VOCABULARY for baked in recipe.weights):
        environment[VOCABULARY_VARIABLE] = f"{BAKED_ROOT}/{VOCABULARY.partition('/')[2]}"
    return template("image.Dockerfile").format(
        vllm=plan.runtime.vllm,
        base=recipe.base,
        labels=_settings("LABEL", labelled),
        weights=weight_instructions(recipe.weights),
        environment=_settings("ENV", {**environment, **more}),
        user=USER,
        cache=CACHE_FOLDER,
    )


def _settings(instruction: str, values: Mapping[str, str]) -> str:
    """One instruction with all values, one per line."""
    joined = " \\\n      ".join(f"{name}={_quoted(value)}" for name, value in values.items())
    return f"{instruction} {joined}"


def _quoted(value: str) -> str:
    """A value that a Dockerfile reads literally: quoted, with variables escaped."""
    plain = " ".join(value.split())
    return '"' + "".join(f"\\{c}" if c in '\\"$' else c for c in plain) + '"'


def _digest(files: tuple[RenderedFile, ...]) -> str:
    listed = [[file.path, hashlib.sha256(file.content).hexdigest()] for file in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
