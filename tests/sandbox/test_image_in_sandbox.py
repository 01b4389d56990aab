"""`peagle image` and `peagle destroy --images` with the sandbox's CodeBuild and ECR."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.support import Peagle
from tests.unit.images.conftest import LABELS, FakeDocker, docker

__all__ = ["docker"]
pytestmark = pytest.mark.sandbox
Environment = dict[str, str]


@pytest.fixture
def place(own_home: Path, peagle: Peagle) -> Iterator[Environment]:
    """A home of its own, in which no sandbox stays."""
    environment = {**os.environ, "PEAGLE_HOME": str(own_home)}
    yield environment
    peagle("sandbox", "stop", env=environment)


def test_codebuild_builds_and_destroy_removes_all_of_it(place: Environment, peagle: Peagle) -> None:
    built = peagle("image", "build", "gpt-oss-20b", "--builder", "codebuild", "--sandbox", "--json",
                   env=place)  # fmt: skip
    assert built.returncode == 0, built.stderr
    address = json.loads(built.stdout)["pushed"]
    assert "/peagle-gpt-oss-20b:0.28.0-gpu-" in address
    assert re.search(r"uploading the build context \([\d.]+ MB\)", built.stderr)
    assert "note" not in built.stderr
    assert "by tag, without a pinned digest: ECR reports none" in built.stderr
    refused = peagle("destroy", "--images", "--sandbox", env=place)
    assert refused.returncode == 2
    assert "Role peagle-gpt-oss-20b-us-east-1" in refused.stderr
    removed = peagle("destroy", "--images", "--sandbox", "--yes", "--json", env=place)
    kinds = [resource["type"] for resource in json.loads(removed.stdout)["removed"]]
    assert kinds == ["Project", "LogGroup", "Role", "Object", "Bucket", "Repository"]
    again = peagle("destroy", "--images", "--sandbox", "--yes", "--json", env=place)
    assert json.loads(again.stdout) == {"removed": []}


def test_what_a_colleague_has_pushed_is_not_pushed_again(
    place: Environment, peagle: Peagle, docker: FakeDocker
) -> None:
    content = "0123456789abcdef"
    by_content, named = f"peagle-tiny:0.28.0-cpu-{content[:12]}", "peagle-tiny:mine"
    docker.answers("version", out="20.10")
    for name in (by_content, named):
        docker.has_image(name, {**LABELS, "peagle.content": content})
    place["PATH"] = os.environ["PATH"]
    push = ("image", "push", by_content, "--sandbox", "--json")
    assert peagle(*push, env=place).returncode == 3, "it is not there yet"
    digest = _put(place, peagle, by_content.partition(":")[2])
    _put(place, peagle, "mine")
    done = peagle(*push, env=place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pushed"].endswith(f"/peagle-tiny@{digest}")
    assert "exists already" in done.stderr
    assert not [call for call in docker.calls if call["argv"][0] == "push"]
    another = peagle("image", "push", named, "--sandbox", env=place)
    assert another.returncode == 3, "what else is called so may be another image"


def _put(place: Environment, peagle: Peagle, tag: str) -> str:
    """An image with that tag in the sandbox's ECR; its digest."""
    output = json.loads(peagle("sandbox", "env", "--json", env=place).stdout)
    client = boto3.client(
        "ecr", region_name="us-east-1", endpoint_url=output["AWS_ENDPOINT_URL"],
        aws_access_key_id=output["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=output["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"digest": "sha256:0", "size": 1, "mediaType": "x"},
                "layers": [], "annotations": {"tag": tag}}  # fmt: skip
    put = client.put_image(repositoryName="peagle-tiny", imageTag=tag,
                           imageManifest=json.dumps(manifest))  # fmt: skip
    return str(put["image"]["imageId"]["imageDigest"])
