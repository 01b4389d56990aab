"""CloudWatch, its logs, and the topic that alarms notify: one typed function per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AlreadyExists, Missing

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


def described_alarms(aws: Aws, names: Sequence[str], **more: str) -> tuple[dict[str, Any], ...]:
    """Those of the alarms that exist (with ``StateValue``: in that state), as DescribeAlarms has
    them."""
    if not names:  # AWS would list all
        return ()
    alarms = aws.items(
        "cloudwatch", "describe_alarms", "MetricAlarms", AlarmNames=list(names), **more
    )
    return tuple(alarm for alarm in alarms if alarm["AlarmName"] in names)


def create_log_group(aws: Aws, group: str, tags: Mapping[str, str]) -> None:
    """Create the log group with these tags; leaves one that exists as it is."""
    tagged = {"tags": dict(tags)} if tags else {}
    with suppress(AlreadyExists):
        aws.call("logs", "create_log_group", logGroupName=group, **tagged)


def put_metric_filter(aws: Aws, parameters: Mapping[str, Any], tags: Mapping[str, str]) -> None:
    """Create the filter, or replace the one of its name; creates the log group with ``tags`` if
    there is none."""
    try:
        aws.call("logs", "put_metric_filter", **parameters)
    except Missing:  # a new endpoint has no log yet
        create_log_group(aws, parameters["logGroupName"], tags)
        aws.call("logs", "put_metric_filter", **parameters)


def log_retention(aws: Aws, group: str) -> int | None:
    """For how many days the log is kept; ``None`` for ever, or without such a log."""
    log_groups = aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=group)
    retentions = (log.get("retentionInDays") for log in log_groups if log["logGroupName"] == group)
    return next(retentions, None)


def described_filters(aws: Aws, group: str, prefix: str) -> tuple[dict[str, Any], ...]:
    """The filters of the log whose names begin so, as DescribeMetricFilters has them; none where
    there is no such log."""
    parameters = {"logGroupName": group, "filterNamePrefix": prefix}
    try:
        return tuple(aws.items("logs", "describe_metric_filters", "metricFilters", **parameters))
    except Missing:
        return ()
