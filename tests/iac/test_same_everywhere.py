"""The templates and our own requests describe the same endpoint; an image has the plan's base."""

import pytest

from peagle.errors import Unsupported
from tests.iac.formats import from_cloudformation, from_requests, from_terraform
from tests.support import raises_code
from tests.unit.rendering.plans import ALL_PAIRS, SHAPES, plan_for, plan_of


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
