"""Container images of plans on this machine: build and push. Uses Docker, not AWS."""

from peagle.images.build import Built, Login, Packages, build, engine_image, push, with_digest
from peagle.images.docker import Docker, Image, check_pair, list_images, show_image

__all__ = [
    "Built",
    "Docker",
    "Image",
    "Login",
    "Packages",
    "build",
    "check_pair",
    "engine_image",
    "list_images",
    "push",
    "show_image",
    "with_digest",
]
