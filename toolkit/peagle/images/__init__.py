"""Container images of plans on this machine: build, show, push. Knows Docker, and no AWS."""

from peagle.images.build import Built, Packages, build, engine_image, image_name, repository_of
from peagle.images.context import with_digest
from peagle.images.docker import Docker
from peagle.images.inspect import Image, images, remove, show, users
from peagle.images.push import Login, push

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
