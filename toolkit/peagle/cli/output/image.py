"""Built images as text and documents."""

from __future__ import annotations

from typing import Any

from peagle.cli.output.console import print_line
from peagle.images import Image

_MB = 1e6


def print_image(image: Image) -> None:
    print_line(image.name)
    print_line(f"  {image.pair}, {image.runtime}, {image.size / _MB:.0f} MB")
    if image.layer_bytes is not None:
        print_line(f"  {image.layer_bytes / _MB:.3f} MB on top of {image.base}")


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
