"""AWS has no instance: the errors have a class of their own, and say what to try."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peagle.aws.errors import InsufficientCapacity, lacks_capacity
from peagle.aws.sagemaker import VISIBLE_AFTER_SECONDS
from tests.support import raises_code
from tests.unit.aws.cloud import service_error
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import World

NO_INSTANCE = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)
NO_QUOTA = (
    "The account-level service limit 'ml.g5.xlarge for endpoint usage' is 1 Instances, with "
    "current utilization of 1 Instances and a request delta of 1 Instances."
)
CONFIG_UNSEEN = 'Could not find endpoint configuration "arn:aws:sagemaker:us-east-1:1:x".'


def at(operation: str, error: Callable[[], Exception], times: int = 1) -> Callable[[str], None]:
    """A hook that refuses the first ``times`` calls of the operation."""
    left = [times]

    def refuse(called: str) -> None:
        if called == operation and left[0]:
            left[0] -= 1
            raise error()

    return refuse


@pytest.mark.parametrize(
    "reason",
    [
        NO_INSTANCE,
        NO_QUOTA,
        "CapacityError: Unable to provision requested ML compute capacity.",
        "An error occurred (InsufficientInstanceCapacity)",
        "Insufficient capacity in this Region",
    ],
)
def test_reasons_of_missing_capacity(reason: str) -> None:
    assert lacks_capacity(reason)


@pytest.mark.parametrize(
    "reason",
    [
        "",
        "The primary container for production variant AllTraffic did not pass the ping check.",
        "The account-level service limit 'Total number of endpoints' is 10",
        "The model data archive is too large.",
    ],
)
def test_other_reasons_are_not_about_capacity(reason: str) -> None:
    assert not lacks_capacity(reason)


@pytest.mark.parametrize("reason", [NO_INSTANCE, NO_QUOTA])
def test_an_endpoint_that_fails_for_capacity(world: World, reason: str) -> None:
    world.cloud.next_scripts = [[("Creating", None), ("Failed", reason)]]
    with raises_code("insufficient-capacity", InsufficientCapacity) as failed:
        world.deploy(a_plan())
    assert failed.value.exit_code == 4
    assert reason.rstrip(".") in failed.value.message
    assert "--fallback-instance-types" in failed.value.fix
    assert "--region" in failed.value.fix
    assert "filter_log_events" not in world.cloud.calls


def test_an_update_that_is_rolled_back_for_capacity_names_what_still_serves(world: World) -> None:
    world.deploy(a_plan())
    (old,) = world.cloud.configs
    world.cloud.next_scripts = [[("Updating", None), ("InService", NO_INSTANCE)]]
    with raises_code("insufficient-capacity", InsufficientCapacity) as failed:
        world.deploy(another(a_plan()))
    assert old in failed.value.fix
    assert "--retry-for" in failed.value.fix
    assert world.state() == "InService"


@pytest.mark.parametrize("operation", ["create_endpoint", "update_endpoint"])
@pytest.mark.parametrize(
    ("code", "message"),
    [("ResourceLimitExceeded", NO_QUOTA), ("InsufficientInstanceCapacity", "no instance")],
)
def test_a_request_that_is_refused_for_capacity(
    world: World, operation: str, code: str, message: str
) -> None:
    if operation == "update_endpoint":
        world.deploy(a_plan())
    named = "".join(word.title() for word in operation.split("_"))
    world.cloud.before = at(operation, lambda: service_error(code, message, named), times=9)
    with raises_code("insufficient-capacity", InsufficientCapacity) as failed:
        world.deploy(another(a_plan()))
    assert failed.value.fix
    assert failed.value.document()["tried"] == []


@pytest.mark.parametrize("operation", ["create_endpoint", "update_endpoint"])
def test_a_request_waits_until_its_configuration_is_visible(world: World, operation: str) -> None:
    if operation == "update_endpoint":
        world.deploy(a_plan())
    unseen = lambda: service_error("ValidationException", CONFIG_UNSEEN, "CreateEndpoint")  # noqa: E731
    world.cloud.before = at(operation, unseen, times=3)
    began, before = world.cloud.now, world.cloud.calls.count(operation)
    world.deploy(another(a_plan()))
    assert world.cloud.calls.count(operation) == before + 4
    assert world.cloud.now - began >= sum(VISIBLE_AFTER_SECONDS[:3])
    assert world.state() == "InService"
