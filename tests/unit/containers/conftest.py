"""The entrypoint with a stand-in for vLLM, and the folders of a warm start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle_serve.warm.manifest import Manifest
from tests.unit.containers.artifacts import artifact
from tests.unit.containers.supervised import Run, runs_in


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """``run("crash()")``: the entrypoint, with an engine that does that."""
    with runs_in(tmp_path) as run:
        yield run


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Where artifacts lie."""
    return tmp_path / "warm"


@pytest.fixture
def whole(artifacts: Path) -> Manifest:
    """One that is there, and whole."""
    return artifact(artifacts)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where caches are restored."""
    return tmp_path / "cache"
