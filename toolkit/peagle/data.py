"""The folders that are data, not code: in a wheel inside the package, else in the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import peagle_serve

_PACKAGE = Path(__file__).resolve().parent

CATALOG_PREFIX = "catalog:"
"""Prefix of the location of weights that ship with the catalogue."""

BUNDLED_CATALOG = "PEAGLE_BUNDLED_CATALOG"
"""Environment variable: a folder to use as the bundled catalogue. Tests set it, so that they see
the same catalogue, independent of `peagle catalog refresh`."""


def data_folder(name: str) -> Path:
    """The folder ``model_catalog``, ``containers``, ``requirements``, ``infra/terraform`` or
    ``docs``, of which a wheel has the codes of errors, as installed or as checked out."""
    if name == "model_catalog" and (elsewhere := os.environ.get(BUNDLED_CATALOG)):
        return Path(elsewhere)
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent.parent / name


def checkout_folder() -> Path | None:
    """The checkout that this toolkit runs from; ``None`` for an installed package."""
    root = _PACKAGE.parent.parent
    installed = (_PACKAGE / "_data").is_dir() or not (root / "pyproject.toml").is_file()
    return None if installed else root


def weights_folder(location: str) -> Path:
    """The folder of a plan's ``directory`` weights; ``catalog:...`` is in the bundled catalogue."""
    inside = location.removeprefix(CATALOG_PREFIX)
    if inside == location:
        return Path(location).expanduser()
    return data_folder("model_catalog") / inside


def entrypoint_folder() -> Path:
    """The folder of ``peagle_serve``, the package that images and local engines start."""
    return Path(peagle_serve.__file__).resolve().parent
