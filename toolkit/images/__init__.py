"""Container images of plans on this machine: build, show, push. Knows Docker, and no AWS."""

from toolkit.images.base import with_digest
from toolkit.images.build import Built, build, image_name, repository_of
from toolkit.images.client import Docker
from toolkit.images.engine import Packages, engine_image
from toolkit.images.push import Login, push
from toolkit.images.show import Image, images, remove, show, users

__all__ = [
    "Built",
    "Docker",
    "Image",
    "Login",
    "Packages",
    "build",
    "engine_image",
    "image_name",
    "images",
    "push",
    "remove",
    "repository_of",
    "show",
    "users",
    "with_digest",
]
