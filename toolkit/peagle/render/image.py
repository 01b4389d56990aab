"""A plan's container image as a build context: the runtime's image, and a small layer on top.

    Dockerfile
    .dockerignore
    peagle/peagle_serve/...   the entrypoint
    peagle/pair.json          the pair and runtime of the image
    cache/                    a folder that the container's user can write to
    weights/...               baked weights: what other images have below /opt/ml

The environment comes from outside, on SageMaker and on a laptop alike. The same plan and recipe
give the same files. Names of images are those that Docker and ECR accept.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from peagle import __version__
from peagle.catalog.documents import BadFile, read_bytes
from peagle.catalog.schema import Target
from peagle.catalog.tables import Runtime, RuntimeTable, exact_image_uri, image_uri
from peagle.data import entrypoint_folder
from peagle.errors import Fix, NotFound, Unsupported, UserError
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile, json_file, template, text_file
from peagle.render.plan_file import plan_document
from peagle_serve.contract import IMAGE_CONTENT_VARIABLE, ROOT_VARIABLE, VOCABULARY_VARIABLE

DOCKERFILE = "Dockerfile"
PAIR_FILE = "peagle/pair.json"
LAYER_LIMIT_BYTES = 5 * 10**6
"""The most bytes of the layer without weights: a scale-out waits for it."""

DIGITS = 12

CACHE_FOLDER = "/var/cache/peagle"
"""The one folder other than ``/tmp`` that the container writes to: compiled code, downloads."""

CONTENT_LABEL = "peagle.content"

RuntimeKind = Literal["gpu", "cpu"]

_PROVENANCE_LABELS = (
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
    """Weights to download from the Hub during the build: ``files`` of ``commit``. The engine asks
    for them as ``name``: a branch, a tag or that commit."""

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


@dataclass(frozen=True)
class Recipe:
    """How an image is made of a plan. ``base`` is the base image, preferably with its digest.
    ``target`` is the catalogue's entry for the plan's target, ``weights`` the baked weights."""

    runtime: RuntimeKind
    base: str
    target: Target | None
    weights: tuple[Baked, ...] = ()


def context_files(plan: Plan, recipe: Recipe) -> tuple[RenderedFile, ...]:
    """Every file of the build context except weights, sorted by path."""
    files = (text_file(DOCKERFILE, dockerfile(plan, recipe)), *_copied_files(plan, recipe))
    return tuple(sorted(files, key=lambda file: file.path))


def _copied_files(plan: Plan, recipe: Recipe) -> tuple[RenderedFile, ...]:
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
    """SHA-256 of the image's contents: base, entrypoint, pair, weights. The plan's other choices
    and the toolkit's version do not count, and neither does the name of a base with a known digest:
    the result is the same in every region."""
    base, digest = split_image(recipe.base)
    counted = replace(recipe, base=digest or base)
    kept = {k: v for k, v in _labels(plan, counted).items() if k not in _PROVENANCE_LABELS}
    weights = [
        RenderedFile(baked.path, baked.digest.encode())
        for baked in recipe.weights
        if isinstance(baked, Copied)
    ]
    text = text_file(DOCKERFILE, _text(plan, counted, kept, {}))
    return _digest((text, *_copied_files(plan, recipe), *weights))


def image_name(plan: Plan, recipe: Recipe) -> str:
    """``peagle-tiny:0.28.0-cpu-<digest of the content>``: each content has its own tag, so that a
    repository with immutable tags can hold all of them."""
    digest = content_digest(plan, recipe)[:DIGITS]
    # The repository is the target's short name in a registry's spelling.
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in plan.target.id.lower())
    stem = name.partition("-")[2] if "/" in plan.target.id else name
    stem = "-".join(part for part in stem.split("-") if part)
    repository = stem if stem.startswith("peagle-") else f"peagle-{stem}"
    return f"{repository}:{plan.runtime.vllm}-{recipe.runtime}-{digest}"


def pair_document(plan: Plan, target: Target | None) -> dict[str, Any]:
    """The pair that the image is for, as its entrypoint reads it. ``facts`` are values of
    config.json, by which it identifies models in mounted folders; they come from ``target``."""
    speculation, facts = plan.speculation, dict[str, dict[str, Any]]()
    if target is not None:
        numbers = target.architecture
        facts["target"] = {
            "architecture": numbers.class_name,
            "hidden_size": numbers.hidden_size,
            "num_hidden_layers": numbers.layers,
            "vocab_size": numbers.vocab_size,
        }
    for drafter in target.drafters if target else ():
        same = plan.drafter is not None and plan.drafter.name == drafter.name
        if same and drafter.format == "vllm" and drafter.hidden_layers:
            facts["drafter"] = {"num_hidden_layers": drafter.hidden_layers}
    return {
        "pair": plan.pair,
        "target": plan.target.id,
        "drafter": plan.drafter.id if plan.drafter else None,
        "method": speculation.method if speculation else None,
        "parallel_drafting": speculation.parallel_drafting if speculation else None,
        "k": speculation.k if speculation else None,
        "vllm": plan.runtime.vllm,
        "facts": facts,
    }


def labels(plan: Plan, recipe: Recipe) -> dict[str, str]:
    """The image's labels: OCI's names where they exist, else ``peagle.*``; an empty label hides the
    base's."""
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
        "org.opencontainers.image.revision": "",
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
    lines = []
    if recipe.weights:
        environment |= {ROOT_VARIABLE: BAKED_ROOT, "HF_HUB_CACHE": _HUB, "HF_HUB_OFFLINE": "1"}
        lines += ["", "# Weights of the plan; other images mount or download them."]
    if any(isinstance(baked, Copied) for baked in recipe.weights):
        lines.append(f"COPY weights {BAKED_ROOT}")
    for baked in recipe.weights:
        if isinstance(baked, Download):
            program = template("download.py.txt")
            arguments = (baked.repo, baked.commit, baked.name, _HUB, *baked.files)
            lines.append(f"RUN {json.dumps(['python3', '-c', program, *arguments])}")
        elif baked.path == VOCABULARY:
            environment[VOCABULARY_VARIABLE] = f"{BAKED_ROOT}/{VOCABULARY.partition('/')[2]}"

    def settings(instruction: str, values: Mapping[str, str]) -> str:
        """One instruction with all values, one per line, which are read literally: quoted, with
        variables escaped."""
        plain = {name: " ".join(value.split()) for name, value in values.items()}
        escaped = {
            name: "".join(f"\\{c}" if c in '\\"$' else c for c in value)
            for name, value in plain.items()
        }
        joined = " \\\n      ".join(f'{name}="{value}"' for name, value in escaped.items())
        return f"{instruction} {joined}"

    return template("image.Dockerfile").format(
        vllm=plan.runtime.vllm,
        base=recipe.base,
        labels=settings("LABEL", labelled),
        weights="\n".join([*lines, ""]) if lines else "",
        environment=settings("ENV", {**environment, **more}),
        user="10001:10001",  # numeric, so that no base needs an entry for it
        cache=CACHE_FOLDER,
    )


