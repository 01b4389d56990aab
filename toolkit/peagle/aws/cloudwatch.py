"""CloudWatch's metrics and dashboards: one typed function per call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.errors import Refused
from peagle.request_validation.dashboard import dashboard_problems

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
    found: dict[str, dict[float, float]] = {name: {} for name in queries}
    results = aws.items(
        "cloudwatch", "get_metric_data", "MetricDataResults",
        MetricDataQueries=[query.document(name) for name, query in queries.items()],
        StartTime=datetime.fromtimestamp(start // 60 * 60, UTC),
        EndTime=datetime.fromtimestamp(end, UTC),
    )  # fmt: skip
    for one in results:
        moments = [moment.timestamp() for moment in one["Timestamps"]]
        found[one["Id"]] |= dict(zip(moments, one["Values"], strict=False))
    return found


def put_dashboard(aws: Aws, name: str, body: Mapping[str, Any]) -> None:
    """Create the dashboard, or replace the one of its name. Raises Refused for an invalid body."""
    text = json.dumps(body)
    problems = dashboard_problems(text)
    if problems:
        raise Refused(f"the dashboard {name} is invalid: {'; '.join(problems)}")
    aws.call("cloudwatch", "put_dashboard", DashboardName=name, DashboardBody=text)


def dashboard_text(aws: Aws, name: str) -> str | None:
    """The body of the dashboard; ``None`` when there is none of that name."""
    with suppress(Missing):
        return str(aws.call("cloudwatch", "get_dashboard", DashboardName=name)["DashboardBody"])
    return None


def delete_dashboards(aws: Aws, names: Sequence[str]) -> None:
    """Delete the dashboards; ignores those that do not exist."""
    for name in names:  # one that is missing makes AWS refuse the whole request
        with suppress(Missing):
            aws.call("cloudwatch", "delete_dashboards", DashboardNames=[name])
