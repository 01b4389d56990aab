"""`peagle image` and `peagle destroy --images` with the sandbox's CodeBuild and ECR."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import Peagle

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
