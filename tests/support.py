"""Types and settings that tests share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from toolkit.data import BUNDLED_CATALOG

Peagle = Callable[..., subprocess.CompletedProcess[str]]
"""Runs ``peagle`` with these arguments; ``env``, ``cwd`` and ``input`` as of ``subprocess.run``."""


@contextmanager
def bundled_catalog() -> Iterator[None]:
    """The catalogue that ships, instead of the frozen one of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(BUNDLED_CATALOG)
        yield
