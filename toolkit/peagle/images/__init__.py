"""Container images of plans on this machine: build and push. Uses Docker, not AWS."""

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
from peagle.images.inspect import Image, list_images, show_image

__all__ = [
    "Built",
    "Docker",
    "Image",
    "Login",
    "Packages",
    "build",
    "engine_image",
    "list_images",
    "push",
    "show_image",
    "with_digest",
]
