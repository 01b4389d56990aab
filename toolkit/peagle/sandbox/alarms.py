"""CloudWatch's alarms in the sandbox: their states, from the metrics of complete periods.

A minute of alarms and rollouts may last less than 60 seconds (``set_minute``), for tests and shows.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from moto.cloudwatch.models import Alarm, MetricDataQuery, cloudwatch_backends

from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.metrics import STORE, InvalidQuery, Series

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "GreaterThanThreshold": operator.gt,
    "GreaterThanOrEqualToThreshold": operator.ge,
    "LessThanThreshold": operator.lt,
    "LessThanOrEqualToThreshold": operator.le,
}

_USUAL_MINUTE = 60.0
_minute = _USUAL_MINUTE


def set_minute(seconds: float) -> None:
    """Let a minute of alarms and rollouts last so many seconds. Raises ValueError."""
    if not 0.5 <= seconds <= _USUAL_MINUTE:
        raise ValueError(f"a minute lasts 0.5 to {_USUAL_MINUTE:.0f} seconds, not {seconds}")
    global _minute
    _minute = float(seconds)


def reset() -> None:
    """A minute lasts 60 seconds again."""
    set_minute(_USUAL_MINUTE)


def real_seconds(seconds: float) -> float:
    """How long a time of alarms and rollouts lasts."""
    return seconds * _minute / _USUAL_MINUTE


def unknown_alarms(region: str, names: Sequence[str]) -> list[str]:
    """Those names that no metric alarm of the region has."""
    return [name for name in names if name not in cloudwatch_backends[ACCOUNT][region].alarms]


def in_alarm(region: str, names: Sequence[str]) -> list[str]:
    """Those of the alarms that are in the state ALARM now; all get their states."""
    known = cloudwatch_backends[ACCOUNT][region].alarms
    found = [known[name] for name in names if name in known]
    for alarm in found:
        evaluate(alarm, time.time())
    return [alarm.name for alarm in found if alarm.state_value == "ALARM"]


def evaluate_all(region: str) -> None:
    """Give every metric alarm of the region its state."""
    for alarm in list(cloudwatch_backends[ACCOUNT][region].alarms.values()):
        evaluate(alarm, time.time())


def evaluate(alarm: Alarm, now: float) -> None:
    """Give the alarm the state that the complete periods before ``now`` (epoch seconds) mean."""
    if alarm.rule is not None or alarm.comparison_operator not in _COMPARISONS:
        return
    try:
        state, reason = _state(alarm, now)
    except InvalidQuery as error:
        state, reason = "INSUFFICIENT_DATA", str(error)
    if state != alarm.state_value or alarm.state_reason.startswith("Unchecked"):
        alarm.update_state(reason, "{}", state)


def _state(alarm: Alarm, now: float) -> tuple[str, str]:
    """The state with its reason. A missing period counts as ``treat_missing_data`` says."""
    values = list(_values(alarm, now))
    breaches = _COMPARISONS[alarm.comparison_operator]
    threshold = float(alarm.threshold)
    count = int(alarm.evaluation_periods)
    needed = int(alarm.datapoints_to_alarm or count)
    bad = [one for one in values if one is not None and breaches(one, threshold)]
    missing = values.count(None)
    breaching = len(bad) + (missing if alarm.treat_missing_data == "breaching" else 0)
    if breaching >= needed:
        return "ALARM", (
            f"Threshold Crossed: {breaching} out of the last {count} datapoints "
            f"{[round(one, 3) for one in bad]} crossed the threshold ({threshold})"
        )
    if missing == len(values) and alarm.treat_missing_data not in ("notBreaching", "breaching"):
        return "INSUFFICIENT_DATA", f"Insufficient Data: {missing} datapoints were unknown."
    return "OK", f"Threshold not crossed in {needed} of the last {count} periods."


def _values(alarm: Alarm, now: float) -> Iterator[float | None]:
    """The value of each of the last complete periods; ``None`` where there is none."""
    queries = list(_queries(alarm))
    periods = [float(one["MetricStat"]["Period"]) for one in queries if "MetricStat" in one]
    period = max(periods)
    end = math.floor(now / period) * period
    count = int(alarm.evaluation_periods)
    found = STORE.evaluate(alarm.region_name, queries, end - count * period, end)
    series: Series = next(found[one["Id"]] for one in queries if one["ReturnData"])
    near = {round(begun / period): value for begun, value in series.items()}
    last = round(end / period)
    return (near.get(last - back) for back in range(count, 0, -1))


def _queries(alarm: Alarm) -> Iterator[dict[str, Any]]:
    """The alarm's metrics as GetMetricData has them, with periods as they last here."""
    if not alarm.metric_data_queries:
        metric = {
            "Namespace": alarm.namespace,
            "MetricName": alarm.metric_name,
            "Dimensions": _dimensions(alarm.dimensions),
        }
        stat = alarm.extended_statistic or alarm.statistic
        yield _stat_query("m1", metric, alarm.period, stat) | {"ReturnData": True}
        return
    for query in alarm.metric_data_queries:
        yield _query(query) | {"ReturnData": str(query.return_data).lower() == "true"}


def _query(query: MetricDataQuery) -> dict[str, Any]:
    stat = query.metric_stat
    if stat is None:
        return {"Id": query.id, "Expression": query.expression}
    metric = {
        "Namespace": stat.metric.namespace,
        "MetricName": stat.metric.metric_name,
        "Dimensions": _dimensions(stat.metric.dimensions),
    }
    return _stat_query(query.id, metric, stat.period, stat.stat)


def _stat_query(name: str, metric: dict[str, Any], period: Any, stat: str) -> dict[str, Any]:
    lasting = real_seconds(float(period))
    return {"Id": name, "MetricStat": {"Metric": metric, "Period": lasting, "Stat": stat}}


def _dimensions(dimensions: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"Name": one.name, "Value": one.value} for one in dimensions]
