"""Updates: what served is kept until its successor is proved, and a failed proof returns to it."""

from pathlib import Path

import pytest

from peagle.deploy.apply import RolledBack
from peagle.deploy.status import deployment_status
from peagle.errors import CloudError, NotProved
from peagle.planning.plan import AlarmKind, Observe, Plan, Rollout
from tests.support import raises_code
from tests.unit.aws.cloud import service_error
from tests.unit.aws.network import interrupting, refusing
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

GOOD, BAD = 3.0, 1.4


def test_an_update_whose_proof_fails_is_rolled_back(world: World) -> None:
    world.deploy(a_plan())
    before = world.serves()
    world.cloud.engine.acceptance = BAD
    with raises_code("rolled-back", RolledBack) as failed:
        world.deploy(another(a_plan()))
    assert failed.value.exit_code == 3
    assert "1.40" in failed.value.message
    assert before in failed.value.message
    assert world.serves() == before
    assert world.state() == "InService"
    assert set(world.cloud.configs) == set(world.cloud.models) == {before}
    status = deployment_status(world.aws, world.saved())
    assert status.acceptance_length == pytest.approx(GOOD)
    assert status.failure_reason == failed.value.message
    tags = world.cloud.tags[world.cloud.endpoints[NAME].arn]
    assert tags["peagle:revision"] == status.fingerprint
    assert f"revision={status.fingerprint} passed=yes" in tags["peagle:proof"]


def test_an_update_shows_no_upload_and_no_creation_of_what_is_there(
    world: World, head: Path
) -> None:
    plan = a_plan(head, observe=Observe(dashboard=True))
    world.deploy(plan)
    first = [progress.state for progress in world.shown]
    world.shown.clear()
    world.cloud.next_scripts = [[*[("Updating", None)] * 3, ("InService", None)]]
    world.deploy(another(plan))
    states = {progress.state for progress in world.shown}
    assert {"Uploading", "Creating dashboard"} <= {*first}
    assert not {"Uploading", "Creating", "Creating dashboard"} & states
    assert {"Updating", "Updating dashboard", "Creating model"} <= states


def test_an_update_whose_engine_does_not_answer_is_rolled_back(world: World) -> None:
    world.deploy(a_plan())
    before = world.serves()

    def broken(operation: str) -> None:
        if operation == "invoke_endpoint" and world.serves() != before:
            raise service_error("ModelError", "Received server error (500)", OriginalStatusCode=500,
                                OriginalMessage="boom")  # fmt: skip

    world.cloud.before = broken
    with raises_code("rolled-back", RolledBack) as failed:
        world.deploy(another(a_plan()))
    assert "boom" in failed.value.message
    assert world.serves() == before


def test_a_proof_that_aws_refuses_is_not_a_failed_one(world: World) -> None:
    world.deploy(a_plan())
    before = world.serves()
    world.cloud.before = refusing("invoke_endpoint", "AccessDeniedException", "not authorized")
    with pytest.raises(CloudError):
        world.deploy(another(a_plan()))
    assert world.serves() != before
    assert world.state() == "Unproved"
    world.cloud.before = lambda operation: None
    world.deploy(another(a_plan()))
    assert world.state() == "InService"
    assert set(world.cloud.configs) == {before, world.serves()}


def test_a_later_proof_ends_a_kept_update(world: World) -> None:
    world.deploy(a_plan())
    before = world.serves()
    world.cloud.engine.acceptance = BAD
    with pytest.raises(NotProved):
        world.deploy(another(a_plan()), keep_unproved=True)
    world.cloud.engine.acceptance = GOOD
    proved = world.prove()
    record = world.saved()
    assert proved.passed
    assert world.state() == "InService"
    assert record.pending is None
    assert record.previous.name == before
    tags = world.cloud.tags[world.cloud.endpoints[NAME].arn]
    assert record.previous.fingerprint in tags["peagle:previous"]


def test_a_rollback_that_fails_is_reported_and_can_be_repeated(world: World) -> None:
    world.deploy(a_plan())
    before = world.serves()
    world.cloud.engine.acceptance = BAD
    world.cloud.next_scripts = [
        [("Updating", None), ("InService", None)],
        [("Updating", None), ("InService", "no capacity")],
    ]
    with raises_code("rollback-failed", CloudError) as failed:
        world.deploy(another(a_plan()))
    assert failed.value.command == ("peagle", "rollback", NAME)
    assert world.serves() != before
    assert len(world.cloud.configs) == 2
    world.cloud.engine.acceptance = GOOD
    world.rollback()
    assert world.serves() == before
    assert world.state() == "InService"


def test_weights_of_the_previous_revision_stay_and_unchanged_files_are_copied(
    world: World, head: Path
) -> None:
    world.deploy(a_plan(head))
    (bucket,) = world.cloud.buckets.values()
    first = set(bucket)
    uploads = world.cloud.calls.count("upload_file")
    (head / "model.safetensors").write_bytes(b"trained again")
    world.deploy(a_plan(head))
    assert first < set(bucket)
    assert len(bucket) == 4
    assert world.cloud.calls.count("upload_file") == uploads + 1
    assert world.cloud.calls.count("copy") == 1
    world.rollback()
    assert world.state() == "InService"
    world.remove_previous()
    assert set(bucket) == first
    world.destroy()
    assert world.cloud.is_empty


@pytest.mark.thorough
def test_an_unproved_update_found_by_another_machine_returns_to_the_proved_revision(
    world: World, updated: tuple[str, str]
) -> None:
    world.cloud.engine.acceptance = BAD
    with pytest.raises(NotProved):
        world.deploy(a_plan(environment={"SM_VLLM_MODEL": "b"}), keep_unproved=True)
    unproved = world.serves()
    world.forget()
    world.cloud.engine.acceptance = GOOD
    world.rollback()
    assert world.serves() == updated[1]
    assert unproved not in world.cloud.configs
    record = world.saved()
    assert record.previous.name == updated[0]


