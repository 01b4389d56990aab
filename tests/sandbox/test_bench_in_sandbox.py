"""`peagle bench` of an endpoint in the sandbox: bearer token, OpenAI's route, drafts in the log."""

from __future__ import annotations

import json

import pytest

from tests.sandbox.sandboxes import Sandbox
from tests.unit.bench.installed import install_mini

pytestmark = pytest.mark.sandbox

NAME = "peagle-tiny"


def test_an_endpoint_is_measured_through_its_openai_route(sandbox: Sandbox) -> None:
    install_mini(sandbox.home)
    deployed = sandbox.peagle(
        "deploy", "tiny", "--instance-type", "ml.g5.xlarge", "--sandbox", "--yes"
    )
    assert deployed.returncode == 0, deployed.stderr

    done = sandbox.peagle("bench", NAME, "--sandbox", "--concurrency", "2", "--requests", "4",
                          "--output-tokens", "8", "--json")  # fmt: skip

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    server, (row,) = document["server"], document["rows"]
    assert server["base_url"].endswith(f"/endpoints/{NAME}/openai/v1")
    assert (server["where"], server["instance_type"], server["gpu"]) == (
        "sandbox", "ml.g5.xlarge", "A10G",
    )  # fmt: skip
    assert row["setting"]["drafter"] == "p-eagle"
    assert row["output_tokens"] == 8
    assert row["acceptance"]["drafts"] > 0
    # AWS's price is not that of this machine.
    assert document["usd_per_hour"] is None
    assert "sagemaker-api-key" not in done.stdout + done.stderr
