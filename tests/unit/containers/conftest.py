"""The entrypoint with a fake engine, and the folders of a warm start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle_serve.warm import Manifest
from tests.unit.containers.artifacts import artifact
from tests.unit.containers.supervised import Run, runs_in


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """``run("sys.exit(1)")`` starts the entrypoint with an engine that runs this code."""
    with runs_in(tmp_path) as run:
        yield run


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """The folder of artifacts."""
    return tmp_path / "warm"


@pytest.fixture
def intact(artifacts: Path) -> Manifest:
    """A valid artifact in that folder."""
    return artifact(artifacts)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The folder of restored caches."""
    return tmp_path / "cache"
