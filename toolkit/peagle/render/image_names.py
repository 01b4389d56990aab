"""Names of images, as Docker and ECR take them, and the base that an image of a plan is FROM."""

from __future__ import annotations

import re

from peagle.catalog import load_catalog
from peagle.catalog.tables import Runtime, RuntimeTable, image_uri
from peagle.errors import NotFound, UserError
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
"""As github.com/distribution/reference has it."""

_ECR_WORD = r"[a-z0-9]+(?:[._-][a-z0-9]+)*"
_REPOSITORY = re.compile(rf"(?:{_ECR_WORD}/)*{_ECR_WORD}", re.ASCII)
"""Stricter than Docker's: the pattern of CreateRepository's repositoryName."""

_LONGEST = 512
_SHORTEST_REPOSITORY, _LONGEST_REPOSITORY = 2, 256
_EXAMPLE = "write NAME:TAG in lower case, such as peagle-tiny:1"


def split_image(text: str) -> tuple[str, str | None]:
    """Name with tag, and digest, of ``registry.example.com/name:tag@sha256:...``.

    Raises UserError for what is no name of an image.
    """
    found = _IMAGE.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise UserError(f"{text[:80]!r} is no name of an image", "such as debian:bookworm-slim")
    return found["name"], found["digest"]


def parse_tag(text: str) -> tuple[str, str]:
    """Name and tag of an image that is built here or pushed, as Docker and ECR both take it.

    Raises UserError for anything else, such as a name without a tag or with a registry's host.
    """
    name, colon, tag = text.rpartition(":")
    if has_host(name):
        raise UserError(
            f"{text[:80]!r} names a registry", "leave it out: pushing finds it, or takes --registry"
        )
    if not colon or "/" in tag:
        raise UserError(f"{text[:80]!r} has no tag", _EXAMPLE)
    fits = _SHORTEST_REPOSITORY <= len(name) <= _LONGEST_REPOSITORY and name != "sha256"
    if not (fits and _REPOSITORY.fullmatch(name) and re.fullmatch(_TAG, tag, re.ASCII)):
        raise UserError(f"{text[:80]!r} is no name and tag of an image", _EXAMPLE)
    return name, tag


def has_host(name: str) -> bool:
    """Whether a name begins with a registry's host, such as ``localhost:5000/``."""
    host, slash, _ = name.partition("/")
    return bool(slash) and ("." in host or ":" in host or host == "localhost")


def without_tag(name: str) -> str:
    """``host:5000/name`` of ``host:5000/name:tag``."""
    path, colon, tag = name.rpartition(":")
    return path if colon and "/" not in tag else name


def pinned(name: str, digest: str | None) -> str:
    """That image and no later one of the same name, where its digest is known."""
    return f"{name}@{digest}" if digest else name


def base_of(plan: Plan) -> str:
    """What an image for GPUs is FROM: the plan's own, AWS's by its digest where the catalogue
    knows it."""
    runtime = _aws_runtime(plan, load_catalog().runtimes)
    return pinned(plan.runtime.image, runtime.digest if runtime else None)


def is_own_image(plan: Plan, table: RuntimeTable) -> bool:
    """Whether the plan names another image than AWS's: one that was given with --image.

    ``table`` is of the catalogue that the plan was made with, whose runtimes may be newer than
    the bundled ones.
    """
    return _aws_runtime(plan, table) is None


def _aws_runtime(plan: Plan, table: RuntimeTable) -> Runtime | None:
    """The runtime of ``table`` whose AWS image the plan names."""
    for runtime in table.runtimes:
        try:
            if image_uri(table, runtime, plan.region) == plan.runtime.image:
                return runtime
        except NotFound:
            continue
    return None
