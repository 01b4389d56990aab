"""What an image of this machine is: its labels, its sizes, whom it runs as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peagle.errors import NotFound, UserError
from peagle.images.docker import Docker
from peagle.render.image import CONTENT_LABEL
from peagle.render.image_names import pinned

_BASE = "org.opencontainers.image.base.name"
_BASE_DIGEST = "org.opencontainers.image.base.digest"


@dataclass(frozen=True)
class Image:
    """An image that ``peagle image build`` made.

    ``size`` is of the whole image and ``layer_bytes`` of what lies on top of ``base``, ``None``
    when the base is not on this machine; both in bytes. ``digests`` are the addresses under which
    registries know it.
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
        """The pair that it serves."""
        return self.labels["peagle.pair"]

    @property
    def runtime(self) -> str:
        """``gpu`` or ``cpu``."""
        return self.labels["peagle.runtime"]

    @property
    def baked(self) -> bool:
        """Whether the pair's weights are in it."""
        return self.labels.get("peagle.weights") == "baked"

    @property
    def content(self) -> str:
        """The digest of what is inside; empty for an image that an older toolkit made."""
        return self.labels.get(CONTENT_LABEL, "")

    @property
    def base(self) -> str:
        """What it is FROM."""
        return self.labels.get(_BASE, "")


def show(docker: Docker, name: str) -> Image:
    """The image. Raises NotFound, and UserError for one that is none of ours."""
    found = docker.inspect("image", name)
    if found is None:
        raise NotFound(f"there is no image {name} on this machine", "peagle image build PAIR")
    labels = (found.get("Config") or {}).get("Labels") or {}
    if "peagle.pair" not in labels:
        raise UserError(f"{name} is no image of this toolkit", "peagle image build PAIR makes one")
    return Image(
        name=name,
        id=found["Id"],
        created=found["Created"],
        size=int(found["Size"]),
        layer_bytes=_layer_bytes(docker, found, labels),
        user=found["Config"].get("User", ""),
        labels={name: value for name, value in sorted(labels.items()) if value},
        digests=tuple(found.get("RepoDigests") or ()),
    )


def unchecked_image(name: str) -> Image:
    """An image of which no more is known than its name."""
    return Image(name, id="", created="", size=0, layer_bytes=None, user="", labels={},
                 digests=(name,))  # fmt: skip


def images(docker: Docker, **labels: str) -> tuple[Image, ...]:
    """The toolkit's images with these labels (``peagle.`` left out), the newest first."""
    filters = [f"label=peagle.{name}={value}" for name, value in labels.items()]
    words = [word for one in ("label=peagle.pair", *filters) for word in ("--filter", one)]
    printed = docker.run("image", "ls", *words, "--format", "{{json .}}", doing="listing images")
    lines = [json.loads(line) for line in printed.splitlines()]
    names = [f"{one['Repository']}:{one['Tag']}" for one in lines if one["Tag"] != "<none>"]
    found = [show(docker, name) for name in names]
    return tuple(sorted(found, key=lambda image: image.created, reverse=True))


def remove(docker: Docker, name: str) -> Image:
    """Remove the image from this machine; what it was. Raises as ``show`` does, and what Docker
    says of one that a container uses."""
    found = show(docker, name)
    docker.run("image", "rm", name, doing=f"removing {name}")
    return found


def users(docker: Docker, name: str) -> tuple[str, ...]:
    """The names of the containers that were made from the image, also of those that ended."""
    printed = docker.run(
        "container", "ls", "--all", "--filter", f"ancestor={name}", "--format", "{{.Names}}",
        doing=f"looking for containers of {name}",
    )  # fmt: skip
    return tuple(sorted(printed.split()))


def check_pair(image: Image, pair: str, command: str) -> None:
    """Raise UserError for an image that was built for another pair; ``command`` builds the right
    one."""
    if image.pair != pair:
        raise UserError(
            f"the image {image.name} was built for {image.pair}, and this is {pair}",
            f"{command}, or leave out --image",
        )


def _layer_bytes(docker: Docker, found: dict[str, Any], labels: Mapping[str, str]) -> int | None:
    """The difference to the base, where the base is here and really below."""
    name = labels.get(_BASE) or "none"
    # Fetched by its digest, it has no name here.
    base = docker.inspect("image", pinned(name, labels.get(_BASE_DIGEST))) or docker.inspect(
        "image", name
    )
    if base is None:
        return None
    below = base.get("RootFS", {}).get("Layers") or []
    if found.get("RootFS", {}).get("Layers", [])[: len(below)] != below:
        return None
    return int(found["Size"]) - int(base["Size"])
