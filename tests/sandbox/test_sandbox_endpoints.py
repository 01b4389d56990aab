"""The life cycle of an endpoint in the sandbox, and refused requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError

from tests.sandbox.sandboxes import BUCKET, Account, folder_on_s3, refusal, until

pytestmark = pytest.mark.sandbox

ARN = "arn:aws:sagemaker:us-east-1:123456789012"


@pytest.fixture
def crashed(account: Account) -> Iterator[str]:
    name = account.endpoint({"VLLM_FAKE_ENGINE": "crash"})
    yield name
    account.delete(name)


def test_a_crashed_engine_is_the_failure_reason(account: Account, crashed: str) -> None:
    found = account.wait_until_stable(crashed)
    assert found["EndpointStatus"] == "Failed"
    assert found["FailureReason"].endswith(
        "The engine exited: ValueError: the head does not belong to this target"
    )


def test_weights_that_are_deleted_after_the_model_was_created_fail_the_endpoint(
    account: Account,
) -> None:
    account.s3.put_object(Bucket=BUCKET, Key="gone/config.json", Body=b"{}")
    name = account.model("gone", ModelDataSource={"S3DataSource": folder_on_s3("gone/")})
    account.s3.delete_object(Bucket=BUCKET, Key="gone/config.json")
    account.sagemaker.create_endpoint(
        EndpointName=name, EndpointConfigName=account.config(name, name)
    )
    reason = account.wait_until_stable(name)["FailureReason"]
    assert reason.startswith('Failed to download model data for container "container_1" from URL')
    assert "s3://models/gone/" in reason
    account.delete(name)


def test_a_failed_endpoint_can_only_be_deleted(account: Account, crashed: str) -> None:
    account.wait_until_stable(crashed)
    code, message = refusal(
        account.sagemaker.update_endpoint, EndpointName=crashed, EndpointConfigName=crashed
    )
    assert (code, message) == (
        "ValidationException",
        f'Cannot update failed endpoint "{ARN}:endpoint/{crashed}"; delete it.',
    )


def test_names_are_unique(account: Account, live: str) -> None:
    refusals = {
        "model": refusal(account.model, name=live),
        "endpoint configuration": refusal(account.config, name=live, model=live),
        "endpoint": refusal(
            account.sagemaker.create_endpoint, EndpointName=live, EndpointConfigName=live
        ),
    }
    for kind, (code, message) in refusals.items():
        assert code == "ValidationException"
        assert message.startswith(f'Cannot create already existing {kind} "')


def test_a_model_and_a_configuration_in_use_can_be_deleted(account: Account, live: str) -> None:
    account.sagemaker.delete_endpoint_config(EndpointConfigName=live)
    account.sagemaker.delete_model(ModelName=live)
    assert account.describe(live)["EndpointConfigName"] == live
    assert account.invoke(live, {})["path"] == "/invocations"


def test_a_busy_endpoint_refuses_changes(account: Account) -> None:
    name = account.endpoint()
    busy = ("ValidationException", f'Cannot update in-progress endpoint "{ARN}:endpoint/{name}".')
    assert account.describe(name)["EndpointStatus"] == "Creating"
    assert refusal(account.sagemaker.delete_endpoint, EndpointName=name) == busy
    assert (
        refusal(account.sagemaker.update_endpoint, EndpointName=name, EndpointConfigName=name)
        == busy
    )
    account.wait_until_stable(name)
    account.delete(name)


def test_an_update_switches_when_the_new_engine_is_healthy(account: Account, live: str) -> None:
    old = account.sandbox.json("sandbox", "status")["endpoints"][0]
    account.model("better", {"SM_VLLM_SEED": "7"})
    account.config("better", "better")
    account.sagemaker.update_endpoint(EndpointName=live, EndpointConfigName="better")
    during = account.describe(live)
    assert during["EndpointStatus"] == "Updating"
    assert during["EndpointConfigName"] == live
    assert during["PendingDeploymentSummary"]["EndpointConfigName"] == "better"
    assert "--seed" not in account.invoke(live, {})["argv"], "the old engine answers meanwhile"
    after = account.wait_until_stable(live)
    assert (after["EndpointStatus"], after["EndpointConfigName"]) == ("InService", "better")
    assert "PendingDeploymentSummary" not in after
    assert "--seed" in account.invoke(live, {})["argv"]
    new = account.sandbox.json("sandbox", "status")["endpoints"][0]
    assert new["pid"] != old["pid"]
    assert old["pid"] not in account.sandbox.processes()


def test_an_update_that_fails_rolls_back(account: Account, live: str) -> None:
    account.model("worse", {"VLLM_FAKE_ENGINE": "crash"})
    account.config("worse", "worse")
    account.sagemaker.update_endpoint(EndpointName=live, EndpointConfigName="worse")
    after = account.wait_until_stable(live)
    assert (after["EndpointStatus"], after["EndpointConfigName"]) == ("InService", live)
    assert "the head does not belong to this target" in after["FailureReason"]
    assert account.invoke(live, {})["path"] == "/invocations"
    account.sagemaker.delete_endpoint_config(EndpointConfigName="worse")


def test_an_endpoint_whose_engine_dies_later_is_failed_with_its_reason(account: Account) -> None:
    name = account.endpoint()
    account.wait_until_stable(name)
    refusal(account.invoke, name=name, document={"do": "die"})
    until(
        lambda: account.sandbox.json("sandbox", "status")["endpoints"],
        lambda endpoints: all(one["pid"] is None for one in endpoints if one["name"] == name),
    )
    found = account.describe(name)
    assert found["EndpointStatus"] == "Failed"
    assert found["FailureReason"] == "The engine exited: RuntimeError: the engine crashed"
    code, message = refusal(account.invoke, name=name, document={})
    assert (code, message.endswith("its state is Failed.")) == ("ValidationError", True)
    account.delete(name)


def test_concurrent_creations_of_one_name_start_one_engine(account: Account) -> None:
    account.config("race", account.model("race"))

    def create(_: int) -> str:
        try:
            account.sagemaker.create_endpoint(EndpointName="race", EndpointConfigName="race")
        except ClientError as refused:
            return str(refused.response["Error"]["Code"])
        return "created"

    with ThreadPoolExecutor(8) as several:
        outcomes = sorted(several.map(create, range(8)))
    assert outcomes == ["ValidationException"] * 7 + ["created"]
    account.wait_until_stable("race")
    account.delete("race")
