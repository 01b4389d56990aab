"""`peagle image` and `peagle destroy --images`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support import Peagle
from tests.unit.images.conftest import LABELS, FakeDocker, docker

__all__ = ["docker"]


@pytest.mark.parametrize(
    "words",
    [
        ("build", "tiny", "--tag", "myrepo"),
        ("build", "tiny", "--tag", "UPPER:1", "--builder", "codebuild"),
        ("build", "tiny", "--runtime", "cpu", "--base", "a b"),
        ("build", "gpt-oss-20b", "--base", "http://x/y"),
        ("push", ":x"),
        ("push", "host:5000/r:1"),
    ],
)
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


@pytest.mark.thorough
def test_our_image_may_have_its_statistics_off(peagle: Peagle, tmp_path: Path) -> None:
    """AWS's may not: a proof would find nothing in its log."""
    off = ("tiny", "--set", "disable-log-stats=true", "-o")
    done = peagle("render", "dockerfile", *off, str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    plain = peagle("render", "terraform", *off, str(tmp_path / "plain"))
    assert plain.returncode == 3
    assert "--disable-log-stats keeps vLLM's statistics out of the log" in plain.stderr


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
def test_without_docker_a_compose_file_for_a_named_image_is_written_unchecked(
    peagle: Peagle, tmp_path: Path
) -> None:
    missing = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PEAGLE_HOME": str(tmp_path)}
    words = ("local", "up", "tiny", "--engine", "docker", "--emit-compose", "-")

    named = peagle(*words, "--image", "mine:1", env=missing)
    unnamed = peagle(*words, env=missing)

    assert "image: mine:1" in named.stdout
    assert "Could not check whether mine:1 is for peagle/tiny+p-eagle: docker is" in named.stderr
    assert unnamed.returncode == 2
    assert unnamed.stdout == ""
