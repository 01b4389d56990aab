"""A Docker engine with an image of the tiny pair; where there is none, these tests skip."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.conftest import DEFAULT_VLLM
from tests.support import Peagle
from toolkit.errors import PeagleError
from toolkit.images import Docker
from toolkit.local.packages import engine_packages

BASE = os.environ.get("PEAGLE_TEST_BASE", "peagle-test-base:local")
"""What `.ci/docker-engine base` makes."""

_skipped: list[str] = []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Whoever reads only the end of the run sees that containers were not tried."""
    here = [report for report in terminalreporter.getreports("skipped")
            if report.nodeid.startswith("tests/docker/")]  # fmt: skip
    if here:
        why = "; ".join(dict.fromkeys(_skipped)) or "see above"
        terminalreporter.write_line(f"{len(here)} tests with containers were skipped: {why}")


@pytest.fixture(scope="session")
def docker(_nothing_of_this_machine: None) -> Docker:
    """An engine that answers, the base, and the CPU engine's packages."""
    found = Docker()
    try:
        found.check()
        engine_packages(DEFAULT_VLLM)
        if found.inspect("image", BASE) is None:
            raise PeagleError(f"there is no image {BASE}", ".ci/docker-engine base")
    except PeagleError as error:
        _skipped.append(str(error))
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="session")
def image(docker: Docker, peagle: Peagle) -> dict[str, Any]:
    """What ``peagle image build tiny --runtime cpu --json`` printed."""
    built = peagle("image", "build", "tiny", "--runtime", "cpu", "--base", BASE, "--json",
                   timeout=600)  # fmt: skip
    assert built.returncode == 0, built.stderr
    made: dict[str, Any] = json.loads(built.stdout)
    return made
