"""CloudWatch alarms: one typed function per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import Missing


def put_metric_alarm(aws: Aws, parameters: Mapping[str, Any]) -> None:
    """Create the alarm, or replace the settings of one with its name, whose state stays."""
    aws.call("cloudwatch", "put_metric_alarm", **parameters)


def delete_alarms(aws: Aws, names: Sequence[str]) -> None:
    """Delete the alarms; ignores those that do not exist."""
    for name in names:  # one that is missing makes AWS refuse the whole request
        with suppress(Missing):
            aws.call("cloudwatch", "delete_alarms", AlarmNames=[name])


def described_alarms(aws: Aws, names: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Those of the alarms that exist, as DescribeAlarms has them."""
    found = aws.items("cloudwatch", "describe_alarms", "MetricAlarms", AlarmNames=list(names))
    return tuple(one for one in found if one["AlarmName"] in names)


def alarms_in_alarm(aws: Aws, names: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Those of the alarms that are in the state ALARM, as DescribeAlarms has them."""
    if not names:
        return ()
    found = aws.items(
        "cloudwatch", "describe_alarms", "MetricAlarms", AlarmNames=list(names), StateValue="ALARM"
    )
    return tuple(one for one in found if one["AlarmName"] in names)
