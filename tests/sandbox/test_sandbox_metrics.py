"""Metrics in the sandbox: series of numbers, which endpoints and clients publish; alarms and metric
filters are kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.sandbox.sandboxes import Account, until

pytestmark = pytest.mark.sandbox


def values(account: Account, *queries: dict[str, Any]) -> dict[str, list[float]]:
    now = datetime.now(UTC)
    found = account.client("cloudwatch").get_metric_data(
        MetricDataQueries=list(queries),
        StartTime=now - timedelta(minutes=5),
        EndTime=now + timedelta(minutes=5),
    )
    return {one["Id"]: one["Values"] for one in found["MetricDataResults"]}


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
    found = values(
        account,
        of_endpoint(live, "Invocations"),
        of_endpoint(live, "Invocation5XXErrors"),
        of_endpoint(live, "FirstChunkLatency", "SampleCount"),
        of_endpoint(live, "ModelLatency", "Maximum"),
    )
    assert sum(found["invocations"]) == 5
    assert sum(found["invocation5XXErrors"]) == 1
    assert sum(found["firstChunkLatency"]) == 1
    assert 0.2e6 < max(found["modelLatency"]) < 5e6, "microseconds, until the last chunk"


def test_concurrency_is_sampled_also_without_requests(account: Account, live: str) -> None:
    query = of_endpoint(live, "ConcurrentRequestsPerModel", "Average")
    until(
        lambda: values(account, query)["concurrentRequestsPerModel"],
        lambda found: bool(found) and 0 <= min(found) < 1,
    )


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


def test_alarms_are_found_by_name_and_state(account: Account) -> None:
    cloudwatch = account.client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="quiet", Namespace="Own", MetricName="none", Statistic="Sum", Period=60,
        EvaluationPeriods=1, Threshold=1, ComparisonOperator="GreaterThanThreshold",
        TreatMissingData="notBreaching",
    )  # fmt: skip

    def found(state: str) -> list[str]:
        listed = cloudwatch.describe_alarms(AlarmNames=["quiet"], StateValue=state)
        return [one["AlarmName"] for one in listed["MetricAlarms"]]

    assert (found("OK"), found("ALARM")) == (["quiet"], [])
    cloudwatch.delete_alarms(AlarmNames=["quiet"])
