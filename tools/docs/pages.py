"""The generated chapters, and the catalogue that they are about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from peagle.data import BUNDLED_CATALOG
from tools.docs.cli_page import cli_page
from tools.docs.errors_page import errors_page
from tools.docs.methods_page import methods_page

FOLDER = Path(__file__).resolve().parents[2] / "docs"

PAGES: dict[Path, Callable[[], str]] = {
    FOLDER / "cli.md": cli_page,
    FOLDER / "errors.md": errors_page,
    FOLDER / "methods.md": methods_page,
}
"""File -> what it should have."""


@contextmanager
def bundled() -> Iterator[None]:
    """The catalogue that ships, wherever the environment says another one is."""
    before = os.environ.pop(BUNDLED_CATALOG, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[BUNDLED_CATALOG] = before
