"""Images as tables and documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peagle.cli.output.console import print_line, print_table
from peagle.images import Image

_HEADINGS = ("NAME", "PAIR", "RUNTIME", "SIZE", "WEIGHTS", "CREATED", "BASE")

_MB = 1e6


def print_images(images: Sequence[Image]) -> None:
    """One line per image. The base is shown without its registry; `image show` prints it."""
    print_table(_HEADINGS, map(_row, images), right=("SIZE",))


def _row(image: Image) -> tuple[str, ...]:
    return (
        image.name,
        image.pair,
        image.runtime,
        f"{image.size / _MB:,.0f} MB",
        "baked in" if image.baked else "mounted",
        image.created[:10],
        image.base.rpartition("/")[2] or "?",
    )


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
