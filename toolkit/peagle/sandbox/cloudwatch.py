"""CloudWatch's operations that differ from moto's: metrics with percentiles and metric math, at
most as many as AWS takes; dashboards that are checked; metric filters that are applied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from moto.cloudwatch import urls as cloudwatch_urls
from moto.cloudwatch.exceptions import InvalidParameterValue, ValidationError
from moto.cloudwatch.responses import CloudWatchResponse
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, EmptyResult
from moto.logs import urls as logs_urls
from moto.logs.exceptions import (
    InvalidParameterException,
    LimitExceededException,
    ResourceNotFoundException,
)
from moto.logs.responses import LogsResponse

from peagle.planning.observe import LOG_DAYS
from peagle.request_validation.dashboard import dashboard_problems, is_period
from peagle.sandbox import alarms
from peagle.sandbox.log_metrics import InvalidPattern, compiled
from peagle.sandbox.metrics import STORE, DataPoint, InvalidQuery, Metric, Series, parsed

_MOST_QUERIES = 500
_MOST_FILTERS = 100
"""Metric filters of a log group."""


def install() -> None:
    """Let this process's moto use these operations. Call it before the first request."""
    cloudwatch_urls.url_paths["{0}/$"] = CloudWatchOperations.dispatch
    logs_urls.url_paths["{0}/$"] = LogsOperations.dispatch


class InvalidDashboard(ServiceException):
    """PutDashboard's refusal of a body."""

    code = "InvalidParameterInput"


class CloudWatchOperations(CloudWatchResponse):
    """CloudWatch with the metrics of ``metrics``."""

    def put_metric_data(self) -> ActionResult:
        given = self._get_params()
        for datum in given.get("MetricData") or ():
            metric = Metric.of(self.region, {**datum, "Namespace": given["Namespace"]})
            for point in _points(datum):
                STORE.add_point(metric, point)
        return EmptyResult()

    def get_metric_data(self) -> ActionResult:
        given = self._get_params()
        queries = given["MetricDataQueries"]
        _check_queries(queries)
        start, end = _seconds(given["StartTime"]), _seconds(given["EndTime"])
        if start >= end:
            raise ValidationError("The parameter EndTime must be greater than StartTime.")
        found = _evaluated(lambda: STORE.evaluate(self.region, queries, start, end))
        ascending = given.get("ScanBy") == "TimestampAscending"
        results = [
            _result(query, found[query["Id"]], ascending)
            for query in queries
            if query.get("ReturnData", True)
        ]
        return ActionResult({"MetricDataResults": results, "Messages": []})

    def get_metric_statistics(self) -> ActionResult:
        given = self._get_params()
        metric = Metric.of(self.region, given)
        span = _seconds(given["StartTime"]), _seconds(given["EndTime"])
        period = given["Period"]
        plain, extended = given.get("Statistics") or [], given.get("ExtendedStatistics") or []
        found: dict[float, dict[str, Any]] = {}
        for stat in (*plain, *extended):
            series = _evaluated(
                lambda stat=stat: STORE.series(metric, stat, period, *span)  # type: ignore[misc]
            )
            for begun, value in series.items():
                point = found.setdefault(begun, {"Timestamp": _moment(begun)})
                if stat in plain:
                    point[stat] = value
                else:
                    point.setdefault("ExtendedStatistics", {})[stat] = value
        return ActionResult({"Label": metric.name, "Datapoints": list(found.values())})

    def list_metrics(self) -> ActionResult:
        given = self._get_params()
        requested = {(one["Name"], one.get("Value")) for one in given.get("Dimensions") or ()}
        found = [
            {
                "Namespace": metric.namespace,
                "MetricName": metric.name,
                "Dimensions": [{"Name": n, "Value": v} for n, v in sorted(metric.dimensions)],
            }
            for metric in STORE.metrics(self.region)
            if metric.namespace == (given.get("Namespace") or metric.namespace)
            and metric.name == (given.get("MetricName") or metric.name)
            and all(_has_dimension(metric, *one) for one in requested)
        ]
        return ActionResult({"Metrics": found[:500]})

    def describe_alarms(self) -> ActionResult:
        """DescribeAlarms, whose filters act together; moto ignores StateValue with AlarmNames."""
        alarms.evaluate_all(self.region)
        answer = super().describe_alarms()
        if state := self._get_param("StateValue"):
            found = cast(dict[str, list[Any]], answer.result)
            for kind, of_kind in found.items():
                found[kind] = [one for one in of_kind if one.state_value == state]
        return answer

    def put_dashboard(self) -> ActionResult:
        problems = dashboard_problems(str(self._get_param("DashboardBody")))
        if problems:
            messages = "; ".join(problems)
            raise InvalidDashboard(f"The field DashboardBody is invalid: {messages}")
        return super().put_dashboard()


