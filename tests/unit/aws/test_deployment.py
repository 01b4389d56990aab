"""Deploy creates, updates and proves an endpoint, and records every resource whatever happens."""

from pathlib import Path
from typing import Any

import pytest

from peagle.aws.sagemaker import update
from peagle.errors import CloudError, NotProved
from tests.support import raises_code
from tests.unit.aws.network import acting, denied
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.scripted import ScriptedEndpoint
from tests.unit.aws.world import NAME, World


@pytest.mark.parametrize(("count", "batch"), [(1, None), (2, 1), (20, 1), (21, 2), (40, 2)])
def test_several_instances_are_replaced_in_batches(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int, batch: int | None
) -> None:
    requests: list[dict[str, Any]] = []
    monkeypatch.setattr(world.cloud, "_update_endpoint", lambda **args: requests.append(args))
    update(world.aws, {"EndpointName": "e", "EndpointConfigName": "c", "Tags": []}, count)
    (args,) = requests
    rolling = args.get("DeploymentConfig", {}).get("RollingUpdatePolicy", {})
    assert rolling.get("MaximumBatchSize", {}).get("Value") == batch
    assert "Tags" not in args


def test_a_failed_start_shows_the_reason_and_the_decisive_line(world: World) -> None:
    world.cloud.next_scripts = [[("Creating", None), ("Failed", "did not pass the ping check")]]
    world.cloud.write_log("INFO 11-20 10:00:00 [api_server.py:1] vLLM API server version 0.28.0")
    world.cloud.write_log(
        "\x1b[31mRuntimeError: CUDA out of memory. Tried to allocate 9 GiB\x1b[0m"
    )
    with pytest.raises(CloudError) as failed:
        world.deploy(a_plan())
    assert "RuntimeError: CUDA out of memory. Tried to allocate 9 GiB" in failed.value.message
    assert "\x1b" not in failed.value.message
    assert failed.value.exit_code == 4
    assert world.state() == "Failed"


def test_the_floor_of_the_pair_does_not_apply_to_a_stand_in(world: World) -> None:
    def mark(operation: str) -> None:
        if operation == "create_endpoint":
            world.cloud.tags[world.cloud.endpoints[NAME].arn]["peagle:stand-in"] = "peagle/tiny"

    world.cloud.after = mark
    world.cloud.engine.acceptance = 1.4
    record = world.deploy(a_plan())
    assert record.serving.proof.passed
    assert world.state() == "InService"


def test_without_speculation_an_answer_is_the_proof(world: World) -> None:
    world.cloud.engine.acceptance = None
    record = world.deploy(a_plan(speculation=None, drafter=None))
    assert record.serving.proof.acceptance_length is None
    assert world.state() == "InService"


def test_an_empty_answer_is_not_a_proof(world: World) -> None:
    world.cloud.engine.tokens = ()
    with raises_code("empty-answer", NotProved):
        world.deploy(a_plan(speculation=None, drafter=None))


# Deploy and destroy while another client changes the endpoint, or permissions are missing.
BUSY = ("Updating", None)
READY = ("InService", None)


def _endpoint(world: World) -> ScriptedEndpoint:
    return world.cloud.endpoints[NAME]


@pytest.mark.parametrize("nth", [1, 3])
def test_an_endpoint_that_another_client_deletes_while_it_starts(world: World, nth: int) -> None:
    world.cloud.next_scripts = [[*[("Creating", None)] * 5, READY]]

    def delete_later(operation: str) -> None:
        if operation == "create_endpoint":
            world.cloud.before = acting("describe_endpoint", world.cloud.endpoints.clear, nth)

    world.cloud.after = delete_later
    with raises_code("endpoint-disappeared", CloudError):
        world.deploy(a_plan())
    world.destroy()
    assert world.cloud.is_empty


def test_deploy_waits_for_another_clients_update_before_its_own(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.before = acting(
        "create_model", lambda: setattr(_endpoint(world), "script", [BUSY, BUSY, READY])
    )
    record = world.deploy(another(a_plan()))
    assert record.serving.plan == another(a_plan())
    states = [progress.state for progress in world.shown]
    assert states.index("Updating") < states.index("Updating endpoint")
    assert world.cloud.calls.count("update_endpoint") == 1


def test_a_deletion_that_fails_keeps_the_record_and_the_cost(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.after = acting(
        "delete_endpoint",
        lambda: setattr(_endpoint(world), "script", [("Deleting", None), ("Failed", "in a VPC")]),
    )
    with raises_code("endpoint-not-deleted", CloudError) as failed:
        world.destroy()
    assert "Failed in a VPC" in failed.value.message
    record = world.saved()
    assert record.billing_since is not None
    world.destroy()
    assert world.cloud.is_empty


@pytest.mark.parametrize("operation", ["list_tags", "describe_endpoint", "describe_model"])
def test_what_may_not_be_looked_at_stays_in_the_record(world: World, operation: str) -> None:
    world.deploy(a_plan())
    world.cloud.before = denied(operation)
    with raises_code("resources-unknown", CloudError) as caught:
        world.destroy()
    assert caught.value.command == ("peagle", "destroy", NAME)
    record = world.saved()
    assert {r.name for r in record.resources} >= set(world.cloud.models)
    world.cloud.before = lambda operation: None
    world.destroy()
    assert world.cloud.is_empty
    assert world.record() is None


@pytest.mark.parametrize("operation", ["head_bucket", "get_bucket_tagging"])
def test_a_bucket_that_may_not_be_looked_at_stays_in_the_record(
    world: World, head: Path, operation: str
) -> None:
    world.deploy(a_plan(head))
    world.cloud.before = denied(operation)
    with raises_code("resources-unknown", CloudError):
        world.destroy()
    assert world.cloud.buckets
    assert not world.cloud.endpoints
    assert "delete_bucket" not in world.cloud.calls
    record = world.saved()
    assert [resource.type for resource in record.resources] == ["S3Bucket"]
