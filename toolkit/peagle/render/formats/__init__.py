"""The formats that a plan can be rendered in. A format is one module with a ``render``."""

from __future__ import annotations

from collections.abc import Callable

from peagle.errors import NotFound, nearest
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile
from peagle.render.formats import boto3 as script
from peagle.render.formats import cloudformation, dockerfile, terraform

FORMATS: dict[str, Callable[[Plan], tuple[RenderedFile, ...]]] = {
    "cloudformation": cloudformation.render,
    "terraform": terraform.render,
    "boto3": script.render,
    "dockerfile": dockerfile.render,
}


def render(format: str, plan: Plan) -> tuple[RenderedFile, ...]:
    """The files that say the plan in this format.

    Raises Unsupported, naming another way, when the format cannot say all of it.
    """
    if format not in FORMATS:
        hint = nearest(format, FORMATS) or f"there are {', '.join(FORMATS)}"
        raise NotFound(f"there is no format {format!r}", hint)
    return FORMATS[format](plan)
