"""CloudWatch's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from peagle.aws.client import Aws

PERIOD_SECONDS = 60
"""SageMaker publishes most metrics once a minute."""


@dataclass(frozen=True)
class MetricQuery:
    """A statistic of one metric, such as ``Sum`` or ``p90``, for every minute, or another period in
    seconds."""

    namespace: str
    name: str
    stat: str
    dimensions: Mapping[str, str] = field(default_factory=dict)
    period: int = PERIOD_SECONDS

    def document(self, query_id: str) -> dict[str, Any]:
        """The query as GetMetricData has it."""
        pairs = [{"Name": name, "Value": value} for name, value in self.dimensions.items()]
        metric = {"Namespace": self.namespace, "MetricName": self.name, "Dimensions": pairs}
        stat = {"Metric": metric, "Period": self.period, "Stat": self.stat}
        return {"Id": query_id, "MetricStat": stat}


def metric_data(
    aws: Aws, queries: Mapping[str, MetricQuery], start: float, end: float
) -> dict[str, dict[float, float]]:
    """Id of a query -> minute (epoch seconds) -> value; a minute without data is absent. The first
    is that of ``start``."""
    series: dict[str, dict[float, float]] = {name: {} for name in queries}
    results = aws.items(
        "cloudwatch", "get_metric_data", "MetricDataResults",
        MetricDataQueries=[query.document(name) for name, query in queries.items()],
        StartTime=datetime.fromtimestamp(start // 60 * 60, UTC),
        EndTime=datetime.fromtimestamp(end, UTC),
    )  # fmt: skip
    for metric in results:
        moments = [moment.timestamp() for moment in metric["Timestamps"]]
        series[metric["Id"]] |= dict(zip(moments, metric["Values"], strict=False))
    return series
