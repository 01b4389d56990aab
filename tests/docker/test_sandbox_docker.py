"""`peagle sandbox start --engine docker`: an endpoint of the sandbox is a container, also with an
image that has its weights."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.runner import container_name
from peagle.images.docker import Docker
from tests.docker.conftest import BASE, Build
from tests.support import Peagle

pytestmark = [pytest.mark.docker, pytest.mark.sandbox]
REGISTRY = "123456789012.dkr.ecr.us-east-1.amazonaws.com"


def own_containers(docker: Docker) -> list[str]:
    """The containers, running or not, of the sandbox in this ``$PEAGLE_HOME``. Other tests and
    other users of the Docker engine may start some of theirs at any time."""
    pattern = f"name=^{container_name('sandbox', '.*')}$"
    return docker.run("ps", "--all", "--filter", pattern, "--format", "{{.Names}}",
                      doing="listing containers").split()  # fmt: skip


@pytest.fixture
def address(docker: Docker, build: Build) -> Iterator[str]:
    """An image with its weights, under a name that SageMaker takes."""
    built = build("tiny", "--runtime", "cpu", "--base", BASE, "--bake-weights")
    name = f"{REGISTRY}/{built['name']}"
    docker.run("tag", built["name"], name, doing="naming")
    yield name
    subprocess.run(docker.argv("rmi", name), capture_output=True, check=False)


def test_an_endpoint_is_a_container_and_goes_with_the_sandbox(
    image: dict[str, Any], address: str, own_home: Path, peagle: Peagle, docker: Docker
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
        _deploy_baked(address, peagle)
        assert len(own_containers(docker)) == 2
    finally:
        peagle("sandbox", "stop")
    assert own_containers(docker) == []


def _deploy_baked(address: str, peagle: Peagle) -> None:
    """Its endpoint gets no weights from anywhere, and drafts."""
    deployed = peagle("deploy", "tiny", "--image", address, "--baked-weights", "--name", "baked",
                      "--sandbox", "--yes", "--json", timeout=600)  # fmt: skip
    log = peagle("logs", "baked", "--sandbox").stdout
    assert deployed.returncode == 0, f"{deployed.stderr}\n{log}"
    document = json.loads(deployed.stdout)
    assert document["acceptance_length"] > 2
    assert document["stand_in"] is None, "the image itself runs"
    kinds = {resource["type"] for resource in document["resources"]}
    assert kinds == {"Model", "EndpointConfig", "Endpoint"}, "no bucket, no objects"
