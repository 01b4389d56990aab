"""Drift of what scales, observes and ends a deployment.

Scaling and its wake-up, alarms and their metric filters, the retention of log and captured data,
the dashboard, the end and its schedule.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from peagle.aws import autoscaling, cloudwatch, s3, scheduler
from peagle.aws.autoscaling import Bounds
from peagle.deploy.costs import utc_moment
from peagle.deploy.drift_fields import Compared, FieldDrift, differing, nested, plain
from peagle.planning.operation_model import Scaling
from peagle.render.alarms import alarms as planned_alarms
from peagle.render.dashboard import (
    dashboard_body,
    dashboard_name,
    has_dashboard,
    log_retention_days,
)
from peagle.render.metrics import log_of
from peagle.render.metrics import metric_filters as planned_filters
from peagle.render.requests import VARIANT
from peagle.render.resources import (
    BUDGET_TAG,
    ENDS_TAG,
    capture_rule,
    copies_limit_name,
    limit_name,
    wake_alarm,
    wake_policy_parameters,
)
from peagle.text import json_object

_ALARM_KEYS = (
    "ActionsEnabled", "AlarmActions", "ComparisonOperator", "DatapointsToAlarm", "Dimensions",
    "EvaluationPeriods", "ExtendedStatistic", "MetricName", "Namespace", "OKActions", "Period",
    "Statistic", "Threshold", "TreatMissingData",
)  # fmt: skip


def scaling(found: Compared) -> Iterator[FieldDrift]:
    """The bounds and what the policy holds."""
    registered = autoscaling.registered(found.aws, found.live.name)
    planned = _bounds(found.plan.scaling)
    yield from differing("scaling", _as_dict(planned), _as_dict(registered))


def _bounds(scaling: Scaling | None) -> Bounds | None:
    return autoscaling.bounds_of(scaling) if scaling else None


def _as_dict(bounds: Bounds | None) -> dict[str, Any]:
    """The bounds by option and AWS's names; empty without any."""
    if bounds is None:
        return {}
    more = {
        "scale_in_cooldown": bounds.scale_in_cooldown,
        "scale_out_cooldown": bounds.scale_out_cooldown,
    }
    return bounds.document() | more


def wake_up(found: Compared) -> Iterator[FieldDrift]:
    """The policy that starts a copy where none runs, and the alarm that calls it."""
    planned, name = found.plan.scaling, found.live.name
    if planned is None or not planned.scales_to_zero:
        return
    policy = autoscaling.wake_policy(found.aws, name)
    steps = "StepScalingPolicyConfiguration"
    if policy is None:
        yield FieldDrift("wake_up.policy", "exists", None)
    else:
        parameters = wake_policy_parameters(name, VARIANT, planned)
        yield from nested("wake_up.policy", parameters[steps], policy.get(steps))
    alarm = wake_alarm(name, policy["PolicyARN"] if policy else None)
    described = cloudwatch.described_alarms(found.aws, [alarm["AlarmName"]])
    actual = next(iter(described), None)
    if actual and policy is None:  # the policy is the difference
        alarm["AlarmActions"] = actual.get("AlarmActions")
    yield from _alarm(alarm, actual)


def alarms(found: Compared) -> Iterator[FieldDrift]:
    """Every alarm of the plan."""
    planned = planned_alarms(found.plan, found.live.revision)
    if not planned:
        return
    names = [one["AlarmName"] for one in planned]
    described = cloudwatch.described_alarms(found.aws, names)
    actual = {one["AlarmName"]: one for one in described}
    for one in planned:
        yield from _alarm(one, actual.get(one["AlarmName"]))


def _alarm(planned: Mapping[str, Any], actual: Mapping[str, Any] | None) -> Iterator[FieldDrift]:
    name = planned["AlarmName"]
    if actual is None:
        yield FieldDrift(f"alarm.{name}", "exists", None)
        return
    both = ({"ActionsEnabled": True, **planned}, {"ActionsEnabled": True, **actual})
    sides = [{key: plain(side.get(key)) for key in _ALARM_KEYS} for side in both]
    yield from differing(f"alarm.{name}", *sides)
    yield from nested(f"alarm.{name}.Metrics", planned.get("Metrics"), actual.get("Metrics"))


