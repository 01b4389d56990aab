"""What CloudWatch is sent: queries of metrics, filter patterns, dashboards, alarms; rollouts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import boto3
from botocore.exceptions import ClientError
from hypothesis import strategies as st
from moto import mock_aws
from moto.core.exceptions import ServiceException

from peagle.deploy.usage import LogStatistics
from peagle.engine.usage import MetricsPage, quantile
from peagle.request_validation import validate
from peagle.request_validation.dashboard import dashboard_problems
from peagle.sandbox import alarms, rollout
from peagle.sandbox.cloudwatch import _check_queries
from peagle.sandbox.log_metrics import InvalidPattern, compiled
from peagle.sandbox.metrics import InvalidQuery, Metric, Store
from tests.fuzz.inputs import documents, json_texts, texts
from tests.fuzz.parser import Parser

QUERIES: list[dict[str, Any]] = [
    {"Id": "a", "MetricStat": {"Metric": {"Namespace": "N", "MetricName": "M"}, "Period": 60,
                               "Stat": "p99.9"}},
    {"Id": "e", "Expression": "IF(FILL(a, 0) > 1, -1 + 7 * a / 2, 0)"},
]  # fmt: skip
EXPRESSIONS = ("1 + 7 * a / b", "IF(a > 2, FILL(b, 0), -a)")
STORE = Store()
STORE.add(Metric("us-east-1", "N", "M"), 5, 100)
LINE = "(APIServer pid=7) INFO [metrics.py:101] Accepted: 11 tokens, Drafted: 30 tokens"
PATTERNS = (
    '"Accepted:" -failed ?one ?"two"',
    "[..., a=Accepted:, accepted>10, t=tokens*, d, drafted, t2]",
    '{($.message = "Accepted*") && ($.count > 3) && ($.level EXISTS)}',
)
JSON_LINE = json.dumps({"message": LINE, "count": 5, "level": "INFO", "more": {"a": None}})
WIDGETS = {
    "widgets": [
        {"type": "metric", "x": 0, "y": 0, "width": 12, "height": 6, "properties": {
            "region": "us-east-1", "period": 60, "view": "timeSeries",
            "metrics": [["N", "M", "D", "V", {"id": "a"}], [{"expression": "a * 2"}]]}},
        {"type": "log", "properties": {"region": "us-east-1", "query": "SOURCE 'a'"}},
    ]
}  # fmt: skip

LOAD_LINE = (
    "(APIServer pid=7) INFO 11-22 19:12:56 [loggers.py:271] Engine 000: Avg prompt throughput: 1.0 "
    "tokens/s, Avg generation throughput: 23.5 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV "
    "cache usage: 1.5%, Prefix cache hit rate: 0.0%"
)
PAGE = (
    'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 3.0\n'
    'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4.0\n'
    "vllm:num_requests_running 2.0\n"
)


ALARM: dict[str, Any] = {
    "AlarmName": "acceptance", "ComparisonOperator": "LessThanThreshold", "EvaluationPeriods": 2,
    "Threshold": 1.5, "TreatMissingData": "notBreaching",
    "Metrics": [{**query, "ReturnData": query["Id"] == "e"} for query in QUERIES],
}  # fmt: skip
ROLLING = {
    "RollingUpdatePolicy": {
        "MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 25},
        "WaitIntervalInSeconds": 60,
    }
}
CANARY = {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": {
    "Type": "CANARY", "WaitIntervalInSeconds": 60,
    "CanarySize": {"Type": "INSTANCE_COUNT", "Value": 1}}}}  # fmt: skip


def _alarm(document: dict[str, Any]) -> None:
    """The alarm as moto keeps what PutMetricAlarm's own validation lets through."""
    if validate("cloudwatch", "put_metric_alarm", document, "us-east-1"):
        return
    with mock_aws():
        _cloudwatch().put_metric_alarm(**document)
        alarms.evaluate_all("us-east-1")


@cache
def _cloudwatch() -> Any:
    """A client takes longer to create than the alarm. First called while AWS is moto."""
    return boto3.client("cloudwatch", "us-east-1")


def _rollout(config: dict[str, Any]) -> None:
    request = {"EndpointName": "a", "EndpointConfigName": "b", "DeploymentConfig": config}
    if not validate("sagemaker", "update_endpoint", request, "us-east-1"):
        rollout.problem(config, "us-east-1", 4)
        size = config.get("RollingUpdatePolicy", {}).get("MaximumBatchSize")
        assert size is None or 1 <= rollout.step_size(size, 4) <= 4


def _load(line: str) -> None:
    statistics = LogStatistics()
    statistics.add("AllTraffic/i-1", 5.0, line)
    statistics.tokens_per_second(300.0, 10.0)
    assert statistics.itl is None or statistics.itl >= 0


def _page(text: str) -> None:
    page = MetricsPage.parse(text, 5.0)
    page.total("vllm:num_requests_running")
    quantile(page.buckets("vllm:time_to_first_token_seconds"), 0.9)


def _queries(queries: Any) -> None:
    _check_queries(queries)
    STORE.evaluate("us-east-1", queries, 0, 300)


def _expression(expression: str) -> None:
    queries = [QUERIES[0], {**QUERIES[0], "Id": "b"}, {"Id": "e1", "Expression": expression}]
    STORE.evaluate("us-east-1", queries, 0, 300)


def _pattern(pattern: str) -> None:
    matches = compiled(pattern)
    for message in (LINE, JSON_LINE, "", "["):
        matches(message)


PARSERS = (
    Parser(
        "metric-queries",
        _queries,
        documents(QUERIES, typed=True),
        (InvalidQuery, ServiceException),
        [QUERIES],
    ),
    Parser("metric-math", _expression, texts(*EXPRESSIONS), (InvalidQuery,), EXPRESSIONS),
    Parser("filter-pattern", _pattern, texts(*PATTERNS), (InvalidPattern,), PATTERNS),
    Parser(
        "log-line",
        lambda line: [compiled(pattern)(line) for pattern in PATTERNS],
        texts(LINE) | json_texts(json.loads(JSON_LINE)) | st.just(LINE),
        (),
        [LINE, JSON_LINE],
    ),
    Parser("engine-load", _load, texts(LOAD_LINE), (), [LOAD_LINE]),
    Parser("metrics-page", _page, texts(PAGE, more=("1e400", "NaN", "+Inf", "-1")), (), [PAGE]),
    Parser("alarm", _alarm, documents(ALARM, typed=True), (ServiceException, ClientError), [ALARM]),
    Parser("rollout", _rollout, documents(ROLLING, CANARY, typed=True), (), [ROLLING, CANARY]),
    Parser("dashboard", dashboard_problems, json_texts(WIDGETS), (), [json.dumps(WIDGETS)]),
)
