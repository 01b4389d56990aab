"""The entrypoint with a stand-in for vLLM, ended when the test is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.containers.supervised import Run, runs_in


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """``run("crash()")``: the entrypoint, with an engine that does that."""
    with runs_in(tmp_path) as run:
        yield run
