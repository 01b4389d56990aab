"""Metrics in the sandbox: what endpoints publish, metric filters on their logs, CloudWatch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.sandbox.sandboxes import Account, until

pytestmark = pytest.mark.sandbox

K = 3
FIELDS = ", ".join(f"r{place}" for place in range(K))
PATTERN = (
    "[..., a=Accepted:, accepted, t1, d=Drafted:, drafted, t2, p=Per-position, w1, w2, "
    f"{FIELDS}, w3, w4, w5, w6, rate]"
)


@pytest.fixture(scope="module")
def speculating(account: Account) -> Iterator[str]:
    """An endpoint whose engine counts drafts in its log."""
    config = json.dumps({"method": "eagle3", "model": "/m", "num_speculative_tokens": K})
    name = account.endpoint({"SM_VLLM_SPECULATIVE_CONFIG": config})
    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    yield name
    account.delete(name)


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


def test_requests_are_measured(account: Account, speculating: str) -> None:
    for _ in range(3):
        account.invoke(speculating, {"prompt": "a", "max_tokens": 8})
    chunks = {"do": "stream", "chunks": ["data: a\n\n", "data: b\n\n"], "gap": 0.2}
    answer = account.runtime.invoke_endpoint_with_response_stream(
        EndpointName=speculating, Body=json.dumps(chunks)
    )
    assert list(answer["Body"])
    with pytest.raises(ClientError):
        account.invoke(speculating, {"do": "status", "status": 500, "text": "no"})
    found = values(
        account,
        of_endpoint(speculating, "Invocations"),
        of_endpoint(speculating, "Invocation5XXErrors"),
        of_endpoint(speculating, "FirstChunkLatency", "SampleCount"),
        of_endpoint(speculating, "ModelLatency", "Maximum"),
    )
    assert sum(found["invocations"]) == 5
    assert sum(found["invocation5XXErrors"]) == 1
    assert sum(found["firstChunkLatency"]) == 1
    assert 0.2e6 < max(found["modelLatency"]) < 5e6, "microseconds, until the last chunk"


def test_concurrency_is_sampled_also_without_requests(account: Account, speculating: str) -> None:
    query = of_endpoint(speculating, "ConcurrentRequestsPerModel", "Average")
    until(
        lambda: values(account, query)["concurrentRequestsPerModel"],
        lambda found: bool(found) and 0 <= min(found) < 1,
    )


def test_a_metric_filter_counts_drafts(account: Account, speculating: str) -> None:
    group = f"/aws/sagemaker/Endpoints/{speculating}"
    for name in ("accepted", "drafted"):
        transformation = {"metricName": name, "metricNamespace": "T", "metricValue": f"${name}"}
        for _ in range(2):  # the second one replaces the first
            account.logs.put_metric_filter(
                logGroupName=group, filterName=name, filterPattern=PATTERN,
                metricTransformations=[transformation],
            )  # fmt: skip
    assert len(account.logs.describe_metric_filters(logGroupName=group)["metricFilters"]) == 2
    account.invoke(speculating, {"prompt": "a", "max_tokens": 40})
    queries = [
        {
            "Id": name,
            "MetricStat": {
                "Metric": {"Namespace": "T", "MetricName": name},
                "Period": 300,
                "Stat": "Sum",
            },
            "ReturnData": False,
        }
        for name in ("accepted", "drafted")
    ]
    length = {"Id": "length", "Expression": f"1 + {K} * accepted / drafted"}
    found = until(lambda: values(account, *queries, length), lambda known: known["length"])
    assert found == {"length": [2.5]}
    account.logs.delete_metric_filter(logGroupName=group, filterName="drafted")
    with pytest.raises(ClientError, match="does not exist"):
        account.logs.delete_metric_filter(logGroupName=group, filterName="drafted")


def test_filters_and_retention_are_checked(account: Account, speculating: str) -> None:
    group = f"/aws/sagemaker/Endpoints/{speculating}"
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        account.logs.put_metric_filter(
            logGroupName="/none", filterName="a", filterPattern="",
            metricTransformations=[
                {"metricName": "a", "metricNamespace": "T", "metricValue": "1"}
            ],
        )  # fmt: skip
    with pytest.raises(ClientError, match="InvalidParameterException"):
        account.logs.put_metric_filter(
            logGroupName=group, filterName="a", filterPattern="[a, b",
            metricTransformations=[
                {"metricName": "a", "metricNamespace": "T", "metricValue": "1"}
            ],
        )  # fmt: skip
    with pytest.raises(ClientError, match="InvalidParameterException"):
        account.logs.put_retention_policy(logGroupName=group, retentionInDays=8)


def test_published_data_can_be_read(account: Account) -> None:
    cloudwatch = account.client("cloudwatch")
    cloudwatch.put_metric_data(
        Namespace="Own",
        MetricData=[
            {"MetricName": "a", "Value": 3.0, "Dimensions": [{"Name": "d", "Value": "1"}]},
            {"MetricName": "b", "Values": [1.0, 2.0], "Counts": [1.0, 3.0]},
        ],
    )
    (listed,) = cloudwatch.list_metrics(Namespace="Own", MetricName="a")["Metrics"]
    assert listed["Dimensions"] == [{"Name": "d", "Value": "1"}]
    now = time.time()
    found = cloudwatch.get_metric_statistics(
        Namespace="Own", MetricName="b", StartTime=now - 300, EndTime=now + 300, Period=3600,
        Statistics=["Sum"], ExtendedStatistics=["p50"],
    )["Datapoints"]  # fmt: skip
    assert (found[0]["Sum"], found[0]["ExtendedStatistics"]) == (7.0, {"p50": 2.0})


@pytest.mark.parametrize(
    "query",
    [
        {"Id": "A", "Expression": "1"},
        {"Id": "a", "Expression": "1 +"},
        {"Id": "a", "Expression": "none"},
        of_endpoint("e", "Invocations", "median"),
    ],
)
def test_invalid_queries_are_refused(account: Account, query: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match="ValidationError"):
        values(account, query)


def test_a_dashboard_is_checked(account: Account) -> None:
    cloudwatch = account.client("cloudwatch")
    text = {"type": "text", "width": 24, "height": 2, "properties": {"markdown": "# a"}}
    cloudwatch.put_dashboard(DashboardName="d", DashboardBody=json.dumps({"widgets": [text]}))
    cloudwatch.delete_dashboards(DashboardNames=["d"])
    wide = {**text, "width": 25}
    with pytest.raises(ClientError, match="/widgets/0/width"):
        cloudwatch.put_dashboard(DashboardName="d", DashboardBody=json.dumps({"widgets": [wide]}))


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
