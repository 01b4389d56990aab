"""The image that a pipeline has built for an endpoint of the project file."""

from __future__ import annotations

from pathlib import Path

from peagle.catalog.documents import BadFile, read_bytes
from peagle.errors import Fix, UserError
from peagle.render.image_names import split_image

_MAX_BYTES = 1024


def read_image_address(file: Path) -> str:
    """The address in a file of ``peagle image build --address-file``. Raises UserError for a file
    that is missing, or has no address with a digest."""
    try:
        address = read_bytes(file, _MAX_BYTES).decode("utf-8", "replace").strip()
    except BadFile as error:
        build = ("peagle", "image", "build", "PAIR", "--push", "--address-file", str(file))
        fix = Fix("build the image first", build)
        raise UserError(error.problem.text, fix) from None
    if split_image(address)[1] is None:
        raise UserError(f"{file}: {address} has no digest", "use HOST/NAME@sha256:DIGEST")
    return address
