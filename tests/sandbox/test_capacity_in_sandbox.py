"""Deploy in a sandbox that has no instance of the planned type."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.sandbox.sandboxes import Account, Sandbox

pytestmark = pytest.mark.sandbox

NAME = "peagle-tiny-plain"
DEPLOY = ("deploy", "tiny", "--no-speculation", "--instance-type", "ml.g5.xlarge", "--sandbox",
          "--yes")  # fmt: skip


@pytest.fixture
def full(sandbox: Sandbox) -> Iterator[Sandbox]:
    """A sandbox without a free ml.g5.xlarge."""
    sandbox.json(
        "sandbox", "fault", "add", "CreateEndpoint", "insufficient-capacity",
        "--instance-type", "ml.g5.xlarge",
    )  # fmt: skip
    yield sandbox
    sandbox.peagle("sandbox", "fault", "clear")
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


def test_a_type_with_capacity_takes_the_place_of_the_failed_endpoint(full: Sandbox) -> None:
    done = full.peagle(*DEPLOY, "--fallback-instance-types", "ml.g6.xlarge", "--json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(one["instance_type"], one["outcome"]) for one in document["tried"]] == [
        ("ml.g5.xlarge", "no-capacity"),
        ("ml.g6.xlarge", "deployed"),
    ]
    assert document["state"] == "InService"
    assert document["instance_type"] == "ml.g6.xlarge"
    assert "Tried:" in done.stderr
    configs = Account(full).sagemaker.list_endpoint_configs()["EndpointConfigs"]
    assert len(configs) == 1
