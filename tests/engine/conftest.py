"""A sandbox with the real engine, and the tiny pair in it: started once, for every test here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEFAULT_VLLM
from tests.unit.sandbox.sandboxes import Sandbox, until
from toolkit.local.engine import find_engine

TINY = "tiny"


@pytest.fixture(scope="session")
def sandbox(_nothing_of_this_machine: None) -> Iterator[Sandbox]:
    """A running sandbox in the tests' own home, where ``peagle`` finds it too.

    When all is over nothing of it is left running.
    """
    home = Sandbox(Path(os.environ["PEAGLE_HOME"]), find_engine(DEFAULT_VLLM).python)
    home.told("sandbox", "start")
    yield home
    home.peagle("sandbox", "stop")
    until(home.processes, lambda left: left == [], seconds=5)


@pytest.fixture(scope="session")
def tiny_endpoint(sandbox: Sandbox) -> Any:
    """What ``peagle deploy tiny --sandbox --yes --json`` printed; its ``name`` is ``tiny``."""
    return sandbox.told("deploy", "tiny", "--name", TINY, "--sandbox", "--yes")
