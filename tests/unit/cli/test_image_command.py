"""`peagle image` and `peagle destroy --images`, as typed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import Peagle
from tests.unit.images.conftest import LABELS, FakeDocker, docker

__all__ = ["docker"]

Environment = dict[str, str]


@pytest.fixture
def place(own_home: Path, peagle: Peagle) -> Iterator[Environment]:
    """A home of its own, in which no sandbox stays."""
    environment = {**os.environ, "PEAGLE_HOME": str(own_home)}
    yield environment
    peagle("sandbox", "stop", env=environment)


@pytest.mark.sandbox
def test_codebuild_builds_and_destroy_removes_all_of_it(place: Environment, peagle: Peagle) -> None:
    built = peagle("image", "build", "gpt-oss-20b", "--builder", "codebuild", "--sandbox", "--json",
                   env=place)  # fmt: skip
    assert built.returncode == 0, built.stderr
    address = json.loads(built.stdout)["pushed"]
    assert "/peagle-gpt-oss-20b:0.28.0-gpu-" in address
    refused = peagle("destroy", "--images", "--sandbox", env=place)
    assert refused.returncode == 2
    assert "Role peagle-gpt-oss-20b-us-east-1" in refused.stderr
    removed = peagle("destroy", "--images", "--sandbox", "--yes", "--json", env=place)
    kinds = [one["type"] for one in json.loads(removed.stdout)["removed"]]
    assert kinds == ["Project", "Role", "Object", "Bucket", "Repository"]
    again = peagle("destroy", "--images", "--sandbox", "--yes", "--json", env=place)
    assert json.loads(again.stdout) == {"removed": []}


@pytest.mark.sandbox
def test_the_sandboxs_ecr_holds_no_images_and_says_so(
    place: Environment, peagle: Peagle, docker: FakeDocker
) -> None:
    docker.answers("version", out="20.10")
    docker.has_image("peagle-tiny:1")
    place["PATH"] = os.environ["PATH"]
    done = peagle("image", "push", "peagle-tiny:1", "--sandbox", env=place)
    assert done.returncode == 3
    assert "--registry" in done.stderr


def test_without_docker_there_is_no_build_and_the_error_says_what_can_be_done(
    peagle: Peagle, tmp_path: Path
) -> None:
    done = peagle("image", "build", "tiny", env={"PATH": str(tmp_path), "HOME": str(tmp_path)})
    assert done.returncode == 2
    assert "no docker command" in done.stderr
    assert "Traceback" not in done.stderr


def test_show_tells_pair_runtime_and_layer(peagle: Peagle, docker: FakeDocker) -> None:
    docker.has_image("mine", {**LABELS, "peagle.plan": "abc"}, Size=2_050_000)
    docker.has_image("base", labels={}, RootFS={"Layers": ["a"]})
    done = peagle("image", "show", "mine")
    assert done.returncode == 0, done.stderr
    assert "peagle/tiny+p-eagle, cpu, 2 MB" in done.stdout
    assert "0.050 MB of it on top of base" in done.stdout
    assert "peagle.plan: abc" in done.stdout


def test_codebuild_has_no_cpu_engine(peagle: Peagle) -> None:
    done = peagle("image", "build", "tiny", "--runtime", "cpu", "--builder", "codebuild")
    assert done.returncode == 3
    assert "CPU engine" in done.stderr


@pytest.mark.parametrize("words", [("--images", "x"), ()])
def test_destroy_wants_a_name_or_images(peagle: Peagle, words: tuple[str, ...]) -> None:
    done = peagle("destroy", *words)
    assert done.returncode == 2
    assert "--images" in done.stderr
