"""Engines behind an endpoint: how many, their logs and metrics, stand-ins, and what is compiled."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError

from tests.sandbox.sandboxes import INSTANCE_TYPE, OUR_IMAGE, WEIGHTS, Account, folder_on_s3, until
from tests.unit.sandbox.test_launch import P_EAGLE, speculating

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("room")]


def streams(account: Account, name: str) -> list[str]:
    group = f"/aws/sagemaker/Endpoints/{name}"
    listed = account.logs.describe_log_streams(logGroupName=group)["logStreams"]
    return [stream["logStreamName"] for stream in listed]


def counts(account: Account, name: str) -> dict[str, int]:
    variants = account.describe(name)["ProductionVariants"]
    return {variant["VariantName"]: variant["CurrentInstanceCount"] for variant in variants}


def endpoint(account: Account, name: str, *variants: dict[str, Any]) -> str:
    """An endpoint in service, whose model has its own name."""
    account.model(name)
    account.sagemaker.create_endpoint_config(
        EndpointConfigName=name,
        ProductionVariants=[
            {"ModelName": name, "InstanceType": INSTANCE_TYPE, **variant} for variant in variants
        ],
    )
    account.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
    description = account.wait_until_stable(name)
    assert description["EndpointStatus"] == "InService", description
    return name


def test_every_instance_of_every_variant_has_an_engine_and_a_log_stream(account: Account) -> None:
    blue = {"VariantName": "blue", "InitialInstanceCount": 2, "InitialVariantWeight": 3.0}
    green = {"VariantName": "green", "InitialInstanceCount": 1, "InitialVariantWeight": 1.0}
    name = endpoint(account, "several", blue, green)
    assert counts(account, name) == {"blue": 2, "green": 1}
    variants = [stream.partition("/")[0] for stream in streams(account, name)]
    assert Counter(variants) == counts(account, name)
    responses = [account.runtime.invoke_endpoint(EndpointName=name, Body=b"{}") for _ in range(8)]
    invoked = Counter(response["InvokedProductionVariant"] for response in responses)
    assert invoked == {"blue": 6, "green": 2}
    for stream in streams(account, name):
        body = b'{"do": "log", "text": "asked"}'
        account.runtime.invoke_endpoint(
            EndpointName=name, Body=body, TargetVariant=stream.partition("/")[0]
        )
    until(lambda: account.log(name).count("fake: asked"), lambda count: count == 3)
    account.delete(name)
    assert account.sandbox.json("sandbox", "status")["endpoints"] == []


GROUP = "/aws/sagemaker/Endpoints/"


def test_the_log_has_one_event_per_line(account: Account, live: str) -> None:
    lines = account.wait_for_line(live, "fake: INFO starting")
    assert lines[0].startswith("sandbox: ")
    assert not any(line.startswith("serve: ") for line in lines), "AWS's image writes no such line"
    assert all("\n" not in line for line in lines)
    (stream,) = account.logs.describe_log_streams(logGroupName=GROUP + live)["logStreams"]
    variant, _, instance = stream["logStreamName"].partition("/")
    assert (variant, instance[:2], len(instance)) == ("AllTraffic", "i-", 19)


def values(account: Account, *queries: dict[str, Any]) -> dict[str, list[float]]:
    now = datetime.now(UTC)
    answer = account.client("cloudwatch").get_metric_data(
        MetricDataQueries=list(queries),
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
    )
    return {result["Id"]: result["Values"] for result in answer["MetricDataResults"]}


def of_endpoint(endpoint: str, metric: str, stat: str = "Sum") -> dict[str, Any]:
    dimensions = [
        {"Name": "EndpointName", "Value": endpoint},
        {"Name": "VariantName", "Value": "AllTraffic"},
    ]
    named = {"Namespace": "AWS/SageMaker", "MetricName": metric, "Dimensions": dimensions}
    return {
        "Id": metric[0].lower() + metric[1:],
        "MetricStat": {"Metric": named, "Period": 300, "Stat": stat},
    }


def test_requests_are_measured(account: Account, live: str) -> None:
    for _ in range(3):
        account.invoke(live, {"prompt": "a", "max_tokens": 8})
    chunks = {"do": "stream", "chunks": ["data: a\n\n", "data: b\n\n"], "gap": 0.2}
    answer = account.runtime.invoke_endpoint_with_response_stream(
        EndpointName=live, Body=json.dumps(chunks)
    )
    assert list(answer["Body"])
    with pytest.raises(ClientError):
        account.invoke(live, {"do": "status", "status": 500, "text": "no"})
    measured = values(
        account,
        of_endpoint(live, "Invocations"),
        of_endpoint(live, "Invocation5XXErrors"),
        of_endpoint(live, "FirstChunkLatency", "SampleCount"),
        of_endpoint(live, "ModelLatency", "Maximum"),
    )
    assert sum(measured["invocations"]) == 5
    assert sum(measured["invocation5XXErrors"]) == 1
    assert sum(measured["firstChunkLatency"]) == 1
    assert 0.2e6 < max(measured["modelLatency"]) < 5e6, "microseconds, until the last chunk"


def memory(account: Account) -> list[int]:
    """Resident bytes of the sandbox and of the containers' entrypoints."""
    daemon = psutil.Process(account.sandbox.address.pid)
    return [process.memory_info().rss for process in (daemon, *daemon.children())]


