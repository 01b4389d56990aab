"""The public functions of the toolkit: what ``import peagle`` offers and what the commands call.

A pair from the catalogue becomes a Plan; everything else reads the Plan. Each name is imported
from its package at first use, so that ``peagle --help`` loads neither boto3 nor pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peagle.catalog import load_catalog as load_catalog
    from peagle.planning import make_plan as make_plan
    from peagle.render import render as render

_HOME = {
    "load_catalog": "peagle.catalog",
    "make_plan": "peagle.planning",
    "render": "peagle.render",
}
"""Name -> the module that defines it. One line per function, grouped as in ``peagle --help``."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """The function of this name, from the package that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
