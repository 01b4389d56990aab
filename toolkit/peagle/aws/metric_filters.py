"""Log groups and metric filters of CloudWatch Logs: one typed function per call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AlreadyExists, Missing


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
    listed = aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=group)
    return next(
        (one.get("retentionInDays") for one in listed if one["logGroupName"] == group), None
    )


def described_filters(aws: Aws, group: str, prefix: str) -> tuple[dict[str, Any], ...]:
    """The filters of the log whose names begin so, as DescribeMetricFilters has them; none where
    there is no such log."""
    given = {"logGroupName": group, "filterNamePrefix": prefix}
    try:
        return tuple(aws.items("logs", "describe_metric_filters", "metricFilters", **given))
    except Missing:
        return ()


def delete_metric_filter(aws: Aws, group: str, name: str) -> None:
    """Delete the filter; ignores one that does not exist, or whose log does not."""
    with suppress(Missing):
        aws.call("logs", "delete_metric_filter", logGroupName=group, filterName=name)
