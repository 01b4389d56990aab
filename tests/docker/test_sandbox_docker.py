"""`peagle sandbox start --engine docker`: an endpoint of the sandbox is a container."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from peagle.images import Docker
from tests.support import Peagle

pytestmark = [pytest.mark.docker, pytest.mark.sandbox]


@pytest.fixture(scope="module")
def place(image: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a home of its own."""
    return {**os.environ, "PEAGLE_HOME": str(tmp_path_factory.mktemp("sandbox"))}


def names(docker: Docker) -> list[str]:
    return docker.run("ps", "--format", "{{.Names}}", doing="looking").split()


def test_an_endpoint_is_a_container_and_goes_with_the_sandbox(
    place: dict[str, str], peagle: Peagle, docker: Docker
) -> None:
    before = names(docker)
    try:
        started = peagle("sandbox", "start", "--engine", "docker", env=place)
        assert started.returncode == 0, started.stderr
        deployed = peagle("deploy", "tiny", "--sandbox", "--yes", "--json", env=place)
        assert deployed.returncode == 0, deployed.stderr
        assert json.loads(deployed.stdout)["acceptance_length"] > 2
        (made,) = set(names(docker)) - set(before)
        assert made.startswith("peagle-sandbox-i-")
        other = peagle("sandbox", "start", "--engine", "process", env=place)
        assert "is already running with --engine docker" in other.stderr
    finally:
        peagle("sandbox", "stop", env=place)
    assert names(docker) == before
