"""Updates in steps: traffic moves, alarms watch, and an alarm returns what served before."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from peagle.sandbox.client import add_fault, clear_faults
from tests.sandbox.sandboxes import Account, Sandbox
from tests.support import with_keys

pytestmark = pytest.mark.sandbox
_APART_SECONDS = 0.05  # each request takes 10 ms of processor time
NAME = "peagle-rolled"
DEPLOY = (
    "deploy", "tiny", "--name", NAME, "--instance-type", "ml.g5.xlarge", "--sandbox", "--yes",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_fault_stays(room: None) -> Iterator[None]:
    yield
    clear_faults()


@contextmanager
def traffic(account: Account, name: str, body: dict[str, Any]) -> Iterator[list[str]]:
    """Requests, one after the other; the errors that clients get besides the engine's own."""
    ended, lost = threading.Event(), []

    def send() -> None:
        while not ended.wait(_APART_SECONDS):
            try:
                account.runtime.invoke_endpoint(
                    EndpointName=name, Body=json.dumps(body), ContentType="application/json"
                )
            except ClientError as error:
                if error.response["Error"]["Code"] != "ModelError":
                    lost.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield lost
    finally:
        ended.set()
        thread.join()


def prepared(account: Account, name: str, instances: int) -> None:
    """An endpoint ``name``, a configuration ``name-next``, and an alarm on errors of that."""
    account.model(name)
    for config in (name, f"{name}-next"):
        account.config(config, name, InitialInstanceCount=instances)
    account.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    dimensions = {
        "EndpointName": name,
        "VariantName": "AllTraffic",
        "EndpointConfigName": f"{name}-next",
    }
    account.client("cloudwatch").put_metric_alarm(
        AlarmName=f"{name}-5xx",
        Namespace="AWS/SageMaker",
        MetricName="Invocation5XXErrors",
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        Statistic="Average",
        Period=60,
        EvaluationPeriods=2,
        Threshold=0.05,
        ComparisonOperator="GreaterThanThreshold",
        TreatMissingData="notBreaching",
    )


STEP = {"Type": "INSTANCE_COUNT", "Value": 1}
CANARY = {"Type": "CANARY", "CanarySize": STEP, "WaitIntervalInSeconds": 1800}
POLICIES: dict[str, Any] = {
    "canary": {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": CANARY}},
    "rolling": {"RollingUpdatePolicy": {"MaximumBatchSize": STEP, "WaitIntervalInSeconds": 1800}},
}


def update(account: Account, name: str, config: dict[str, Any]) -> None:
    rollback = {"Alarms": [{"AlarmName": f"{name}-5xx"}]}
    account.sagemaker.update_endpoint(
        EndpointName=name,
        EndpointConfigName=f"{name}-next",
        DeploymentConfig={**config, "AutoRollbackConfiguration": rollback},
    )


def stages(account: Account, name: str) -> tuple[list[str], Any]:
    """The stages and states until the update ends, each once, and the endpoint."""
    seen: list[str] = []
    while True:
        endpoint = account.describe(name)
        pending = endpoint.get("PendingDeploymentSummary", {}).get("ProductionVariants", [])
        status = [variant["Status"] for v in pending for variant in v.get("VariantStatus", [])]
        shown = endpoint["EndpointStatus"]
        shown = status[0] if status and shown == "Updating" else shown
        if shown not in seen:
            seen.append(shown)
        if shown in ("InService", "Failed"):
            return seen, endpoint
        time.sleep(_APART_SECONDS)


@pytest.mark.parametrize("kind", ["canary", "rolling"])
def test_an_update_in_steps_bakes_and_loses_no_request(account: Account, kind: str) -> None:
    name = f"steps-{kind}"
    prepared(account, name, 2)
    with traffic(account, name, {"prompt": "a"}) as lost:
        update(account, name, POLICIES[kind])
        seen, endpoint = stages(account, name)
    assert lost == []
    assert "Baking" in seen
    assert endpoint["EndpointConfigName"] == f"{name}-next"
    assert endpoint["ProductionVariants"][0]["CurrentInstanceCount"] == 2
    account.delete(name)


@pytest.mark.parametrize("kind", ["canary", "rolling"])
def test_an_alarm_returns_what_served_before(account: Account, kind: str) -> None:
    name = f"undone-{kind}"
    prepared(account, name, 2)
    add_fault("UpdateEndpoint", "alarm-fires", 1)
    with traffic(account, name, {"prompt": "a"}) as lost:
        update(account, name, POLICIES[kind])
        seen, endpoint = stages(account, name)
    assert lost == []
    assert seen[-1] == "InService"
    assert endpoint["EndpointConfigName"] == name
    assert f"{name}-5xx" in endpoint["FailureReason"]
    assert endpoint["ProductionVariants"][0]["CurrentInstanceCount"] == 2
    assert account.invoke(name, {"prompt": "a"})["choices"]
    update(account, name, POLICIES[kind])  # the alarm is quiet again
    assert stages(account, name)[1]["EndpointConfigName"] == f"{name}-next"
    account.delete(name)


def test_deploy_shows_which_alarm_undid_it_and_destroy_removes_the_alarms(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    first = sandbox.json(*DEPLOY)
    cloudwatch = account.client("cloudwatch")
    rollout = ("--rollout", "all-at-once")
    update = with_keys(tmp_path, DEPLOY, baking_time="30m")
    sandbox.json("sandbox", "fault", "add", "UpdateEndpoint", "alarm-fires", "--times", "once")
    with traffic(account, NAME, {"prompt": "a", "max_tokens": 500}) as lost:
        failed = sandbox.peagle(*update, "--k", "3", *rollout, "--json")
    assert lost == []
    assert failed.returncode == 4, failed.stderr
    assert "rolls back on errors, acceptance" in failed.stderr
    error = json.loads(failed.stderr.splitlines()[-1])["error"]
    assert error["code"] == "endpoint-rolled-back"
    assert f"{NAME}-acceptance" in error["message"]
    assert account.describe(NAME)["EndpointConfigName"] == first["endpoint_config"]
    alarms = cloudwatch.describe_alarms(AlarmNamePrefix=NAME)["MetricAlarms"]
    assert alarms == [], "the plan that serves again has none"
    sandbox.json(*DEPLOY, *rollout)
    (alarm,) = cloudwatch.describe_alarms(AlarmNames=[f"{NAME}-acceptance"])["MetricAlarms"]
    assert "--no-speculation" in alarm["AlarmDescription"]
    ended = sandbox.json("destroy", NAME, "--sandbox", "--yes")
    assert [resource["type"] for resource in ended["left"]] == ["LogGroup"]
    kinds = [resource["type"] for resource in ended["removed"]]
    assert kinds.count("Alarm") == kinds.count("MetricFilter") == 2
    assert cloudwatch.describe_alarms(AlarmNamePrefix=NAME)["MetricAlarms"] == []
    group = f"/aws/sagemaker/Endpoints/{NAME}"
    assert account.logs.describe_metric_filters(logGroupName=group)["metricFilters"] == []
