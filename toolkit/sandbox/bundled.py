"""The bundled catalogue, read once."""

from __future__ import annotations

import functools

from toolkit.catalog import load_catalog
from toolkit.catalog.models import Catalog


@functools.cache
def catalog() -> Catalog:
    """Instances with prices and quota codes, runtimes, and ``peagle/tiny``."""
    return load_catalog()


def engine_version() -> str:
    """The vLLM that runs here, whatever version an image names."""
    return catalog().runtimes.default
