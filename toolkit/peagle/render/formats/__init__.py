"""The formats that a plan can be rendered in. A format is one module of this package.

The module's name is the format's name. It defines

    FILES          the files it writes, README.md included
    render         (plan, catalog) -> the files
    unsupported    optional: (plan) -> what the format cannot express of this plan, "" for nothing
    NO_ENDPOINT    optional: true for a format that makes no endpoint, but an image or one container

A new module is listed, rendered and named in errors without further changes.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.errors import NotFound, Unsupported, nearest
from peagle.planning.plan import Plan
from peagle.render.files import RenderedFile


def format_names() -> tuple[str, ...]:
    """The names of all formats, sorted."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def format_files(format: str) -> tuple[str, ...]:
    """The paths of the files that a format writes. Raises NotFound for an unknown format."""
    return tuple(_module(format).FILES)


def render(format: str, plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    """The files that express the plan in this format.

    ``catalog`` is the one that the plan was made with. Raises NotFound for an unknown format, and
    Unsupported, naming the formats that can, when the format cannot express all of the plan.
    """
    reason = _unsupported(format, plan)
    if reason:
        others = [
            other
            for other in format_names()
            if not _unsupported(other, plan) and not getattr(_module(other), "NO_ENDPOINT", False)
        ]
        fix = f"use {' or '.join(others)}" if others else "no format can express this plan"
        raise Unsupported(f"{format}: {reason}", fix)
    files: tuple[RenderedFile, ...] = _module(format).render(plan, catalog)
    return files


def _unsupported(format: str, plan: Plan) -> str:
    check = getattr(_module(format), "unsupported", None)
    return check(plan) or "" if check else ""


def _module(format: str) -> Any:
    names = format_names()
    if format not in names:
        hint = nearest(format, names) or f"formats: {', '.join(names)}"
        raise NotFound(f"unknown format {format!r}", hint)
    return import_module(f"{__name__}.{format}")
