"""Containers of `peagle warm --local`: mounts of artifacts, and the image's compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from peagle.engine.runner import LocalOptions, compose_file, run_arguments
from peagle.errors import UserError
from peagle.images import Docker, Image, show_image
from tests.support import raises_code
from tests.unit.images.conftest import LABELS, FakeDocker, docker
from tests.unit.local.conftest import PlanFor

pytestmark = pytest.mark.thorough

__all__ = ["docker"]


def image(docker: FakeDocker, **found: Any) -> Image:
    docker.has_image("mine", LABELS, **found)
    return show_image(Docker(), "mine")


def test_a_container_gets_artifacts_read_only(
    docker: FakeDocker, artifacts: Path, plan_for: PlanFor
) -> None:
    plan = plan_for()
    host = LocalOptions(image(docker), compiled=True)
    container = host.container(plan, {}, 8123)
    assert container.environment["PEAGLE_WARM_FOLDER"] == "/opt/ml/warm"
    assert "PEAGLE_WARM_SHA256" not in container.environment, "the folder is empty"
    assert f'type=bind,"src={artifacts}",dst=/opt/ml/warm,readonly' in run_arguments(container)
    (service,) = yaml.safe_load(compose_file(container))["services"].values()
    mount = {"type": "bind", "source": str(artifacts), "target": "/opt/ml/warm", "read_only": True}
    assert mount in service["volumes"]
    assert service["environment"]["PEAGLE_WARM_FOLDER"] == "/opt/ml/warm"
    artifacts.rmdir()
    without = host.container(plan, {}, 8123)
    assert "/opt/ml/warm" not in without.mounts
    assert "PEAGLE_WARM_FOLDER" not in without.environment


def test_artifacts_are_mounted_on_gpus_and_not_for_an_eager_cpu_engine(
    docker: FakeDocker, artifacts: Path, plan_for: PlanFor
) -> None:
    built = image(docker)
    assert "/opt/ml/warm" in LocalOptions(built, gpus=True).container(plan_for(), {}, 1).mounts
    assert "/opt/ml/warm" not in LocalOptions(built).container(plan_for(), {}, 1).mounts


def test_a_collecting_container_gets_the_warm_mode(
    docker: FakeDocker, artifacts: Path, plan_for: PlanFor
) -> None:
    plan = plan_for()
    host = LocalOptions(image(docker), collecting=True)
    assert host.container(plan, {}, 1).environment["PEAGLE_WARM"] == "collect"
    assert "/opt/ml/warm" not in host.container(plan, {}, 1).mounts


def test_a_collecting_container_uses_its_own_cache_and_leaves_nothing(
    docker: FakeDocker, own_home: Path, plan_for: PlanFor
) -> None:
    """Collecting empties its cache folder, and other engines may use the shared one."""

    def volumes(collecting: bool) -> list[str]:
        host = LocalOptions(image(docker), collecting=collecting)
        given = run_arguments(host.container(plan_for(), {}, 1))
        assert "--rm" in given, "which removes a volume without a name too"
        return [word for word in given if word.startswith("type=volume")]

    assert volumes(collecting=True) == ["type=volume,dst=/var/cache/peagle"]
    assert volumes(collecting=False) == ["type=volume,src=peagle-cache,dst=/var/cache/peagle"]


def test_an_image_without_a_compiler_is_refused_before_it_starts(
    docker: FakeDocker, plan_for: PlanFor
) -> None:
    docker.answers("run", "--entrypoint", out="g++")
    with raises_code("compiler-missing", UserError) as caught:
        LocalOptions(image(docker), compiled=True).local_environment(plan_for())
    assert "g++" in caught.value.message
    assert "another --base" in caught.value.fix


@pytest.mark.parametrize(
    ("digests", "known_as"),
    [([], "sha256:mine"), (["host:5000/mine@sha256:abc"], "sha256:abc")],
    ids=["never pushed", "pushed"],
)
def test_a_container_gets_the_digest_of_its_image(
    docker: FakeDocker, own_home: Path, plan_for: PlanFor, digests: list[str], known_as: str
) -> None:
    host = LocalOptions(image(docker, RepoDigests=digests))
    assert host.container(plan_for(), {}, 1).environment["PEAGLE_IMAGE_DIGEST"] == known_as
