"""The image that ours is FROM: fetched if need be, and known by its digest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolkit.images.client import Docker
from toolkit.rendering.image_names import has_host, pinned, split_image, without_tag

Progress = Callable[[str], object]


def fetched(docker: Docker, name: str, progress: Progress) -> dict[str, Any]:
    """What Docker knows of the image ``name``, which is on this machine then."""
    found = docker.inspect("image", name)
    if found is None:
        progress(f"fetching {name}")
        docker.stream("pull", name, doing=f"fetching {name}", each_line=progress)
        found = docker.inspect("image", name) or {}
    return found


def with_digest(docker: Docker, base: str, progress: Progress = lambda line: None) -> str:
    """``base`` with its digest, so that what is built now can be built again.

    As it is for an image that no registry knows: one without a host may be of this machine only.
    """
    name, digest = split_image(base)
    if digest or not has_host(name):
        return base
    repository = without_tag(name)
    known = fetched(docker, name, progress).get("RepoDigests") or ()
    mine = [digest for place, _, digest in (one.partition("@") for one in known)
            if place == repository]  # fmt: skip
    return pinned(name, mine[0] if mine else None)
