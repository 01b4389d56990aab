"""The base of an image that is built on AWS, and what is recorded of a push."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from peagle.aws import ecr
from peagle.aws import images as codebuild
from peagle.aws.client import Aws
from peagle.aws.images import ImageRequest, build_image_on_aws
from peagle.catalog import load_catalog
from peagle.planning import Options, make_plan
from tests.unit.aws.conftest import moto_connection

CATALOG = load_catalog()
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def aws(own_home: Any) -> Iterator[Aws]:
    with mock_aws():
        yield moto_connection()


class Builds:
    """A CodeBuild that takes orders and pushes nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[codebuild.BuildRequest] = []
        self.digest: str | None = DIGEST
        monkeypatch.setattr(codebuild, "build_remotely", self._build)

    def _build(self, aws: Aws, order: codebuild.BuildRequest, say: Any) -> codebuild.RemoteBuild:
        self.orders.append(order)
        return codebuild.RemoteBuild(f"host/{order.repository}:{order.tag}", self.digest)

    @property
    def base(self) -> str:
        """The default base of the last order."""
        (dockerfile,) = [one for one in self.orders[-1].context if one.path == "Dockerfile"]
        text = b"".join(dockerfile.chunks()).decode()
        (line,) = [line for line in text.splitlines() if line.startswith("ARG BASE=")]
        return line.removeprefix("ARG BASE=")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(monkeypatch)


def build(aws: Aws, base: str | None, tag: str | None = None) -> tuple[str, list[str]]:
    """The address of the image of gpt-oss-20b, and what is said meanwhile."""
    said: list[str] = []
    plan = make_plan(Options(pair="gpt-oss-20b"), CATALOG)
    return build_image_on_aws(aws, ImageRequest(plan, CATALOG, "gpu", tag, base), said.append), said


def _in_ecr(aws: Aws) -> tuple[str, str]:
    """An image in the account's ECR: its address with a tag, and its digest."""
    uri = ecr.ensure_repository(aws, "base")
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"digest": "sha256:0", "size": 1, "mediaType": "x"},
                "layers": []}  # fmt: skip
    aws.call("ecr", "put_image", repositoryName="base", imageTag="v1",
             imageManifest=json.dumps(manifest))  # fmt: skip
    digest = ecr.image_digest(aws, "base", "v1")
    assert digest is not None
    return f"{uri}:v1", digest


@pytest.mark.thorough
def test_a_base_in_ecr_is_pinned_and_its_registry_needs_a_login(aws: Aws, builds: Builds) -> None:
    address, digest = _in_ecr(aws)

    _, said = build(aws, address)

    assert builds.base == f"{address}@{digest}"
    assert builds.orders[0].base_registry == address.partition("/")[0]
    assert said == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("acme.example.com/vllm:1", ["FROM acme.example.com/vllm:1 by tag, without a pinned digest:"
                                     " ECR reports none"]),
        ("python:3.12", []),
    ],
)  # fmt: skip
def test_a_base_outside_ecr_is_used_by_its_tag(
    aws: Aws, builds: Builds, base: str, said: list[str]
) -> None:
    assert build(aws, base)[1] == said
    assert builds.base == base


@pytest.mark.thorough
def test_the_image_has_the_users_tag_and_an_address_with_its_digest(
    aws: Aws, builds: Builds
) -> None:
    base = f"docker.io/acme/vllm@{DIGEST}"

    assert build(aws, base, "mine:2")[0] == f"host/mine@{DIGEST}"

    builds.digest = None  # ECR does not list it yet
    assert build(aws, base, "mine:2")[0] == "host/mine:2"
    assert (builds.orders[-1].repository, builds.orders[-1].tag) == ("mine", "2")
