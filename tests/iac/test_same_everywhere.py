"""CloudFormation, Terraform and boto3 describe the same endpoint, and the image is built on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.iac.formats import (
    from_cloudformation,
    from_requests,
    from_script,
    from_terraform,
)
from tests.unit.rendering.plans import ALL_PAIRS, SHAPES, plan_for, plan_of
from toolkit.errors import Unsupported
from toolkit.rendering import render


@pytest.mark.parametrize("shape", SHAPES)
def test_all_formats_describe_the_same_endpoint(shape: str, tmp_path: Path) -> None:
    plan = plan_of(shape)
    wanted = from_requests(plan)
    assert from_terraform(plan) == wanted
    assert from_script(plan, tmp_path) == wanted
    if any(mount.channel for mount in plan.mounts):
        with pytest.raises(Unsupported):
            from_cloudformation(plan)
    else:
        assert from_cloudformation(plan) == wanted


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_all_formats_describe_the_same_endpoint_for_every_pair(pair: str) -> None:
    plan = plan_for(pair)
    assert from_requests(plan) == from_cloudformation(plan) == from_terraform(plan)


def test_what_is_compared_is_the_plan() -> None:
    plan = plan_of("two-instances")
    described = from_requests(plan)
    assert described.endpoint == plan.name
    assert described.image == plan.runtime.image
    assert described.environment == plan.environment
    assert described.variant["InstanceType"] == plan.instance_type
    assert described.variant["InitialInstanceCount"] == 2
    assert described.variant["InferenceAmiVersion"] == plan.runtime.ami
    assert (
        described.variant["ContainerStartupHealthCheckTimeoutInSeconds"]
        == plan.startup_timeout_seconds
    )
    assert from_requests(plan_of("uploaded")).mounts == {
        None: "s3://my-models/peagle-toolkit/tiny/"
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_the_image_is_built_on_the_plans(shape: str) -> None:
    plan = plan_of(shape)
    (dockerfile,) = [f for f in render("dockerfile", plan) if f.path == "Dockerfile"]
    text = dockerfile.content.decode()
    assert f"\nARG BASE={plan.runtime.image}\nFROM ${{BASE}}\n" in text