class LogsOperations(LogsResponse):
    """CloudWatch Logs with AWS's checks of metric filters and retention."""

    def put_metric_filter(self) -> str:
        """PutMetricFilter, which replaces a filter of the same name."""
        group, name = self._get_param("logGroupName"), self._get_param("filterName")
        if group not in self.logs_backend.groups:
            raise ResourceNotFoundException
        try:
            compiled(self._get_param("filterPattern"))
        except InvalidPattern as error:
            raise InvalidParameterException(f"Invalid filter pattern: {error}") from error
        filters = self.logs_backend.filters
        others = [one for one in filters.get_matching_filters(log_group_name=group)
                  if one["filterName"] != name]  # fmt: skip
        if len(others) >= _MOST_FILTERS:
            raise LimitExceededException
        filters.delete_filter(name, group)
        return super().put_metric_filter()

    def delete_metric_filter(self) -> str:
        group, name = self._get_param("logGroupName"), self._get_param("filterName")
        known = self.logs_backend.filters.get_matching_filters(log_group_name=group)
        if name not in [one["filterName"] for one in known]:
            raise ResourceNotFoundException("The specified metric filter does not exist.")
        return super().delete_metric_filter()

    def put_retention_policy(self) -> str:
        days = self._get_param("retentionInDays")
        if days not in LOG_DAYS:
            raise InvalidParameterException(
                constraint=f"Member must satisfy enum value set: {list(LOG_DAYS)}",
                parameter="retentionInDays",
                value=days,
            )
        return super().put_retention_policy()


def _points(datum: Mapping[str, Any]) -> Iterable[DataPoint]:
    """The points of one MetricDatum: a value, values with counts, or a set of statistics."""
    when = _seconds(datum.get("Timestamp") or datetime.now(UTC))
    if known := datum.get("StatisticValues"):
        names = ("Sum", "SampleCount", "Minimum", "Maximum")
        yield DataPoint(when, *(known[name] for name in names))
        return
    values = datum.get("Values") or [datum.get("Value")]
    if values == [None]:
        raise InvalidParameterValue("A MetricDatum needs a Value, Values or StatisticValues.")
    counts = datum.get("Counts") or [1.0] * len(values)
    for value, count in zip(values, counts, strict=True):
        yield DataPoint(when, value * count, count, value, value)


def _check_queries(queries: list[dict[str, Any]]) -> None:
    if len(queries) > _MOST_QUERIES:
        raise ValidationError(
            f"The collection MetricDataQueries must not have a size greater than {_MOST_QUERIES}."
        )
    for place, query in enumerate(queries, 1):
        where = f"MetricDataQueries.member.{place}"
        if not re.fullmatch(r"[a-z][a-zA-Z0-9_]*", query["Id"]):
            raise ValidationError(f'The value "{query["Id"]}" for {where}.Id is invalid.')
        if "MetricStat" not in query and "Expression" not in query:
            raise ValidationError(f"The parameter {where}.MetricStat is required.\n")
        if not is_period(query.get("MetricStat", {}).get("Period", 60)):
            raise ValidationError(
                f"The parameter {where}.MetricStat.Period must be 1, 5, 10, 20, 30 or any "
                "multiple of 60."
            )
        if "Expression" in query:
            _evaluated(lambda query=query: parsed(query["Expression"]))  # type: ignore[misc]
    if len({query["Id"] for query in queries}) < len(queries):
        raise ValidationError("The values for parameter id in MetricDataQueries are not unique.")


def _evaluated(evaluate: Callable[[], Any]) -> Any:
    try:
        return evaluate()
    except InvalidQuery as error:
        raise ValidationError(str(error)) from error


def _result(query: Mapping[str, Any], series: Series, ascending: bool) -> dict[str, Any]:
    times = sorted(series, reverse=not ascending)
    stat = query.get("MetricStat")
    name = stat["Metric"]["MetricName"] if stat else query["Id"]
    return {
        "Id": query["Id"],
        "Label": query.get("Label") or name,
        "Timestamps": [_moment(begun) for begun in times],
        "Values": [series[begun] for begun in times],
        "StatusCode": "Complete",
    }


def _has_dimension(metric: Metric, name: str, value: str | None) -> bool:
    return any(name == has and value in (None, of) for has, of in metric.dimensions)


def _seconds(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
