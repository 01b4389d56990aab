"""`peagle doctor` on what containers need."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import Peagle, in_process
from tests.unit.images.conftest import FakeDocker, docker

__all__ = ["docker"]
PLUGINS = [{"Name": "buildx", "Version": "v0.20"}, {"Name": "compose", "Version": "2.3"}]
NVIDIA = {"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}


def checks(peagle: Peagle, **environment: str) -> dict[str, dict[str, Any]]:
    done = peagle("doctor", "--json", env={**os.environ, **environment})
    assert "Traceback" not in done.stderr
    return {check["what"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.mark.thorough
def test_without_docker_only_docker_is_reported(peagle: Peagle, tmp_path: Path) -> None:
    reported = checks(peagle, PATH=str(tmp_path))
    assert reported["Docker"]["fine"] is False
    assert "docker is not installed" in reported["Docker"]["found"]
    assert "--engine process" in reported["Docker"]["fix"]


@pytest.mark.thorough
@pytest.mark.parametrize(("info", "expected"), [
    ({"ClientInfo": {"Plugins": PLUGINS}, **NVIDIA}, (True, "buildx v0.20")),
    ({"Runtimes": {"runc": {}, "nvidia": {}}}, (True, "without buildx")),
    ({"ClientInfo": {"Plugins": None}, "Runtimes": {"runc": {}}}, (False, "without buildx")),
])  # fmt: skip
def test_builder_and_gpus_are_reported(
    peagle: Peagle, docker: FakeDocker, info: dict[str, Any], expected: tuple[bool, str]
) -> None:
    docker.answers("version", out="28.2.2")
    docker.answers("info", out={"ServerVersion": "28.2.2", **info})
    reported = checks(peagle, PATH=str(docker.folder))
    gpus, builder = expected
    assert reported["Docker"]["fine"]
    assert "28.2.2" in reported["Docker"]["found"]
    assert builder in reported["Docker"]["found"]
    assert reported["GPUs in containers"]["fine"] is gpus
    assert all(check["fine"] or check["fix"] for check in reported.values())


def test_a_wrong_file_of_the_catalogue_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "wrong.yaml").write_text("a: 1")
    done = in_process("--catalog", str(tmp_path), "doctor", "--json")
    reported = {check["what"]: check for check in done.document["checks"]}
    assert not reported["Catalogue"]["fine"]
    assert "wrong.yaml" in reported["Catalogue"]["found"]
    assert {"Machine", "Engine"} <= {*reported}
