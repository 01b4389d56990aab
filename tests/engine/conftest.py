"""A sandbox with the real engine, and the tiny pair in it: started once, for every test here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.installed import Engine, find_engine
from peagle.errors import EngineMissing
from tests.conftest import DEFAULT_VLLM
from tests.sandbox.sandboxes import Sandbox, started

TINY = "tiny"


@pytest.fixture(scope="session")
def sandbox(_nothing_of_this_machine: None) -> Iterator[Sandbox]:
    """A running sandbox in the tests' own home, where ``peagle`` finds it too."""
    home = Path(os.environ["PEAGLE_HOME"])
    with started(Sandbox(home, find_engine(DEFAULT_VLLM).python)) as running:
        yield running


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The CPU engine; without it the tests that need it skip."""
    try:
        return find_engine(DEFAULT_VLLM)
    except EngineMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def tiny_endpoint(sandbox: Sandbox) -> Any:
    """What ``peagle deploy tiny --sandbox --yes --json`` printed; its ``name`` is ``tiny``."""
    return sandbox.json("deploy", "tiny", "--name", TINY, "--sandbox", "--yes")
