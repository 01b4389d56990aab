"""The toolkit's images on this machine: labels, sizes, user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peagle.checks.facts import digest_in
from peagle.errors import Fix, NotFound, UserError
from peagle.images.docker import Docker, parsing_output
from peagle.render.image import CONTENT_LABEL, pinned
from peagle_serve import json_reader

_BASE = "org.opencontainers.image.base.name"
_BUILD = Fix("build one", ("peagle", "image", "build", "PAIR"))
_BASE_DIGEST = "org.opencontainers.image.base.digest"


@dataclass(frozen=True)
class Image:
    """An image that ``peagle image build`` made.

    ``size`` is of the whole image and ``layer_bytes`` of the layers on top of ``base``, ``None``
    when the base is not on this machine; both in bytes. ``digests`` are its addresses with digest
    in registries.
    """

    name: str
    id: str
    created: str
    size: int
    layer_bytes: int | None
    user: str
    labels: Mapping[str, str]
    digests: tuple[str, ...]

    @property
    def pair(self) -> str:
        return self.labels["peagle.pair"]

    @property
    def runtime(self) -> str:
        """``gpu`` or ``cpu``."""
        return self.labels["peagle.runtime"]

    @property
    def baked(self) -> bool:
        """Whether it contains the pair's weights."""
        return self.labels.get("peagle.weights") == "baked"

    @property
    def content(self) -> str:
        """The digest of its content; empty for images of older versions of the toolkit."""
        return self.labels.get(CONTENT_LABEL, "")

    @property
    def digest(self) -> str:
        """The image's digest in a registry, else its local id; empty for an unchecked image."""
        return next(filter(None, map(digest_in, self.digests)), self.id)

    @property
    def base(self) -> str:
        return self.labels.get(_BASE, "")


def show_image(docker: Docker, name: str) -> Image:
    """The image ``name``. Raises NotFound, and UserError if this toolkit did not build it."""
    image = docker.inspect("image", name)
    if image is None:
        raise NotFound(f"there is no image {name} on this machine", _BUILD, code="image-missing")
    with parsing_output("docker image inspect"):
        labels = (image.get("Config") or {}).get("Labels") or {}
        if "peagle.pair" not in labels:
            raise UserError(f"{name} was not built by this toolkit", _BUILD, code="foreign-image")
        return Image(
            name=name,
            id=str(image["Id"]),
            created=str(image["Created"]),
            size=int(image["Size"]),
            layer_bytes=_layer_bytes(docker, image, labels),
            user=str(image["Config"].get("User", "")),
            labels={name: str(value) for name, value in sorted(labels.items()) if value},
            digests=tuple(map(str, image.get("RepoDigests") or ())),
        )


def unchecked_image(name: str) -> Image:
    """An image of which only the name is known."""
    return Image(name, "", "", 0, None, "", {}, (name,))


def list_images(docker: Docker, **labels: str) -> tuple[Image, ...]:
    """The toolkit's images with these labels (without ``peagle.``), newest first."""
    filters = ["label=peagle.pair", *(f"label=peagle.{key}={labels[key]}" for key in labels)]
    options = [word for condition in filters for word in ("--filter", condition)]
    printed = docker.run("image", "ls", *options, "--format", "{{json .}}", doing="listing images")
    with parsing_output("docker image ls"):
        rows = [json_reader.read(line, "a line") for line in printed.splitlines()]
        names = [f"{row['Repository']}:{row['Tag']}" for row in rows if row["Tag"] != "<none>"]
    images = [show_image(docker, name) for name in names]
    return tuple(sorted(images, key=lambda image: image.created, reverse=True))


def check_pair(image: Image, pair: str, command: Sequence[str]) -> None:
    """Raise UserError for an image of another pair; ``command`` builds the right one."""
    if image.pair != pair:
        raise UserError(
            f"the image {image.name} was built for {image.pair}, not for {pair}",
            Fix("omit --image, or build another image", tuple(command)),
            code="image-of-another-pair",
        )


def _layer_bytes(docker: Docker, image: dict[str, Any], labels: Mapping[str, str]) -> int | None:
    """The difference to the size of the base, if that is on this machine and below the image."""
    name = labels.get(_BASE) or "none"
    # An image that was pulled by digest has no name.
    base = docker.inspect("image", pinned(name, labels.get(_BASE_DIGEST))) or docker.inspect(
        "image", name
    )
    if base is None:
        return None
    below = base.get("RootFS", {}).get("Layers") or []
    if image.get("RootFS", {}).get("Layers", [])[: len(below)] != below:
        return None
    return int(image["Size"]) - int(base["Size"])
