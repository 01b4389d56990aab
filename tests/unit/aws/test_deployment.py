"""Deploy creates, updates and proves an endpoint, and records every resource whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.aws.sagemaker import update
from peagle.deploy.status import deployment_status
from peagle.errors import CloudError, NotProved, Refused
from tests.support import raises_code
from tests.unit.aws.cloud import ROLE, service_error
from tests.unit.aws.plans import a_plan, another, prefix_of
from tests.unit.aws.world import NAME, READING, World


def test_a_deploy_ends_in_service_proved_and_recorded(world: World, head: Path) -> None:
    world.deploy(a_plan(head))

    record = world.record()
    assert record is not None
    assert record.serving is not None
    assert record.serving.proof is not None
    assert record.serving.proof.acceptance_length == pytest.approx(3.0)
    assert record.serving.proof.drafts == 120
    assert world.state() == "InService"
    assert {r.type for r in record.resources} == {
        "S3Bucket", "S3Objects", "Model", "EndpointConfig", "Endpoint",
    }  # fmt: skip
    assert all(resource.made for resource in record.resources)


def test_the_requests_are_the_plans_with_role_and_bucket(world: World, head: Path) -> None:
    world.deploy(a_plan(head), role=ROLE, bucket="mine")

    (model,) = world.cloud.models.values()
    source = model["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]
    assert model["ExecutionRoleArn"] == ROLE
    assert source["S3Uri"] == f"s3://mine/{prefix_of(head)}"
    assert set(world.cloud.buckets["mine"]) == {
        f"{prefix_of(head)}drafter/config.json",
        f"{prefix_of(head)}drafter/model.safetensors",
    }


def test_all_resources_have_the_tags_of_the_deployment(world: World) -> None:
    record = world.deploy(a_plan())

    assert len(world.cloud.tags) == 3
    for tags in world.cloud.tags.values():
        assert tags["peagle:deployment"] == NAME
        assert tags["peagle:id"] == record.id


def test_the_same_plan_again_changes_nothing(world: World, head: Path) -> None:
    world.deploy(a_plan(head))
    prompts, calls = len(world.cloud.engine.prompts), len(world.cloud.calls)

    world.deploy(a_plan(head))

    assert world.preflight(a_plan(head)).change == "nothing"
    assert len(world.cloud.engine.prompts) == prompts
    assert all(call.startswith(READING) for call in world.cloud.calls[calls:])


def test_an_update_changes_the_endpoint_and_its_tags(world: World) -> None:
    world.deploy(a_plan())
    first = set(world.cloud.configs)

    world.deploy(another(a_plan()))

    assert "update_endpoint" in world.cloud.calls
    assert world.cloud.calls.count("create_endpoint") == 1
    endpoint = world.cloud.endpoints[NAME]
    assert endpoint.config not in first
    assert world.cloud.tags[endpoint.arn]["peagle:plan"] in endpoint.config
    assert world.state() == "InService"


@pytest.mark.parametrize(("count", "batch"), [(1, None), (2, 1), (20, 1), (21, 2), (40, 2)])
def test_several_instances_are_replaced_in_batches(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int, batch: int | None
) -> None:
    requests: list[dict[str, Any]] = []
    monkeypatch.setattr(world.cloud, "_update_endpoint", lambda **given: requests.append(given))

    update(world.aws, {"EndpointName": "e", "EndpointConfigName": "c", "Tags": []}, count)

    (given,) = requests
    rolling = given.get("DeploymentConfig", {}).get("RollingUpdatePolicy", {})
    assert rolling.get("MaximumBatchSize", {}).get("Value") == batch
    assert "Tags" not in given


def test_changed_weights_in_the_same_folder_are_another_revision(world: World, head: Path) -> None:
    world.deploy(a_plan(head))
    (first,) = world.cloud.models
    (head / "model.safetensors").write_bytes(b"trained again")

    world.deploy(a_plan(head))

    (second,) = set(world.cloud.models) - {first}
    uri = world.cloud.models[second]["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]["S3Uri"]
    (bucket,) = world.cloud.buckets.values()
    mounted = [key for key in bucket if key.startswith(uri.split("/", 3)[3])]
    assert len(mounted) == 2
    assert world.preflight(a_plan(head)).change == "nothing"


@pytest.mark.thorough
def test_files_in_service_are_never_overwritten(world: World, head: Path) -> None:
    world.deploy(a_plan(head))
    (bucket,) = world.cloud.buckets.values()
    before = dict(bucket)
    (head / "model.safetensors").write_bytes(b"trained again")
    world.cloud.next_scripts = [[("Updating", None), ("InService", "no ping")]]

    with raises_code("endpoint-rolled-back", CloudError):
        world.deploy(another(a_plan(head)))

    assert before.items() <= bucket.items()
    assert len(bucket) == 4
    world.destroy()
    assert world.cloud.is_empty


def test_a_rolled_back_update_fails_and_the_old_revision_serves(world: World) -> None:
    world.deploy(a_plan())
    (old,) = world.cloud.configs
    world.cloud.next_scripts = [[("Updating", None), ("InService", "the ping failed")]]

    with raises_code("endpoint-rolled-back", CloudError) as failed:
        world.deploy(another(a_plan()))

    assert "the ping failed" in failed.value.message

    assert old in failed.value.fix
    record = world.record()
    assert record is not None
    assert record.failure is not None
    assert world.state() == "InService"
    assert deployment_status(world.aws, record)["endpoint_config"] == old
    world.deploy(a_plan())
    assert set(world.cloud.configs) == {old}


def test_a_failed_start_shows_the_reason_and_the_decisive_line(world: World) -> None:
    world.cloud.next_scripts = [[("Creating", None), ("Failed", "did not pass the ping check")]]
    world.cloud.write_log("INFO 11-20 10:00:00 [api_server.py:1] vLLM API server version 0.28.0")
    world.cloud.write_log(
        "\x1b[31mRuntimeError: CUDA out of memory. Tried to allocate 9 GiB\x1b[0m"
    )

    with pytest.raises(CloudError) as failed:
        world.deploy(a_plan())

    assert "did not pass the ping check" in failed.value.message
    assert "RuntimeError: CUDA out of memory. Tried to allocate 9 GiB" in failed.value.message
    assert "\x1b" not in failed.value.message
    assert failed.value.exit_code == 4
    assert world.state() == "Failed"


def test_deploying_again_after_a_failure_replaces_the_endpoint(world: World) -> None:
    world.cloud.next_scripts = [[("Failed", "no reason")]]
    with pytest.raises(CloudError):
        world.deploy(a_plan())

    world.deploy(a_plan())

    assert "delete_endpoint" in world.cloud.calls
    assert world.state() == "InService"


def test_too_few_accepted_drafts_stay_in_service_but_unproved(world: World) -> None:
    world.cloud.engine.acceptance = 1.4

    with raises_code("not-proved", NotProved) as short:
        world.deploy(a_plan())

    assert "1.40" in short.value.message
    assert "2.00" in short.value.message
    assert short.value.exit_code == 3
    assert world.state() == "Unproved"
    assert NAME in world.cloud.endpoints


def test_the_floor_of_the_pair_does_not_apply_to_a_stand_in(world: World) -> None:
    def mark(operation: str) -> None:
        if operation == "create_endpoint":
            world.cloud.tags[world.cloud.endpoints[NAME].arn]["peagle:stand-in"] = "peagle/tiny"

    world.cloud.after = mark
    world.cloud.engine.acceptance = 1.4

    record = world.deploy(a_plan())

    assert record.serving is not None
    assert record.serving.proof is not None
    assert record.serving.proof.passed
    assert world.state() == "InService"


def test_an_unproved_endpoint_is_proved_by_deploying_again(world: World) -> None:
    world.cloud.engine.acceptance = 1.4
    with pytest.raises(NotProved):
        world.deploy(a_plan())
    world.cloud.engine.acceptance = 2.6

    world.deploy(a_plan())

    assert world.state() == "InService"
    assert world.cloud.calls.count("create_endpoint") == 1


def test_without_speculation_an_answer_is_the_proof(world: World) -> None:
    world.cloud.engine.acceptance = None

    record = world.deploy(a_plan(speculation=None, drafter=None))

    assert record.serving is not None
    assert record.serving.proof is not None
    assert record.serving.proof.acceptance_length is None
    assert world.state() == "InService"


def test_an_empty_answer_is_not_a_proof(world: World) -> None:
    world.cloud.engine.tokens = ()

    with raises_code("empty-answer", NotProved):
        world.deploy(a_plan(speculation=None, drafter=None))


def test_a_quota_error_of_create_endpoint_is_explained(world: World) -> None:
    def refuse(operation: str) -> None:
        if operation == "create_endpoint":
            raise service_error(
                "ResourceLimitExceeded",
                "The account-level service limit 'ml.g5.xlarge for endpoint usage' is 1 Instances",
            )

    world.cloud.before = refuse

    with pytest.raises(CloudError) as refused:
        world.deploy(a_plan())

    assert "the quota 'ml.g5.xlarge for endpoint usage'" in refused.value.message
    assert "Service Quotas" in refused.value.fix
    world.cloud.before = lambda operation: None
    world.destroy()
    assert world.cloud.is_empty


def test_a_name_taken_after_the_preflight_stays_with_its_owner(world: World) -> None:
    def take_name(operation: str) -> None:
        if operation == "create_endpoint" and NAME not in world.cloud.endpoints:
            world.cloud.before = lambda operation: None
            (config,) = world.cloud.configs
            world.cloud._create_endpoint(NAME, config, [])

    world.cloud.before = take_name

    with raises_code("name-in-use", Refused):
        world.deploy(a_plan())

    world.cloud.endpoints[NAME].config = "theirs"
    world.destroy()
    assert NAME in world.cloud.endpoints
    assert not world.cloud.models
    assert world.record() is None
