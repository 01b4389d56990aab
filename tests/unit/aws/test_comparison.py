"""Two plans on one endpoint: the comparison begins, changes its share, is promoted or dropped."""

from collections.abc import Callable
from typing import Any

import pytest

from peagle.aws.sagemaker import describe
from peagle.deploy import records
from peagle.deploy.comparison import CandidateNotProved
from peagle.deploy.discover import find_deployment
from peagle.deploy.revisions import CANDIDATE
from peagle.deploy.state import RunningComparison
from peagle.deploy.status import deployment_status, usd_per_hour_now
from peagle.planning.plan import Limit
from tests.support import raises_code
from tests.unit.aws.cloud import Engine
from tests.unit.aws.network import interrupting
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.test_diff import observed
from tests.unit.aws.test_discover import prices
from tests.unit.aws.test_updates import ACCEPTANCE, ERRORS, LOG, rolled_out
from tests.unit.aws.world import NAME, World


@pytest.fixture
def compared(world: World) -> RunningComparison:
    """The plan in service has a candidate with 10 % of the requests."""
    world.deploy(a_plan())
    comparison = world.compare(another(a_plan())).comparison
    assert comparison is not None
    return comparison


def variants(world: World) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = world.cloud.configs[world.serves()]["ProductionVariants"]
    return listed


def test_status_and_cost_know_both_variants(world: World, compared: RunningComparison) -> None:
    status = deployment_status(world.aws, world.saved())
    assert status.state == "InService"
    assert status.instances_running == 1
    assert status.price_per_hour_usd == pytest.approx(2 * 1.408)
    assert status.comparison is not None
    assert status.comparison.state == "running"
    assert status.comparison.share == 0.1
    assert status.comparison.price_per_hour_usd == pytest.approx(1.408)


@pytest.mark.parametrize(("prepare", "code"), [
    (lambda world: None, "nothing-in-service"),
    (lambda world: world.deploy(a_plan()), "nothing-to-compare"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    world: World, prepare: Callable[[World], object], code: str
) -> None:
    prepare(world)
    with raises_code(code):
        world.compare(a_plan())
    record = world.record()
    assert record is None or record.comparison is None


@pytest.mark.thorough
def test_without_a_proof_of_the_candidate_the_comparison_ends(world: World) -> None:
    world.deploy(a_plan())
    serves = world.serves()
    world.cloud.engines[CANDIDATE] = Engine(acceptance=1.2)
    with raises_code("candidate-not-proved", CandidateNotProved) as failed:
        world.compare(another(a_plan()))
    assert failed.value.exit_code == 3
    assert world.serves() == serves
    assert world.saved().comparison is None
    assert set(world.cloud.configs) == {serves}
    assert world.state() == "InService"


def test_what_aws_rolls_back_leaves_nothing(world: World) -> None:
    world.deploy(a_plan())
    serves = world.serves()
    world.cloud.next_scripts = [[("Updating", None), ("InService", "no capacity")]]
    with pytest.raises(Exception, match="no capacity"):
        world.compare(another(a_plan()))
    assert world.saved().comparison is None
    assert set(world.cloud.configs) == set(world.cloud.models) == {serves}


@pytest.mark.parametrize(("operation", "number"), [
    ("create_model", 1),
    ("create_endpoint_config", 1),
    ("create_endpoint_config", 2),
    ("update_endpoint", 1),
    ("invoke_endpoint", 1),
])  # fmt: skip
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_interrupted_compare_continues(
    world: World, operation: str, number: int, elsewhere: bool
) -> None:
    world.deploy(a_plan())
    world.cloud.before = interrupting(operation, number)
    with pytest.raises(KeyboardInterrupt):
        world.compare(another(a_plan()))
    if elsewhere:
        world.forget()
    record = world.compare(another(a_plan()))
    assert record.comparison.since is not None
    assert len(variants(world)) == 2
    world.destroy()
    assert world.cloud.is_empty


@pytest.mark.parametrize("operation", ["update_endpoint", "invoke_endpoint", "delete_model"])
@pytest.mark.parametrize("end", ["promote", "drop"])
def test_an_interrupted_end_continues(
    world: World, compared: RunningComparison, end: str, operation: str
) -> None:
    world.cloud.before = interrupting(operation)
    try:
        getattr(world, end)()
    except KeyboardInterrupt:
        getattr(world, end)()
    assert world.saved().comparison is None
    assert len(variants(world)) == 1
    assert (world.serves() == compared.candidate.name) == (end == "promote")
    assert world.state() == "InService"


def test_unfinished_promotion_is_finished_first(world: World, compared: RunningComparison) -> None:
    world.cloud.before = interrupting("update_endpoint")
    with pytest.raises(KeyboardInterrupt):
        world.promote()
    with raises_code("comparison-runs") as refused:
        world.deploy(a_plan())
    assert refused.value.command == ("peagle", "promote", NAME)
    world.drop()
    assert len(variants(world)) == 1


@pytest.mark.parametrize("end", ["promote", "drop"])
def test_another_machine_knows_the_comparison_and_ends_it(
    world: World, compared: RunningComparison, end: str
) -> None:
    made = world.saved()
    world.forget()
    record = find_deployment(world.aws, NAME, prices)
    assert record
    assert record.serving.fingerprint == made.serving.fingerprint
    assert record.serving.served.instance_count == 1
    assert record.pending is None
    assert record.comparison.config == compared.config
    assert record.comparison.share == pytest.approx(0.1, abs=1e-5)
    assert record.comparison.since is not None
    assert record.comparison.candidate.fingerprint == compared.candidate.fingerprint
    live = describe(world.aws, NAME)
    assert usd_per_hour_now(record, live) == pytest.approx(2 * 1.408)
    records.save(record)
    getattr(world, end)()
    assert len(variants(world)) == 1
    world.destroy()
    assert world.cloud.is_empty


@pytest.mark.thorough
def test_promote_applies_the_whole_plan(world: World) -> None:
    world.deploy(observed(rolled_out(a_plan())))
    plan = rolled_out(another(a_plan()), floor=1.5)
    limit = Limit(ttl_seconds=7200)
    world.compare(observed(plan, 7).model_copy(update={"limit": limit}))
    world.promote()
    now = world.cloud.made_alarms[ACCEPTANCE]
    assert now["Threshold"] == 1.5
    dimensions = world.cloud.made_alarms[ERRORS]["Dimensions"]
    assert {"Name": "EndpointConfigName", "Value": world.serves()} in dimensions
    assert world.cloud.retention == {LOG: 7}
    assert world.saved().ends_at is not None
    assert world.cloud.schedules
