"""The CPU image as it was built: small, labelled, not root, and the same when built again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.docker.conftest import BASE
from tests.support import Peagle
from toolkit.images import Docker
from toolkit.rendering.image import LAYER_LIMIT_BYTES

pytestmark = pytest.mark.docker


def test_the_layer_on_the_engine_is_small(image: dict[str, Any]) -> None:
    assert 0 < image["layer_bytes"] < LAYER_LIMIT_BYTES


def test_it_says_what_it_is(image: dict[str, Any], peagle: Peagle) -> None:
    shown = json.loads(peagle("image", "show", image["name"], "--json").stdout)
    assert shown["pair"] == "peagle/tiny+p-eagle"
    assert shown["labels"]["peagle.licence.target"] == "apache-2.0"
    assert shown["labels"]["peagle.weights"] == "mounted"
    assert shown["user"] == "10001:10001"


def test_building_again_changes_nothing(image: dict[str, Any], peagle: Peagle) -> None:
    again = peagle("image", "build", "tiny", "--runtime", "cpu", "--base", BASE, "--json")
    told = json.loads(again.stdout)
    assert (told["name"], told["id"]) == (image["name"], image["id"])


def test_an_image_for_gpus_is_the_same_layer_on_the_base_that_is_given(
    docker: Docker, peagle: Peagle
) -> None:
    built = peagle("image", "build", "gpt-oss-20b", "--base", BASE, "--json")
    assert built.returncode == 0, built.stderr
    told = json.loads(built.stdout)
    assert 0 < told["layer_bytes"] < LAYER_LIMIT_BYTES
    assert told["labels"]["peagle.runtime"] == "gpu"
    assert told["base"] == BASE
    assert told["user"] == "10001:10001"


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
    with pytest.raises(Exception, match="SM_VLLM_MAX_NUM_SEQ"):
        docker.run("run", "--rm", "--env", "SM_VLLM_MAX_NUM_SEQ=1", image["name"], "serve",
                   doing="starting")  # fmt: skip
