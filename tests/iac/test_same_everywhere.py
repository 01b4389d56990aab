"""The templates and our own requests describe the same endpoint; an image has the plan's base."""

from __future__ import annotations

import pytest

from peagle.errors import Unsupported
from peagle.render import render
from tests.iac.formats import (
    from_cloudformation,
    from_requests,
    from_terraform,
)
from tests.support import raises_code
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG, SHAPES, plan_for, plan_of


@pytest.mark.parametrize("shape", SHAPES)
def test_all_formats_describe_the_same_endpoint(shape: str) -> None:
    plan = plan_of(shape)
    expected = from_requests(plan)
    assert from_terraform(plan) == expected
    if any(mount.channel for mount in plan.mounts):
        with raises_code("format-unsupported", Unsupported):
            from_cloudformation(plan)
    else:
        assert from_cloudformation(plan) == expected


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_all_formats_describe_the_same_endpoint_for_every_pair(pair: str) -> None:
    plan = plan_for(pair)
    assert from_requests(plan) == from_cloudformation(plan) == from_terraform(plan)


def test_an_image_with_weights_needs_no_bucket_and_has_its_own_paths() -> None:
    plan = plan_of("baked")
    for described in (from_requests(plan), from_cloudformation(plan), from_terraform(plan)):
        assert described.image == plan.runtime.image
        assert described.mounts == {}
        assert described.environment["SM_VLLM_MODEL"] == "/opt/ml/model/target"
        assert "ModelDataDownloadTimeoutInSeconds" not in described.variant
    for name in ("cloudformation", "terraform"):
        files = {file.path: file.content.lower() for file in render(name, plan, CATALOG)}
        for same in ("main.tf", *(path for path in files if "endpoint/" in path)):
            files.pop(same, None)  # the same for every plan
        assert not [path for path, content in files.items() if b"bucket" in content]
