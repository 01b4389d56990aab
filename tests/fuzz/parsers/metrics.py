"""What engines report of their load, dashboards, and rollouts."""

from __future__ import annotations

from typing import Any

from peagle.deploy.usage import LogStatistics
from peagle.engine.usage import MetricsPage, quantile
from peagle.request_validation import validate
from peagle.sandbox.endpoints import rollout_problem, traffic_steps
from tests.fuzz.inputs import documents, texts
from tests.fuzz.parser import Parser

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


ROLLING = {
    "RollingUpdatePolicy": {
        "MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 25},
        "WaitIntervalInSeconds": 60,
    }
}
CANARY = {"BlueGreenUpdatePolicy": {"TrafficRoutingConfiguration": {
    "Type": "CANARY", "WaitIntervalInSeconds": 60,
    "CanarySize": {"Type": "INSTANCE_COUNT", "Value": 1}}}}  # fmt: skip


def _rollout(config: dict[str, Any]) -> None:
    request = {"EndpointName": "a", "EndpointConfigName": "b", "DeploymentConfig": config}
    if not validate("sagemaker", "update_endpoint", request, "us-east-1"):
        rollout_problem(config, "us-east-1", 4)
        assert [*traffic_steps(config, 4)][-1][0] == 1.0


def _load(line: str) -> None:
    statistics = LogStatistics()
    statistics.add("AllTraffic/i-1", 5.0, line)
    statistics.tokens_per_second(300.0, 10.0)
    assert statistics.itl is None or statistics.itl >= 0


def _page(text: str) -> None:
    page = MetricsPage.parse(text, 5.0)
    page.total("vllm:num_requests_running")
    quantile(page.buckets("vllm:time_to_first_token_seconds"), 0.9)


PARSERS = (
    Parser("engine-load", _load, texts(LOAD_LINE), (), [LOAD_LINE]),
    Parser("metrics-page", _page, texts(PAGE, more=("1e400", "NaN", "+Inf", "-1")), (), [PAGE]),
    Parser("rollout", _rollout, documents(ROLLING, CANARY, typed=True), (), [ROLLING, CANARY]),
)
