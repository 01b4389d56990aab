"""Updates: what served is kept until its successor is proved, and a failed proof returns to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.deploy.apply import RolledBack
from peagle.deploy.proving import prove
from peagle.deploy.status import deployment_status
from peagle.errors import CloudError, NotProved
from tests.support import raises_code
from tests.unit.aws.cloud import service_error
from tests.unit.aws.network import refusing
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
    assert "acceptance length 1.40" in failed.value.message
    assert f"serves {before} again" in failed.value.message
    assert world.serves() == before
    assert world.state() == "InService"
    assert set(world.cloud.configs) == set(world.cloud.models) == {before}
    document = deployment_status(world.aws, world.saved())
    assert document["acceptance_length"] == pytest.approx(GOOD)
    assert "rolled back" in document["failure_reason"]
    tags = world.cloud.tags[world.cloud.endpoints[NAME].arn]
    assert tags["peagle:revision"] == document["fingerprint"]
    assert f"revision={document['fingerprint']} passed=yes" in tags["peagle:proof"]


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
    proved = prove(world.aws, NAME, load_catalog(), world.saved(), clock=world.clock)
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


def test_revisions_that_share_weights_keep_them(world: World, head: Path) -> None:
    world.deploy(a_plan(head))
    (bucket,) = world.cloud.buckets.values()
    world.cloud.engine.acceptance = BAD
    with pytest.raises(RolledBack):
        world.deploy(another(a_plan(head)))
    assert len(bucket) == 2
    world.destroy()
    assert world.cloud.is_empty


def test_another_machine_finds_the_previous_revision_and_returns_to_it(
    world: World, updated: tuple[str, str]
) -> None:
    before, after = updated
    first = world.saved()
    world.forget()
    world.rollback()
    assert world.serves() == before
    record = world.saved()
    assert record.id == first.id
    assert record.previous.name == after
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
