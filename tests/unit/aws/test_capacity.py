"""AWS has no instance: the errors have a class of their own, and say what to try."""

import pytest

from peagle.aws.errors import InsufficientCapacity, lacks_capacity
from peagle.aws.sagemaker import VISIBLE_AFTER_SECONDS
from peagle.deploy.apply import PAUSE_SECONDS, Fallback, deploy_where_possible
from peagle.deploy.preflight import Preflight
from peagle.errors import NotProved, Refused
from peagle.planning.plan import Plan
from tests.support import raises_code
from tests.unit.aws.network import refusing
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

NO_INSTANCE = (
    "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. "
    "Please retry using a different ML instance type or after some time."
)
NO_QUOTA = (
    "The account-level service limit 'ml.g5.xlarge for endpoint usage' is 1 Instances, with "
    "current utilization of 1 Instances and a request delta of 1 Instances."
)
CONFIG_UNSEEN = 'Could not find endpoint configuration "arn:aws:sagemaker:us-east-1:1:x".'


@pytest.mark.parametrize("reason", [
    NO_INSTANCE,
    NO_QUOTA,
    "CapacityError: Unable to provision requested ML compute capacity.",
    "An error occurred (InsufficientInstanceCapacity)",
    "Insufficient capacity in this Region",
])  # fmt: skip
def test_reasons_of_missing_capacity(reason: str) -> None:
    assert lacks_capacity(reason)


def test_an_update_that_is_rolled_back_for_capacity_names_what_still_serves(world: World) -> None:
    world.deploy(a_plan())
    (old,) = world.cloud.configs
    world.cloud.next_scripts = [[("Updating", None), ("InService", NO_INSTANCE)]]
    with raises_code("insufficient-capacity", InsufficientCapacity) as failed:
        world.deploy(another(a_plan()))
    assert old in failed.value.fix
    assert world.state() == "InService"


@pytest.mark.parametrize("operation", ["create_endpoint", "update_endpoint"])
@pytest.mark.parametrize(("code", "message"), [
    ("ResourceLimitExceeded", NO_QUOTA), ("InsufficientInstanceCapacity", "no instance"),
])  # fmt: skip
def test_a_request_that_is_refused_for_capacity(
    world: World, operation: str, code: str, message: str
) -> None:
    if operation == "update_endpoint":
        world.deploy(a_plan())
    world.cloud.before = refusing(operation, code, message)
    with raises_code("insufficient-capacity", InsufficientCapacity) as failed:
        world.deploy(another(a_plan()))
    assert failed.value.document()["tried"] == []


@pytest.mark.parametrize("operation", ["create_endpoint", "update_endpoint"])
def test_a_request_waits_until_its_configuration_is_visible(world: World, operation: str) -> None:
    if operation == "update_endpoint":
        world.deploy(a_plan())
    world.cloud.before = refusing(operation, "ValidationException", CONFIG_UNSEEN, times=3)
    began, before = world.cloud.now, world.cloud.calls.count(operation)
    world.deploy(another(a_plan()))
    assert world.cloud.calls.count(operation) == before + 4
    assert world.cloud.now - began >= sum(VISIBLE_AFTER_SECONDS[:3])
    assert world.state() == "InService"


# Deploy tries one instance type after another until AWS has a free instance.
FIRST = "ml.g5.xlarge"
PRICES = {FIRST: 1.408, "ml.g5.2xlarge": 1.515, "ml.g6.xlarge": 1.127}
FULL = [("Creating", None), ("Creating", None), ("Failed", NO_INSTANCE)]


@pytest.fixture
def world(world: World) -> World:
    for name in PRICES:
        world.cloud.quotas[f"{name} for endpoint usage"] = 4
    return world


def plan_on(instance_type: str) -> Plan:
    return a_plan(instance_type=instance_type, price_per_hour_usd=PRICES[instance_type])


class Deployer:
    """Deploys with fallbacks in the fake account."""

    def __init__(self, world: World, *others: str, retry_seconds: float = 0.0) -> None:
        self.world = world
        self.refused: dict[str, str] = {}
        self.fallback = Fallback(self.prepare, [*map(plan_on, others)], retry_seconds)

    def prepare(self, plan: Plan) -> Preflight:
        if plan.instance_type in self.refused:
            raise Refused(self.refused[plan.instance_type])
        return self.world.preflight(plan)

    def run(self) -> str:
        """The type that is deployed."""
        planned = self.prepare(plan_on(FIRST))
        context = self.world.context(self.world.new(planned.desired.plan.name))
        deployment = deploy_where_possible(context, planned, self.fallback)
        return deployment.desired.plan.instance_type

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        return [(attempt.instance_type, attempt.outcome) for attempt in self.fallback.attempts]


def test_a_type_whose_plan_is_refused_is_skipped_and_not_repeated(world: World) -> None:
    world.cloud.next_scripts = [FULL, FULL]
    deployer = Deployer(world, "ml.g5.2xlarge", "ml.g6.xlarge", retry_seconds=300)
    deployer.refused["ml.g5.2xlarge"] = "the quota is 0"
    assert deployer.run() == FIRST
    assert deployer.outcomes == [
        (FIRST, "no-capacity"), ("ml.g5.2xlarge", "refused"), ("ml.g6.xlarge", "no-capacity"),
        (FIRST, "deployed"),
    ]  # fmt: skip


@pytest.mark.thorough
def test_rounds_are_repeated_until_the_time_is_over(world: World) -> None:
    world.cloud.next_scripts = [FULL] * 99
    deployer = Deployer(world, "ml.g6.xlarge", retry_seconds=600)
    began = world.cloud.now
    with raises_code("insufficient-capacity", InsufficientCapacity) as failed:
        deployer.run()
    tried = failed.value.document()["tried"]
    rounds = len(tried) // 2
    assert [attempt.instance_type for attempt in tried] == [FIRST, "ml.g6.xlarge"] * rounds
    assert rounds >= 600 // PAUSE_SECONDS - 1
    assert 600 <= world.cloud.now - began < 600 + PAUSE_SECONDS
    waits = [progress for progress in world.shown if progress.state == "Waiting for capacity"]
    assert waits[0].line == f"next attempt in {PAUSE_SECONDS:.0f} s"
    world.destroy()
    assert world.cloud.is_empty


def test_other_errors_end_the_deployment_at_once(world: World) -> None:
    world.cloud.next_scripts = [FULL]
    world.cloud.engine.acceptance = 1.0
    deployer = Deployer(world, "ml.g6.xlarge", "ml.g5.2xlarge")
    with pytest.raises(NotProved):
        deployer.run()
    assert deployer.outcomes == [(FIRST, "no-capacity"), ("ml.g6.xlarge", "failed")]
    assert NAME in world.cloud.endpoints
