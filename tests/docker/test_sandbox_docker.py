"""`peagle sandbox start --engine docker`: an endpoint of the sandbox is a container."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.container import container_name
from peagle.images import Docker
from tests.support import Peagle

pytestmark = [pytest.mark.docker, pytest.mark.sandbox]


def own_containers(docker: Docker) -> list[str]:
    """The containers, running or not, of the sandbox in this ``$PEAGLE_HOME``. Other tests and
    other users of the Docker engine may start some of theirs at any time."""
    pattern = f"name=^{container_name('sandbox', '.*')}$"
    return docker.run("ps", "--all", "--filter", pattern, "--format", "{{.Names}}",
                      doing="listing containers").split()  # fmt: skip


def test_an_endpoint_is_a_container_and_goes_with_the_sandbox(
    image: dict[str, Any], own_home: Path, peagle: Peagle, docker: Docker
) -> None:
    try:
        started = peagle("sandbox", "start", "--engine", "docker")
        assert started.returncode == 0, started.stderr
        deployed = peagle("deploy", "tiny", "--sandbox", "--yes", "--json")
        assert deployed.returncode == 0, deployed.stderr
        assert json.loads(deployed.stdout)["acceptance_length"] > 2
        assert len(own_containers(docker)) == 1
        other = peagle("sandbox", "start", "--engine", "process")
        assert "is already running with --engine docker" in other.stderr
    finally:
        peagle("sandbox", "stop")
    assert own_containers(docker) == []
