"""Faults and quotas of the sandbox, as the command line adds them and clients of AWS meet them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError, ReadTimeoutError

from tests.sandbox.sandboxes import BUCKET, Account, Sandbox, until

pytestmark = pytest.mark.sandbox


@pytest.fixture(autouse=True)
def _cleared(sandbox: Sandbox) -> Iterator[None]:
    yield
    sandbox.peagle("sandbox", "fault", "clear")


def client(account: Account, service: str, seconds: float = 60) -> Any:
    """A client that tries once and waits ``seconds``."""
    config = Config(retries={"total_max_attempts": 1}, read_timeout=seconds)
    return account.client(service, config=config)


Use = Callable[[Account], Any]
USES: dict[str, Use] = {
    "ListEndpoints": lambda a: client(a, "sagemaker").list_endpoints(),
    "GetRole": lambda a: client(a, "iam").get_role(RoleName="peagle-sandbox-role"),
    "s3:PutObject": lambda a: client(a, "s3").put_object(Bucket=BUCKET, Key="k", Body=b"x" * 9999),
    "s3:HeadBucket": lambda a: client(a, "s3").head_bucket(Bucket=BUCKET),
    "PutMetricAlarm": lambda a: client(a, "cloudwatch").put_metric_alarm(
        AlarmName="a", MetricName="m", Namespace="n", Period=60, EvaluationPeriods=1,
        ComparisonOperator="GreaterThanThreshold", Threshold=1, Statistic="Sum",
    ),
    "InvokeEndpoint": lambda a: client(a, "sagemaker-runtime").invoke_endpoint(
        EndpointName="none", Body=b"{}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("operation", USES)
def test_every_service_refuses_as_its_protocol_does(account: Account, operation: str) -> None:
    codes = {}
    for kind in ("access-denied", "throttling", "internal-error"):
        account.sandbox.json("sandbox", "fault", "add", operation, kind, "--times", "once")
        with pytest.raises(ClientError) as refused:
            USES[operation](account)
        codes[kind] = refused.value.response["Error"]["Code"]
        status = refused.value.response["ResponseMetadata"]["HTTPStatusCode"]
        assert (status >= 500) == (kind == "internal-error" or status == 503)
    if operation == "s3:HeadBucket":  # an answer without a body
        assert codes == {"access-denied": "403", "throttling": "503", "internal-error": "500"}
        return
    assert codes["access-denied"].startswith("AccessDenied")
    assert codes["throttling"] in ("ThrottlingException", "Throttling", "SlowDown")
    assert codes["internal-error"] in ("InternalFailure", "InternalError")


@pytest.mark.parametrize(("kind", "error", "is_created"), [
    ("reset-before", ConnectionClosedError, False),
    ("answer-lost", ConnectionClosedError, True),
    ("timeout", ReadTimeoutError, True),
    ("timeout-before", ReadTimeoutError, False),
])  # fmt: skip
def test_a_broken_connection_is_before_or_after_the_effect(
    account: Account, kind: str, error: type[BotoCoreError], is_created: bool
) -> None:
    patient, hasty = client(account, "s3"), client(account, "s3", seconds=1)
    account.sandbox.json(
        "sandbox", "fault", "add", "CreateBucket", kind, "--times", "once", "--seconds", "1.5"
    )
    with pytest.raises(error):
        hasty.create_bucket(Bucket=kind)
    buckets = [bucket["Name"] for bucket in patient.list_buckets()["Buckets"]]
    assert (kind in buckets) == is_created


def status_and_reason(account: Account, name: str) -> tuple[str, str]:
    description = until(
        lambda: account.describe(name),
        lambda description: description["EndpointStatus"] not in ("Creating", "Updating"),
    )
    return description["EndpointStatus"], description.get("FailureReason", "")


def test_a_stuck_endpoint_goes_on_when_the_fault_is_cleared(account: Account) -> None:
    account.sandbox.json("sandbox", "fault", "add", "CreateEndpoint", "stuck-creating")
    name = account.endpoint()
    with pytest.raises(account.logs.exceptions.ResourceNotFoundException):
        account.log(name)
    assert account.describe(name)["EndpointStatus"] == "Creating"
    account.sandbox.json("sandbox", "fault", "clear")
    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    account.delete(name)


@pytest.mark.parametrize(("kind", "status", "answers"), [
    ("update-rollback-failed", "UpdateRollbackFailed", True),
    ("out-of-service", "OutOfService", False),
    ("insufficient-capacity", "InService", True),
])  # fmt: skip
def test_an_update_ends_in_every_state_of_aws(
    account: Account, live: str, kind: str, status: str, answers: bool
) -> None:
    account.sandbox.json("sandbox", "fault", "add", "UpdateEndpoint", kind, "--times", "once")
    update = {"EndpointName": live, "EndpointConfigName": live}
    account.sagemaker.update_endpoint(**update)
    state, reason = status_and_reason(account, live)
    assert (state, bool(reason)) == (status, kind != "out-of-service")
    if answers:
        assert account.invoke(live, {})["path"] == "/invocations"
    else:
        with pytest.raises(ClientError, match="its state is OutOfService"):
            account.invoke(live, {})
    account.sagemaker.update_endpoint(**update)
    assert account.wait_until_stable(live)["EndpointStatus"] == "InService"
