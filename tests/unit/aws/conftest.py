"""What the tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.aws.world import World


@pytest.fixture
def world(own_home: Path) -> World:
    """An empty account, and a home without records."""
    return World()


@pytest.fixture
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of weights."""
    folder = tmp_path_factory.mktemp("head")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "junk").write_text("not weights")
    return folder