@pytest.mark.thorough
def test_a_rollback_that_abandons_an_update_returns_to_the_same_one_again(
    world: World, updated: tuple[str, str]
) -> None:
    """Killed while what served is proved again, when nothing is pending any more."""
    world.cloud.engine.acceptance = 1.4
    with pytest.raises(NotProved):
        world.deploy(a_plan(environment={"SM_VLLM_MODEL": "b"}), keep_unproved=True)
    world.cloud.engine.acceptance = 3.0
    world.cloud.before = interrupting("invoke_endpoint")
    with pytest.raises(KeyboardInterrupt):
        world.rollback()
    world.rollback()
    assert world.serves() == updated[1]
    assert world.state() == "InService"


# Alarms of a rollout: made before the update, named when they undo it, removed by destroy.
ACCEPTANCE, ERRORS = f"{NAME}-acceptance", f"{NAME}-5xx"
LOG = f"/aws/sagemaker/Endpoints/{NAME}"


def rolled_out(plan: Plan, *alarms: AlarmKind, floor: float = 2.0) -> Plan:
    """The plan with a rolling update."""
    rollout = Rollout(
        kind="all-at-once",
        step=None,
        baking_seconds=600,
        extra_instances=1,
        extra_usd_per_hour=1.408,
        alarms=alarms or ("errors", "acceptance"),
    )
    speculation = plan.speculation
    if speculation:
        speculation = speculation.model_copy(update={"acceptance_floor": floor})
    return plan.model_copy(update={"rollout": rollout, "speculation": speculation})


def test_a_rollout_without_an_update_has_its_alarms(world: World) -> None:
    world.deploy(a_plan())
    world.deploy(rolled_out(a_plan()))
    assert set(world.cloud.made_alarms) == {ACCEPTANCE, ERRORS}
    assert "update_endpoint" not in world.cloud.calls
    assert not world.preflight(rolled_out(a_plan())).findings
    world.destroy()
    assert world.cloud.made_alarms == {}


def test_a_rollback_on_an_alarm_has_sagemaker_s_reason(world: World) -> None:
    world.deploy(a_plan())
    before = world.serves()
    reason = f"CloudWatch alarms fired: [{ACCEPTANCE}]"
    world.cloud.next_scripts = [[("Updating", None), ("RollingBack", None), ("InService", reason)]]
    with raises_code("endpoint-rolled-back") as failed:
        world.deploy(rolled_out(another(a_plan())))
    assert ACCEPTANCE in failed.value.message
    assert world.serves() == before
    record = world.saved()
    assert record.pending is None
    assert ACCEPTANCE in record.failure.message


def watched(plan: Plan, floor: float, k: int) -> Plan:
    """The plan with alarms and a dashboard, which name the acceptance length and K."""
    plan = rolled_out(plan, floor=floor)
    speculation = plan.speculation.model_copy(update={"k": k})
    observe = Observe(dashboard=True, log_retention_days=None)
    return plan.model_copy(update={"speculation": speculation, "observe": observe})


@pytest.mark.thorough
def test_an_update_that_is_undone_leaves_alarms_and_dashboard_as_before(world: World) -> None:
    world.deploy(watched(a_plan(), 2.0, 5))
    before = dict(world.cloud.made_alarms), dict(world.cloud.dashboards)
    world.cloud.next_scripts = [[("Updating", None), ("InService", "no capacity anywhere")]]
    with raises_code("endpoint-rolled-back"):
        world.deploy(watched(another(a_plan()), 1.5, 7))
    assert (world.cloud.made_alarms, world.cloud.dashboards) == before
    world.cloud.engine.acceptance = 1.1
    with raises_code("rolled-back"):
        world.deploy(watched(another(a_plan()), 1.5, 7))
    assert (world.cloud.made_alarms, world.cloud.dashboards) == before


def test_a_rollback_has_the_rollout_of_the_plan_that_it_returns_to(world: World) -> None:
    world.deploy(rolled_out(a_plan()))
    first = world.serves()
    world.deploy(rolled_out(another(a_plan()), floor=1.5))
    assert "AutoRollbackConfiguration" in world.cloud.updates[-1]["DeploymentConfig"]
    world.rollback()
    config = world.cloud.updates[-1]["DeploymentConfig"]
    assert config["BlueGreenUpdatePolicy"]["TerminationWaitInSeconds"] == 600
    # An alarm that fires already would undo the way back at once.
    assert "AutoRollbackConfiguration" not in config
    assert world.cloud.made_alarms[ACCEPTANCE]["Threshold"] == 2.0
    dimensions = world.cloud.made_alarms[ERRORS]["Dimensions"]
    assert {"Name": "EndpointConfigName", "Value": first} in dimensions
    world.deploy(rolled_out(another(a_plan()), floor=1.5))  # a kept revision, deployed again
    assert "AutoRollbackConfiguration" in world.cloud.updates[-1]["DeploymentConfig"]


@pytest.mark.parametrize("status", ["UpdateRollbackFailed", "Failed"])
@pytest.mark.parametrize(("reason", "shown"), [("no ping", "no ping"), (None, "no reason given")])
def test_a_broken_endpoint_is_replaced_and_its_reason_told(
    world: World, status: str, reason: str | None, shown: str
) -> None:
    world.deploy(a_plan())
    world.cloud.endpoints[NAME].script = [(status, reason)]
    world.deploy(another(a_plan()))
    (line,) = [progress.line for progress in world.shown if progress.state == "Removing"]
    assert line == f"the endpoint is {status}: {shown}"
    assert world.cloud.endpoints[NAME].status == "InService"
