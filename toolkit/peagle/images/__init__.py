"""Container images of plans on this machine: build, show, push. Uses Docker, not AWS."""

from peagle.images.build import (
    Built,
    Login,
    Packages,
    build,
    engine_image,
    push,
)
from peagle.images.context import with_digest
from peagle.images.docker import Docker
from peagle.images.inspect import Image, containers_of, list_images, remove_image, show_image

__all__ = [
    "Built",
    "Docker",
    "Image",
    "Login",
    "Packages",
    "build",
    "containers_of",
    "engine_image",
    "list_images",
    "push",
    "remove_image",
    "show_image",
    "with_digest",
]
