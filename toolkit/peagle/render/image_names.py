"""Image names as Docker and ECR accept them; the base of a plan's image, and a pipeline's image."""

from __future__ import annotations

import re
from pathlib import Path

from peagle.catalog.documents import BadFile, read_bytes
from peagle.catalog.tables import Runtime, RuntimeTable, exact_image_uri, image_uri
from peagle.errors import Fix, NotFound, UserError
from peagle.planning.plan import Plan

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*(?::\d+)?"
_WORD = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_TAG = r"\w[\w.-]{0,127}"
_DIGEST = r"sha256:[0-9a-f]{64}"
_IMAGE = re.compile(
    rf"(?P<name>(?:{_HOST}/)?{_WORD}(?:/{_WORD})*(?::{_TAG})?)(?:@(?P<digest>{_DIGEST}))?",
    re.ASCII,
)
"""The grammar of github.com/distribution/reference."""

_ECR_WORD = r"[a-z0-9]+(?:[._-][a-z0-9]+)*"
_REPOSITORY = re.compile(rf"(?:{_ECR_WORD}/)*{_ECR_WORD}", re.ASCII)
"""Stricter than Docker's: the pattern of CreateRepository's repositoryName."""

_MAX_LENGTH = 512
_MIN_REPOSITORY_LENGTH, _MAX_REPOSITORY_LENGTH = 2, 256
_EXAMPLE = "use NAME:TAG in lower case, such as peagle-tiny:1"

_MAX_ADDRESS_BYTES = 1024


def split_image(text: str) -> tuple[str, str | None]:
    """Name with tag, and digest, of ``registry.example.com/name:tag@sha256:...``.

    Raises UserError for an invalid image name.
    """
    match = _IMAGE.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise UserError(
            f"{text[:80]!r} is not an image name",
            "use a name such as debian:bookworm-slim",
            code="invalid-image-name",
        )
    return match["name"], match["digest"]


def parse_tag(text: str) -> tuple[str, str]:
    """Name and tag of an image to build or push, valid for both Docker and ECR.

    Raises UserError for anything else, such as a name without a tag or with a registry host.
    """
    name, colon, tag = text.rpartition(":")
    if has_host(name):
        raise UserError(
            f"{text[:80]!r} includes a registry host",
            "leave the host out; a push finds it or takes --registry",
            code="invalid-image-name",
        )
    if not colon or "/" in tag:
        raise UserError(f"{text[:80]!r} has no tag", _EXAMPLE, code="invalid-image-name")
    fits = _MIN_REPOSITORY_LENGTH <= len(name) <= _MAX_REPOSITORY_LENGTH and name != "sha256"
    if not (fits and _REPOSITORY.fullmatch(name) and re.fullmatch(_TAG, tag, re.ASCII)):
        raise UserError(
            f"{text[:80]!r} is not a valid image name and tag", _EXAMPLE, code="invalid-image-name"
        )
    return name, tag


def repository_of(plan: Plan) -> str:
    """The repository of a target's images: its short name in a registry's spelling."""
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in plan.target.id.lower())
    stem = name.partition("-")[2] if "/" in plan.target.id else name
    stem = "-".join(part for part in stem.split("-") if part)
    return stem if stem.startswith("peagle-") else f"peagle-{stem}"


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
    """Whether the plan's image is not one of AWS's, that is, was given with --image.

    ``table`` comes from the catalogue that the plan was made with: its runtimes may be newer than
    the bundled ones.
    """
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
        address = read_bytes(file, _MAX_ADDRESS_BYTES).decode("utf-8", "replace").strip()
    except BadFile as error:
        build = ("peagle", "image", "build", "PAIR", "--push", "--address-file", str(file))
        fix = Fix("build the image first", build)
        raise UserError(error.problem.text, fix, code="image-address") from None
    if split_image(address)[1] is None:
        raise UserError(
            f"{file}: {address} has no digest", "use HOST/NAME@sha256:DIGEST", code="image-address"
        )
    return address
