"""The CPU image as it was built: small, labelled, not root, and the same when built again."""

from functools import partial
from typing import Any

import pytest

from peagle.errors import EngineError, PeagleError
from peagle.images.build import make_member, write_tar
from peagle.images.docker import Docker
from peagle.render.image import LAYER_LIMIT_BYTES
from tests.docker.conftest import BASE, Build
from tests.support import raises_code

pytestmark = pytest.mark.docker


def test_the_layer_on_the_engine_is_small_and_says_what_it_is(image: dict[str, Any]) -> None:
    assert 0 < image["layer_bytes"] < LAYER_LIMIT_BYTES
    assert image["pair"] == "peagle/tiny+p-eagle"
    assert image["labels"]["peagle.licence.target"] == "apache-2.0"
    assert image["labels"]["peagle.weights"] == "mounted"
    assert image["user"] == "10001:10001"


def test_building_again_changes_nothing(image: dict[str, Any], build: Build) -> None:
    reported = build("tiny", "--runtime", "cpu", "--base", BASE)
    assert (reported["name"], reported["id"]) == (image["name"], image["id"])


def test_a_failed_build_is_reported(docker: Docker) -> None:
    dockerfile = f'FROM {BASE}\nRUN ["sh", "-c", "echo why; exit 7"]\n'
    failing = partial(write_tar, [make_member("Dockerfile", dockerfile.encode())])
    reported: list[str] = []
    with raises_code("docker-failed", EngineError) as caught:
        docker.stream("build", "-", doing="building", stdin=failing, each_line=reported.append)
    assert "why" in caught.value.message
    assert "7" in caught.value.message
    assert reported


def test_the_user_may_write_to_the_cache_and_to_nothing_of_ours(
    image: dict[str, Any], docker: Docker
) -> None:
    tried = docker.run(
        "run", "--rm", "--entrypoint", "sh", image["name"], "-c",
        "id -u; touch /var/cache/peagle/x && echo cache; touch /opt/peagle/x || true",
        doing="trying",
    )  # fmt: skip
    assert tried.split() == ["10001", "cache"]


def test_a_wrong_environment_ends_the_container_at_once_with_its_reason(
    image: dict[str, Any], docker: Docker
) -> None:
    with pytest.raises(PeagleError) as raised:
        docker.run("run", "--rm", "--env", "SM_VLLM_MAX_NUM_SEQ=1", image["name"], "serve",
                   doing="starting")  # fmt: skip
    assert "SM_VLLM_MAX_NUM_SEQ" in raised.value.message