def filters(found: Compared) -> Iterator[FieldDrift]:
    """The metric filters that count what the acceptance alarm watches."""
    for planned in planned_filters(found.plan):
        name = planned["filterName"]
        listed = cloudwatch.described_filters(found.aws, planned["logGroupName"], name)
        actual = next((one for one in listed if one["filterName"] == name), None)
        if actual is None:
            yield FieldDrift(f"metric_filter.{name}", "exists", None)
            continue
        for key in ("filterPattern", "metricTransformations"):
            yield from nested(f"metric_filter.{name}.{key}", planned[key], actual.get(key))


def log(found: Compared) -> Iterator[FieldDrift]:
    """How long the log is kept. A plan that does not say it keeps what is set."""
    planned = log_retention_days(found.plan)
    if planned is None:
        return
    days = cloudwatch.log_retention(found.aws, log_of(found.plan))
    yield from differing("log", {"retention_days": planned}, {"retention_days": days})


def captured(found: Compared) -> Iterator[FieldDrift]:
    """The rule that deletes captured data. A plan that leaves it to the bucket has none."""
    planned = capture_rule(found.plan)
    if planned is None:
        return
    prefix, rule = planned
    actual = s3.own_lifecycle_rule(found.aws, prefix.bucket, rule["ID"])
    if actual is None:
        yield FieldDrift("captured.rule", "exists", None)
        return
    if "Filter" not in actual:  # among rules of S3's earlier form
        actual = {**actual, "Filter": {"Prefix": actual.get("Prefix")}}
    for key in rule:
        yield from nested(f"captured.{key}", rule[key], actual.get(key))


def dashboard(found: Compared) -> Iterator[FieldDrift]:
    """The dashboard's name and charts."""
    plan = found.plan
    if not has_dashboard(plan):
        return
    text = cloudwatch.dashboard_text(found.aws, dashboard_name(plan.name, plan.region))
    planned = json_object(json.dumps(dashboard_body(plan)))
    if text is None:
        yield FieldDrift("dashboard", "exists", None)
        return
    yield from nested("dashboard", planned, json_object(text))


def limit(found: Compared) -> Iterator[FieldDrift]:
    """The end and the budget, in the endpoint's tags. A plan without a limit keeps what is set."""
    planned = found.plan.limit
    if planned is None:
        return
    ends = found.tags.get(ENDS_TAG, "none")
    if planned.removes:
        yield from differing("limit", {"ends_at": "none"}, {"ends_at": ends})
        return
    if ends == "none":
        yield FieldDrift("limit.ends_at", "set", None)
    budget = None if planned.budget_usd is None else f"{planned.budget_usd:.15g}"
    tagged = found.tags.get(BUDGET_TAG)
    yield from differing(
        "limit", {"budget_usd": budget}, {"budget_usd": None if tagged == "none" else tagged}
    )


def schedule(found: Compared) -> Iterator[FieldDrift]:
    """The schedules that delete endpoint and copies. Their moment follows from the endpoint's tag,
    which ``limit`` compares."""
    planned = found.plan.limit
    if planned is None or planned.removes:
        return
    ends = utc_moment(found.tags.get(ENDS_TAG, ""))
    if ends is None:
        return
    region, name = found.aws.region, found.plan.name
    moments: dict[str, str | None] = {limit_name(region, name): scheduler.at_expression(ends)}
    if found.plan.copies is not None:
        moments[copies_limit_name(region, name)] = None  # before the end, at least in a minute
    for schedule_name, moment in moments.items():
        actual = scheduler.described_schedule(found.aws, schedule_name)
        if actual is None:
            yield FieldDrift(f"schedule.{schedule_name}", "exists", None)
            continue
        expected = {
            "State": "ENABLED",
            "ScheduleExpression": moment or actual["ScheduleExpression"],
        }
        both = expected, {key: actual[key] for key in expected}
        yield from differing(f"schedule.{schedule_name}", *both)
