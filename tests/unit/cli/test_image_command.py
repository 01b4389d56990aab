"""`peagle image`, and images that `peagle local` runs: refusals, failures, and what comes next."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import Peagle
from tests.unit.images.conftest import LABELS, FakeDocker, docker

__all__ = ["docker"]
BASE = "debian:bookworm-slim"
BUILD = ("image", "build", "gpt-oss-20b", "--base", BASE)
NO_ENGINE = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
    "running?"
)


@pytest.fixture
def place(tmp_path: Path, own_home: Path) -> Iterator[dict[str, str]]:
    """A home and a temporary folder of their own, which must be empty in the end, apart from the
    cached hashes of the weights that were planned."""
    folders = {"PEAGLE_HOME": tmp_path / "home", "TMPDIR": tmp_path / "tmp"}
    for folder in folders.values():
        folder.mkdir()
    yield {**os.environ, **{name: str(folder) for name, folder in folders.items()}}
    left = [path for folder in folders.values() for path in folder.rglob("*") if path.is_file()]
    assert [path for path in left if path != folders["PEAGLE_HOME"] / "contents.json"] == []


def _only_error(done: subprocess.CompletedProcess[str]) -> str:
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return errors[0]


@pytest.mark.parametrize("words", [
    BUILD,
    ("image", "build", "tiny", "--runtime", "cpu"),
    ("image", "push", "peagle-tiny:1"),
    ("local", "up", "tiny", "--engine", "docker"),
    ("local", "up", "tiny", "--engine", "docker", "--build"),
], ids=lambda words: " ".join(words[:3]))  # fmt: skip
def test_stopped_docker_is_an_error_with_the_alternative(
    peagle: Peagle, docker: FakeDocker, place: dict[str, str], words: tuple[str, ...]
) -> None:
    docker.answers(code=1, err=NO_ENGINE)
    done = peagle(*words, env=place)
    assert done.returncode == 2
    assert "Docker daemon" in _only_error(done)
    assert "local engines also run without it (--engine process)" in done.stderr


@pytest.mark.parametrize("words", [
    ("build", "tiny", "--tag", "myrepo"),
    ("build", "tiny", "--tag", "UPPER:1", "--builder", "codebuild"),
    ("build", "tiny", "--runtime", "cpu", "--base", "a b"),
    ("build", "gpt-oss-20b", "--base", "http://x/y"),
    ("push", ":x"),
    ("push", "host:5000/r:1"),
])  # fmt: skip
def test_invalid_image_name_is_refused_before_anything_runs(
    peagle: Peagle, docker: FakeDocker, words: tuple[str, ...]
) -> None:
    done = peagle("image", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert docker.calls == []


@pytest.mark.thorough
def test_an_image_of_this_machine_runs_here_and_another_pair_s_does_not(
    peagle: Peagle, docker: FakeDocker
) -> None:
    docker.answers("version", out="20.10")
    docker.has_image("mine:1")
    compose = ("local", "up", "tiny", "--engine", "docker", "--image", "mine:1",
               "--emit-compose", "-")  # fmt: skip
    done = peagle(*compose)
    assert done.returncode == 0, done.stderr
    assert "image: mine:1" in done.stdout
    assert "ECR" not in done.stderr
    other = peagle("local", "up", "tiny+eagle3", "--engine", "docker", "--image", "mine:1")
    assert other.returncode == 2
    assert "was built for peagle/tiny+p-eagle, not for" in other.stderr
    assert "mine:1 is not in ECR" in peagle("local", "up", "tiny", "--image", "mine:1").stderr


def built_image(docker: FakeDocker, runtime: str) -> tuple[str, ...]:
    """The command that builds ``mine:1`` from ``base:1``; both are on this machine afterwards."""
    docker.answers("version", out="20.10")
    docker.has_image("base:1", labels={}, RootFS={"Layers": ["a"]})
    docker.answers("build")
    labels = {**LABELS, "peagle.runtime": runtime, "org.opencontainers.image.base.name": "base:1"}
    docker.has_image("mine:1", labels, Size=2_050_000)
    return ("image", "build", "tiny", "--tag", "mine:1", "--base", "base:1")


@pytest.mark.thorough
def test_local_up_can_build_the_image_that_a_compose_file_runs(
    peagle: Peagle, docker: FakeDocker, tmp_path: Path
) -> None:
    file = tmp_path / "compose.yaml"
    command = ("local", "up", "tiny", "--engine", "docker", "--gpus", "--build",
               "--base", "base:1", "--emit-compose", str(file), "--json")  # fmt: skip
    built_image(docker, "gpu")
    assert peagle(*command).returncode != 0, "nothing was built"
    (build,) = [call["argv"] for call in docker.calls if call["argv"][0] == "build"]
    name = build[build.index("--tag") + 1]
    docker.has_image(name, {**LABELS, "peagle.runtime": "gpu"})
    done = peagle(*command)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (service,) = yaml.safe_load(file.read_text())["services"].values()
    assert document == {"file": str(file), "port": document["port"]}
    assert service["ports"] == [f"127.0.0.1:{document['port']}:8080"]
    assert service["image"] == name


@pytest.mark.thorough
def test_pushing_to_the_sandbox_is_refused_before_anything_is_built(
    peagle: Peagle, docker: FakeDocker
) -> None:
    docker.answers("version", out="20.10")
    done = peagle("image", "build", "tiny", "--base", "base:1", "--push", "--sandbox")
    assert done.returncode == 3
    assert "peagle image push NAME --registry HOST" in done.stderr
    assert not [call for call in docker.calls if call["argv"][0] != "version"]


@pytest.mark.thorough
def test_no_deploy_command_for_an_image_outside_ecr(peagle: Peagle, docker: FakeDocker) -> None:
    docker.answers("version", out="20.10")
    docker.has_image("peagle-tiny:1")
    docker.answers("tag")
    docker.answers("push")
    push = ("image", "push", "peagle-tiny:1", "--registry", "localhost:5999")
    done = peagle(*push)
    assert done.returncode == 0, done.stderr
    assert "SageMaker pulls images from ECR only" in done.stderr
    assert "peagle deploy" not in done.stderr
    assert json.loads(peagle(*push, "--json").stdout)["next"] is None