def test_memory_does_not_grow_with_requests(account: Account, live: str) -> None:
    def send(count: int) -> list[int]:
        for _ in range(count):
            account.invoke(live, {"prompt": "a" * 50_000})
        return memory(account)

    filled = send(200)
    assert len(filled) == 2
    ratios = [after / before for before, after in zip(filled, send(600), strict=True)]
    assert max(ratios) < 1.1, "600 requests with 50 kB each"


def test_a_metric_filter_is_kept_and_replaced(account: Account, live: str) -> None:
    group = f"/aws/sagemaker/Endpoints/{live}"
    transformation = {"metricName": "a", "metricNamespace": "T", "metricValue": "1"}
    metric_filter = {"filterName": "a", "metricTransformations": [transformation]}
    for pattern in ("one", "two"):
        account.logs.put_metric_filter(logGroupName=group, filterPattern=pattern, **metric_filter)
    (kept,) = account.logs.describe_metric_filters(logGroupName=group)["metricFilters"]
    assert kept["filterPattern"] == "two"
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        account.logs.put_metric_filter(logGroupName="/none", filterPattern="", **metric_filter)


def test_status_and_tags_name_the_stand_in(account: Account) -> None:
    name = account.endpoint(speculating(**P_EAGLE, model="amazon/head"), ModelDataSource=None)
    description = account.wait_until_stable(name)
    assert description["EndpointStatus"] == "InService"
    assert account.sagemaker.list_tags(ResourceArn=description["EndpointArn"])["Tags"] == [
        {"Key": "peagle:stand-in", "Value": "peagle/tiny"}
    ]
    assert account.wait_for_line(name, "stand-in for")[0] == (
        "sandbox: peagle/tiny is the stand-in for openai/gpt-oss-20b, which this machine cannot "
        "run: without an NVIDIA GPU only local weights run, not its target (openai/gpt-oss-20b)"
    )
    (status,) = account.sandbox.json("sandbox", "status")["endpoints"]
    assert status["stand_in"] == "peagle/tiny"
    argv = account.invoke(name, {})["argv"]
    assert argv[argv.index("--served-model-name") + 1] == "openai/gpt-oss-20b"
    assert "peagle/tiny" in account.sandbox.peagle("sandbox", "status").stdout
    account.delete(name)


EAGER = "SM_VLLM_ENFORCE_EAGER"
WARMED = {"ModelDataSource": {"S3DataSource": folder_on_s3("warmed/")}}


@pytest.mark.parametrize(("environment", "container", "is_compiled"), [
    ({}, {}, False),
    ({"PEAGLE_WARM": "collect"}, {"Image": OUR_IMAGE}, True),
    ({}, {**WARMED, "Image": OUR_IMAGE}, True),
    ({}, WARMED, False),  # AWS's image does not know warm starts
])  # fmt: skip
def test_only_what_collects_or_has_a_warm_start_is_compiled(
    account: Account, environment: dict[str, str], container: dict[str, Any], is_compiled: bool
) -> None:
    account.upload("warmed/", {**WEIGHTS, "warm/0123.json": b"{}"})
    name = account.endpoint(environment, **container)
    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    variables = account.invoke(name, {})["environment"]
    assert (EAGER not in variables) == is_compiled
    assert ("PEAGLE_CACHE" in variables) == bool(environment), "not this machine's own"
    account.delete(name)
