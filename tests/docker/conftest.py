"""A Docker engine with an image of the tiny pair; where there is none, these tests skip."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peagle.engine.machine import engine_packages
from peagle.errors import PeagleError
from peagle.images.docker import Docker, list_images
from tests.conftest import DEFAULT_VLLM
from tests.support import Peagle

BASE = os.environ.get("PEAGLE_TEST_BASE", "peagle-test-base:local")
"""What `.ci/docker-engine base` makes."""
Build = Callable[..., dict[str, Any]]
"""``peagle image build`` with these words; what it printed as JSON."""
_WHY = os.environ.get("PEAGLE_TESTS_WITHOUT_DOCKER", "")
"""What `.ci/run` knows of an engine or a base that it could not have."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report at the end of the run that container tests did not run, and why."""
    here = [report for report in terminalreporter.getreports("skipped")
            if report.nodeid.startswith("tests/docker/")]  # fmt: skip
    if here:
        reasons = (str(report.longrepr[2]).removeprefix("Skipped: ") for report in here)
        why = "; ".join(dict.fromkeys(reasons))
        terminalreporter.write_line(f"{len(here)} tests with containers were skipped: {why}")


@pytest.fixture(scope="session")
def docker(_nothing_of_this_machine: None) -> Docker:
    """An engine that answers, the base, and the CPU engine's packages."""
    engine = Docker()
    try:
        engine.check()
        engine_packages(DEFAULT_VLLM)
        if engine.inspect("image", BASE) is None:
            raise PeagleError(f"there is no image {BASE}", ".ci/docker-engine base")
    except PeagleError as error:
        pytest.skip(_WHY or str(error))
    return engine


@pytest.fixture(scope="session")
def build(docker: Docker, peagle: Peagle) -> Iterator[Build]:
    """Build images; in the end those are gone that were not there before."""
    before = {image.name for image in list_images(docker)}
    built: set[str] = set()

    def run(*words: str, **settings: Any) -> dict[str, Any]:
        done = peagle("image", "build", *words, "--json", timeout=600, **settings)
        assert done.returncode == 0, done.stderr
        made: dict[str, Any] = json.loads(done.stdout)
        built.add(made["name"])
        return made

    yield run
    left = {image.name for image in list_images(docker)}
    for name in sorted(built & left - before):
        docker.run("image", "rm", "--force", name, doing=f"removing {name}")


@pytest.fixture(scope="session")
def image(build: Build) -> dict[str, Any]:
    """What ``peagle image build tiny --runtime cpu --json`` printed."""
    return build("tiny", "--runtime", "cpu", "--base", BASE)
