"""Built images as documents."""

from __future__ import annotations

from typing import Any

from peagle.cli.view.console import print_document
from peagle.images import Image


def print_image(image: Image) -> None:
    keys = ("name", "pair", "runtime", "base", "size_bytes", "layer_bytes")
    document = image_document(image)
    print_document({key: document[key] for key in keys})


def image_document(image: Image) -> dict[str, Any]:
    return {
        "name": image.name,
        "id": image.id,
        "created": image.created,
        "pair": image.pair,
        "runtime": image.runtime,
        "base": image.base,
        "size_bytes": image.size,
        "layer_bytes": image.layer_bytes,
        "user": image.user,
        "digests": list(image.digests),
        "labels": dict(image.labels),
    }