def _digest(files: tuple[RenderedFile, ...]) -> str:
    listed = [[file.path, hashlib.sha256(file.content).hexdigest()] for file in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


_TAG = r"\w[\w.-]{0,127}"
_IMAGE = re.compile(
    rf"(?P<name>(?:[\w.-]+(?::\d+)?/)?[a-z0-9](?:[\w.-]|/(?=[\w]))*(?::{_TAG})?)"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
"""What may be in a Dockerfile; Docker refuses the rest of what is no name."""
_REPOSITORY = re.compile(r"(?:[a-z0-9]+[._/-])*[a-z0-9]+", re.ASCII)
"""The pattern of CreateRepository's repositoryName."""
_INVALID_NAME = "invalid-image-name"


def split_image(text: str) -> tuple[str, str | None]:
    """Name with tag, and digest, of ``registry.example.com/name:tag@sha256:...``. Raises
    UserError."""
    match = _IMAGE.fullmatch(text) if len(text) <= 512 else None
    if match is None:
        fix = "use a name such as debian:bookworm-slim"
        raise UserError(f"{text[:80]!r} is not an image name", fix, code=_INVALID_NAME)
    return match["name"], match["digest"]


def parse_tag(text: str) -> tuple[str, str]:
    """Name and tag of an image to build or push, valid for both Docker and ECR. Raises UserError
    for anything else, such as a name without a tag or with a registry host."""
    name, _, tag = text.rpartition(":")
    fits = 2 <= len(name) <= 256 and name != "sha256" and _REPOSITORY.fullmatch(name)
    if has_host(name) or not (fits and re.fullmatch(_TAG, tag, re.ASCII)):
        fix = "use NAME:TAG in lower case, such as peagle-tiny:1; a host is a push's --registry"
        raise UserError(f"{text[:80]!r} is no name and tag", fix, code=_INVALID_NAME)
    return name, tag


def has_host(name: str) -> bool:
    """Whether a name starts with a registry host, such as ``localhost:5000/``."""
    host, slash, _ = name.partition("/")
    return bool(slash) and ("." in host or ":" in host or host == "localhost")


def without_tag(name: str) -> str:
    """``host:5000/name`` of ``host:5000/name:tag``."""
    path, colon, tag = name.rpartition(":")
    return path if colon and "/" not in tag else name


def pinned(name: str, digest: str | None) -> str:
    """``name@digest``; ``name`` alone without a digest."""
    return f"{name}@{digest}" if digest else name


def pinned_base(plan: Plan, table: RuntimeTable) -> str:
    """The base of an image for GPUs: the plan's image, pinned to the digest that ``table`` has."""
    runtime, image = _aws_runtime(plan, table), plan.runtime.image
    return pinned(image, runtime.digest if runtime and "@" not in image else None)


def is_own_image(plan: Plan, table: RuntimeTable) -> bool:
    """Whether the plan's image is not one of AWS's in the ``table`` of its catalogue."""
    return _aws_runtime(plan, table) is None


def _aws_runtime(plan: Plan, table: RuntimeTable) -> Runtime | None:
    """The runtime of ``table`` whose AWS image the plan names."""
    for runtime in table.runtimes:
        try:
            by_tag = image_uri(table, runtime, plan.region)
            if plan.runtime.image in (by_tag, exact_image_uri(table, runtime, plan.region)):
                return runtime
        except NotFound:
            continue
    return None


def read_image_address(file: Path) -> str:
    """The address in a file of ``peagle image build --address-file``. Raises UserError for a file
    that is missing, or has no address with a digest."""
    try:
        address = read_bytes(file, 1024).decode("utf-8", "replace").strip()
    except BadFile as error:
        build = ("peagle", "image", "build", "PAIR", "--push", "--address-file", str(file))
        fix = Fix("build the image first", build)
        raise UserError(error.problem.text, fix, code="image-address") from None
    if split_image(address)[1] is None:
        raise UserError(
            f"{file}: {address} has no digest", "use HOST/NAME@sha256:DIGEST", code="image-address"
        )
    return address
