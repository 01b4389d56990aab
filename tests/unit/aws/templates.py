"""Deployments that the program of a render format makes, without this toolkit."""

from peagle.planning.plan import EXECUTION_ROLE, Plan
from peagle.render.requests import owned_requests, with_replaced
from tests.unit.aws.cloud import ROLE
from tests.unit.aws.world import World


def by_template(world: World, plan: Plan, owner: str, *more: dict[str, str]) -> None:
    """Create the plan's resources as a render format's program does."""
    for request in owned_requests(plan, owner):
        parameters = with_replaced(request.parameters, {EXECUTION_ROLE: ROLE})
        tags = [*parameters.pop("Tags"), *more]
        world.aws.call("sagemaker", request.operation, **parameters, Tags=tags)
