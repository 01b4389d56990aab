"""An image with its weights, from `image build --bake-weights` to an endpoint that drafts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from peagle.images import Docker
from tests.docker.conftest import BASE, Build
from tests.support import Peagle

pytestmark = [pytest.mark.docker, pytest.mark.sandbox]

REGISTRY = "123456789012.dkr.ecr.us-east-1.amazonaws.com"


@pytest.fixture
def address(docker: Docker, build: Build) -> Iterator[str]:
    """The image under a name that SageMaker takes."""
    built = build("tiny", "--runtime", "cpu", "--base", BASE, "--bake-weights")
    name = f"{REGISTRY}/{built['name']}"
    docker.run("tag", built["name"], name, doing="naming")
    yield name
    subprocess.run(docker.argv("rmi", name), capture_output=True, check=False)


def test_its_endpoint_gets_no_weights_from_anywhere_and_drafts(
    address: str, peagle: Peagle, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = {**os.environ, "PEAGLE_HOME": str(tmp_path_factory.mktemp("sandbox"))}
    try:
        started = peagle("sandbox", "start", "--engine", "docker", env=place)
        assert started.returncode == 0, started.stderr
        deployed = peagle("deploy", "tiny", "--image", address, "--baked-weights", "--sandbox",
                          "--yes", "--json", env=place, timeout=600)  # fmt: skip
        log = peagle("logs", "peagle-tiny", "--sandbox", env=place).stdout

        assert deployed.returncode == 0, f"{deployed.stderr}\n{log}"
        document = json.loads(deployed.stdout)
        assert document["acceptance_length"] > 2
        assert document["stand_in"] is None, "the image itself runs"
        kinds = {resource["type"] for resource in document["resources"]}
        assert kinds == {"Model", "EndpointConfig", "Endpoint"}, "no bucket, no objects"
    finally:
        peagle("sandbox", "stop", env=place)
